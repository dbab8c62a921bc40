# shellcheck shell=bash
# `credgate run` as a program of its own, which starts no interpreter (src/credgate/native). Without a compiler the
# command stays what pip installed, and each launch costs an interpreter's start more. And the compiled modules
# (src/credgate/native/modules), which need Python's headers too: without them modules in Python serve.

build_front() {
    if [ ! -w .venv/bin ]; then return; fi
    if .venv/bin/python -I -m credgate.buildfront 2>/dev/null; then return; fi
    # Also where there is a compiler: Debian's gcc comes without libc's headers where recommended packages are left out.
    if is_root && type -P apt-get >/dev/null; then (apt_install gcc libc6-dev) || true; fi
    .venv/bin/python -I -m credgate.buildfront || warn "each launch starts an interpreter"
}

build_modules() {
    .venv/bin/python -I -m credgate.buildmodules || warn "modules in Python serve in their place, each request costs more"
}
