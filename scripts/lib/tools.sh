# shellcheck shell=bash
# The programs that the tests drive or serve with. What cannot be had is an error, never a skip.

# program:Debian package
TEST_PROGRAMS=(
    curl:curl git:git node:nodejs npm:npm nginx:nginx-light fcgiwrap:fcgiwrap nft:nftables openssl:openssl setpriv:util-linux
    apache2:apache2-bin squid:squid strace:strace chromium:chromium dbus-daemon:dbus gcc:gcc less:less make:make top:procps vim.tiny:vim-tiny
)

missing_test_packages() {
    local pair PATH=$PATH:/usr/sbin:/sbin
    for pair in "${TEST_PROGRAMS[@]}"; do
        type -P "${pair%%:*}" >/dev/null || printf '%s\n' "${pair#*:}"
    done
}

# Debian starts a server as it is installed; the tests bring their own, and nobody asked for one.
without_starting_services() {
    local rule=/usr/sbin/policy-rc.d
    if [ -e "$rule" ]; then
        "$@"
        return
    fi
    (
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$rule"
        chmod 755 "$rule"
        "$@"
    )
}

# Where `npm ci` puts the npm registry that the tests start: root's serves everyone.
registry_home() {
    local id home
    id=$(cat tests/targets/npm/package-lock.json tests/targets/npm/package.json | sha256sum)
    for home in "$CREDGATE_PREFIX/test-registry" "${XDG_CACHE_HOME:-$HOME/.cache}/credgate/test-registry"; do
        home=$home-${id:0:12}
        if is_root || [ -f "$home/.complete" ]; then break; fi
    done
    printf '%s\n' "$home"
}

install_registry() {
    local home
    home=$(registry_home)
    if [ ! -f "$home/.complete" ]; then
        say "installing the npm registry for the tests"
        mkdir -p "$home"
        cp tests/targets/npm/package.json tests/targets/npm/package-lock.json "$home"
        (cd "$home" && npm ci --silent --ignore-scripts --no-audit --no-fund </dev/null) >&2 ||
            fail 1 "npm could not install what tests/targets/npm/package-lock.json names" "its own message is above"
        touch "$home/.complete"
    fi
    export CREDGATE_TEST_REGISTRY=$home
}

install_test_tools() {
    local missing
    mapfile -t missing < <(missing_test_packages)
    if [ "${#missing[@]}" != 0 ]; then
        is_root || fail 3 "the tests need what is not installed: ${missing[*]}" \
            "root has to install it: sudo apt-get install ${missing[*]}, or sudo scripts/test"
        without_starting_services apt_install "${missing[@]}" || exit
        mapfile -t missing < <(missing_test_packages)
        [ "${#missing[@]}" = 0 ] || fail 3 "installed, but still not on PATH: ${missing[*]}"
    fi
    install_registry
}
