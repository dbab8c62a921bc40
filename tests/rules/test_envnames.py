import pytest

from rules.envnames import credential_name, credential_value, refused


@pytest.mark.parametrize(
    "name",
    [
        *("GITHUB_TOKEN", "github_token", "NPM_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY"),
        *("APIKEY", "PGPASSWORD", "MYSQL_PWD_PASSWORD", "DB_PASS", "SSHPASS_PASSPHRASE", "STRIPE_SECRET", "MYTOKEN"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SESSION_COOKIE", "HTTP_AUTHORIZATION", "GH_PAT", "SENTRY_DSN", "X_JWT"),
    ],
)
def test_names_of_credentials(name: str) -> None:
    assert credential_name(name)
    assert "credential" in refused(name)


@pytest.mark.parametrize(
    "name",
    [
        "TERM",
        "COLORTERM",
        "LANG",
        "LC_ALL",
        "EDITOR",
        "TZ",
        "USER",
        "GIT_AUTHOR_NAME",
        "COMPASS",
        "MONKEY",
        "JAVA_HOME",
    ],
)
def test_names_that_a_role_may_pass(name: str) -> None:
    assert not credential_name(name)
    assert refused(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "NODE_OPTIONS", "PYTHONPATH", "BASH_ENV", "GIT_CONFIG_COUNT", "PERL5OPT"),
        *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PATH", "HOME"),
        *("SSH_AUTH_SOCK", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS", "CREDGATE_POLICY", "A B", "", "1A", "A=B", "É"),
    ],
)
def test_names_that_no_role_may_pass(name: str) -> None:
    assert refused(name)


@pytest.mark.parametrize(
    "value",
    [
        *("ghp_" + "a1" * 18, "github_pat_" + "A" * 30, "glpat-" + "x" * 20, "sk-" + "a" * 40, "npm_" + "a" * 36),
        *("xoxb-1234567890-abc", "AKIA" + "A" * 16, "sk_live_" + "a" * 24, "-----BEGIN OPENSSH PRIVATE KEY-----"),
        *(
            "https://user:pass@host.example/",
            "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln",
            "postgres://u:p@h/db",
        ),
    ],
)
def test_values_of_credentials(value: str) -> None:
    assert credential_value(value)


@pytest.mark.parametrize(
    "value",
    ["xterm-256color", "en_US.UTF-8", "vim", "https://host.example:8080/a", "sk-", "/home/u/bin", "", "git@host:a/b"],
)
def test_values_that_are_no_credentials(value: str) -> None:
    assert not credential_value(value)
