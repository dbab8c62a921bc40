# shellcheck shell=bash
# How every script speaks: steps on stdout, errors as credgate itself prints them.

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }

# fail STATUS ERROR [HINT]...
fail() {
    local status=$1 hint
    printf 'error: %s\n' "$2" >&2
    shift 2
    for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done
    exit "$status"
}

is_root() { [ "$(id -u)" = 0 ]; }
