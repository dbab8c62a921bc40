# shellcheck shell=bash
# The libraries of the host that Credgate loads at run time, by the name the loader knows them under.

has_library() { "$1" -I -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$2" 2>/dev/null; }

# `command -v` also says a file that cannot be executed, and an ordinary PATH leaves sbin out.
has_nft() {
    local dir
    for dir in ${PATH//:/ } /usr/sbin /sbin; do [ ! -f "$dir/nft" ] || [ ! -x "$dir/nft" ] || return 0; done
    return 1
}

# missing_libraries PYTHON: names of Debian packages. Root's set-up brings the library itself; for a
# run `nft` does as well.
missing_libraries() {
    has_library "$1" libseccomp.so.2 || printf 'libseccomp2\n'
    has_library "$1" libnftables.so.1 || { ! is_root && has_nft; } || printf 'libnftables1\n'
}

# apt_install PACKAGE...
apt_install() {
    command -v apt-get >/dev/null ||
        fail 3 "missing on this host: $*" \
            "install them by the host's package manager (these are Debian's names), then run this again"
    say "installing $*"
    {
        DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
            DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@"
    } >&2 </dev/null || fail 3 "apt-get could not install: $*" "its own message is above"
}
