# shellcheck shell=bash
# Makes .venv from an interpreter and the lock, and knows when there is nothing to do.

STAMP=.venv/.credgate-setup

# Asked of the interpreter in .venv: is Credgate there, and from this checkout.
probe() {
    .venv/bin/python -I -c '
import importlib.util, sys
spec = importlib.util.find_spec("credgate")
sys.exit(spec is None or spec.origin != sys.argv[1] + "/src/credgate/__init__.py")
' "$PWD" 2>/dev/null
}

# What .venv depends on: a change of any of these makes a new one.
fingerprint() {
    {
        printf '%s\n' "$PWD" "$(readlink -f .venv/bin/python)"
        cat requirements.lock requirements-dev.lock pyproject.toml bin/credgate scripts/setup scripts/lib/venv.sh
    } | sha256sum
}

venv_is_current() { [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(fingerprint)" ] && probe; }

# Where root's set-up puts the venv of this checkout: named for the path, so that two do not meet.
shared_venv() {
    local id
    id=$(printf '%s' "$PWD" | sha256sum)
    printf '%s/venvs/%s-%s\n' "$CREDGATE_PREFIX" "$(basename "$PWD")" "${id:0:12}"
}

# Leaves .venv as what this user may fill: root a link into the prefix, others a directory.
prepare_venv_place() {
    local shared
    if [ ! -L .venv ] && [ -e .venv ] && [ ! -O .venv ]; then
        fail 3 ".venv belongs to $(stat -c %U .venv), and is not what this checkout needs now" \
            "let $(stat -c %U .venv) run scripts/setup, or move .venv away"
    fi
    if [ ! -L .venv ] && [ -e .venv ] && [ ! -f .venv/pyvenv.cfg ]; then
        fail 3 ".venv is there, but is no virtual environment" "move it away and run scripts/setup again"
    fi
    if is_root; then
        shared=$(shared_venv)
        install -d -m 755 "$CREDGATE_PREFIX/venvs" "$shared"
        if [ ! -L .venv ]; then rm -rf .venv; fi
        ln -sfnT "$shared" .venv
        chown -h --reference=. .venv
    elif [ -L .venv ]; then
        rm .venv
    fi
}

install_locked() {
    local pip=(.venv/bin/python -I -m pip --disable-pip-version-check --no-input install -qq) # -q still warns of every extra index that lacks a package
    "${pip[@]}" --only-binary :all: --require-hashes -r requirements-dev.lock &&
        "${pip[@]}" --no-index --no-deps --no-build-isolation --editable .
}

make_venv() {
    local python=$1
    rm -f "$STAMP" 2>/dev/null || true
    prepare_venv_place
    say "making .venv with $python"
    "$python" -I -m venv --clear "$(readlink -m .venv)"
    say "installing the locked packages"
    install_locked || fail 1 "pip could not install what requirements-dev.lock names" \
        "its own message is above; the package index that pip is configured for must be reachable"
    # A later set-up by the checkout's owner has to be able to write this again.
    if is_root && [ -e src/credgate.egg-info ]; then chown -R --reference=. src/credgate.egg-info; fi
    fingerprint >"$STAMP"
}
