# shellcheck shell=bash
# The account that the tests of a root's suite run for. It has no password and no rights.

TEST_ACCOUNT=credgate-test

make_test_account() {
    id -u "$TEST_ACCOUNT" >/dev/null 2>&1 ||
        useradd --create-home --shell /bin/bash --comment 'Credgate test runs' "$TEST_ACCOUNT" ||
        fail 1 "cannot make the account $TEST_ACCOUNT" "useradd has to be there (Debian: passwd)"
}
