# shellcheck shell=bash
# The programs that the tests drive or serve with. What cannot be had is an error, never a skip.

# program:Debian package
TEST_PROGRAMS=(
    curl:curl gh:gh git:git javac:default-jdk-headless certutil:libnss3-tools node:nodejs npm:npm nginx:nginx-light fcgiwrap:fcgiwrap nft:nftables openssl:openssl setpriv:util-linux
    apache2:apache2-bin squid:squid strace:strace chromium:chromium dbus-daemon:dbus gcc:gcc less:less make:make tmux:tmux top:procps vim.tiny:vim-tiny
)

# Those of the client matrix beside them; a Perl module by where it lies.
MATRIX_PROGRAMS=(
    curl:curl git:git javac:default-jdk-headless nginx:nginx-light fcgiwrap:fcgiwrap node:nodejs npm:npm setpriv:util-linux
    wget:wget ruby:ruby php:php-cli perl:perl go:golang-go
    /usr/share/perl5/LWP/Protocol/https.pm:liblwp-protocol-https-perl
)

# missing_packages PROGRAM:PACKAGE...
missing_packages() {
    local pair PATH=$PATH:/usr/sbin:/sbin
    for pair in "$@"; do
        type -P "${pair%%:*}" >/dev/null || [ -f "${pair%%:*}" ] || printf '%s\n' "${pair#*:}"
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

# home_of NAME: the directory for what stdin, all that it is installed from, comes to. Root's serves everyone.
home_of() {
    local id home
    id=$(sha256sum)
    for home in "$CREDGATE_PREFIX/test-$1" "${XDG_CACHE_HOME:-$HOME/.cache}/credgate/test-$1"; do
        home=$home-${id:0:12}
        if is_root || [ -f "$home/.complete" ]; then break; fi
    done
    printf '%s\n' "$home"
}

# Where `npm ci` puts the npm registry that the tests start.
registry_home() {
    cat tests/targets/npm/package-lock.json tests/targets/npm/package.json | home_of registry
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

# Agent CLIs, laid out as `npm install --global` does it: bin beside lib/node_modules, and one from PyPI.
agents_home() {
    cat tests/targets/agents/package-lock.json tests/targets/agents/package.json tests/targets/aider/requirements.lock | home_of agents
}

install_agents() {
    local home name
    home=$(agents_home)
    if [ ! -f "$home/.complete" ]; then
        say "installing agent CLIs for the tests (2 GB)"
        mkdir -p "$home/lib" "$home/bin"
        cp tests/targets/agents/package.json tests/targets/agents/package-lock.json "$home/lib"
        # One of them puts its program in its place by a script; no other's runs.
        (cd "$home/lib" && npm ci --silent --ignore-scripts --no-audit --no-fund </dev/null &&
            npm rebuild --silent @anthropic-ai/claude-code </dev/null) >&2 ||
            fail 1 "npm could not install what tests/targets/agents/package-lock.json names" "its own message is above"
        for name in claude codex gemini; do
            ln -sfn "../lib/node_modules/.bin/$name" "$home/bin/$name"
        done
        ln -sfn ../lib/node_modules/opencode-linux-x64/bin/opencode "$home/bin/opencode"
        ln -sfn ../lib/node_modules/@github/copilot-linux-x64/copilot "$home/bin/copilot"
        ln -sfn ../lib/node_modules/@aaif/goose-binary-linux-x64/bin/goose "$home/bin/goose"
        install_aider "$home" || exit
        touch "$home/.complete"
    fi
    export CREDGATE_TEST_AGENTS=$home
}

# aider wants a Python before 3.13, of the system's so that an ordinary user can run it. Where there is none its test says so.
install_aider() {
    local home=$1 name
    for name in python3.12 python3.11 python3.10; do
        if [ -x "/usr/bin/$name" ]; then
            if ! "/usr/bin/$name" -m venv --without-pip "$home/aider" ||
                ! .venv/bin/python -m pip --python "$home/aider/bin/python" install -qq --disable-pip-version-check \
                    --only-binary :all: --require-hashes -r tests/targets/aider/requirements.lock >&2; then
                fail 1 "pip could not install what tests/targets/aider/requirements.lock names" "its own message is above"
            fi
            ln -sfn ../aider/bin/aider "$home/bin/aider"
            return
        fi
    done
    warn "no /usr/bin/python3.12, 3.11 or 3.10: aider is left out"
}

# Where the tests find what `reconcile --engine` needs: beside the venv, which everyone who only runs Credgate has too.
engine_home() {
    cat tests/targets/engine/requirements.lock | home_of engine
}

# Likewise the Python clients that the tests drive, and the vault that they start; for one version of the interpreter.
clients_home() {
    { cat tests/targets/python/requirements.lock && .venv/bin/python -IVV; } | home_of clients
}

install_engine() {
    local home
    home=$(engine_home)
    if [ ! -f "$home/.complete" ]; then
        say "installing Ibis and PySpark for the tests"
        mkdir -p "$home"
        # PySpark comes as source alone; it is files in a directory, and nothing is compiled
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$home" \
            --no-build-isolation --only-binary :all: --no-binary pyspark -r tests/targets/engine/requirements.lock >&2 ||
            fail 1 "pip could not install what tests/targets/engine/requirements.lock names" "its own message is above"
        touch "$home/.complete"
    fi
    export CREDGATE_TEST_ENGINE=$home
}

install_clients() {
    local home
    home=$(clients_home)
    if [ ! -f "$home/.complete" ]; then
        say "installing the clients and the vault for the tests"
        mkdir -p "$home"
        .venv/bin/python -I -m pip --disable-pip-version-check --no-input install -qq --only-binary :all: --require-hashes \
            --target "$home" -r tests/targets/python/requirements.lock >&2 ||
            fail 1 "pip could not install what tests/targets/python/requirements.lock names" "its own message is above"
        chmod -R a+rX "$home"
        touch "$home/.complete"
    fi
    export CREDGATE_TEST_CLIENTS=$home
}

# Generic clients, each laid out as its own installer does it: a virtual environment, bin beside lib/node_modules.
matrix_home() {
    { cat tests/targets/matrix/{requirements.lock,package-lock.json,get.go} && .venv/bin/python -IVV; } | home_of matrix
}

install_matrix() {
    local home npm
    install_packages "${MATRIX_PROGRAMS[@]}"
    home=$(matrix_home)
    if [ ! -f "$home/.complete" ]; then
        say "installing the clients of the matrix (1.2 GB)"
        rm -rf -- "$home"
        mkdir -p "$home/npm" "$home/bin" "$home"/node2{0,4}/bin "$home/node24/lib/node_modules"
        .venv/bin/python -I -m venv "$home/python"
        "$home/python/bin/python" -I -m pip --disable-pip-version-check --no-input install -qq --only-binary :all: \
            --no-deps --require-hashes -r tests/targets/matrix/requirements.lock >&2 ||
            fail 1 "pip could not install what tests/targets/matrix/requirements.lock names" "its own message is above"
        cp tests/targets/matrix/package.json tests/targets/matrix/package-lock.json "$home/npm"
        (cd "$home/npm" && npm ci --silent --ignore-scripts --no-audit --no-fund </dev/null) >&2 ||
            fail 1 "npm could not install what tests/targets/matrix/package-lock.json names" "its own message is above"
        npm=$home/npm/node_modules
        mv "$npm/node20/bin/node" "$home/node20/bin/node"
        mv "$npm/node24/bin/node" "$home/node24/bin/node"
        mv "$npm/npm" "$home/node24/lib/node_modules/npm"
        ln -s ../lib/node_modules/npm/bin/npm-cli.js "$home/node24/bin/npm"
        mv "$npm/@oven/bun-linux-x64-baseline/bin/bun" "$npm/@deno/linux-x64-glibc/deno" "$npm/@pnpm/exe.linux-x64/pnpm" \
            "$home/bin"
        GOCACHE=$home/npm/go GO111MODULE=off CGO_ENABLED=0 go build -o "$home/bin/goget" tests/targets/matrix/get.go >&2 ||
            fail 1 "go could not build tests/targets/matrix/get.go" "its own message is above"
        rm -rf -- "$home/npm"
        chmod -R a+rX "$home"
        chmod a+x "$home"/bin/* "$home"/node2{0,4}/bin/*
        touch "$home/.complete"
    fi
    export CREDGATE_TEST_MATRIX=$home
}

# install_packages PROGRAM:PACKAGE...: what is missing of these, by root.
install_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    if [ "${#missing[@]}" != 0 ]; then
        is_root || fail 3 "the tests need what is not installed: ${missing[*]}" \
            "root has to install it: sudo apt-get install ${missing[*]}, or sudo scripts/test"
        without_starting_services apt_install "${missing[@]}" || exit
        mapfile -t missing < <(missing_packages "$@")
        [ "${#missing[@]}" = 0 ] || fail 3 "installed, but still not on PATH: ${missing[*]}"
    fi
}

install_test_tools() {
    install_packages "${TEST_PROGRAMS[@]}"
    install_registry
    install_engine
    install_clients
}
