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
        "CERT_NAME",
        "SCALA_HOME",
        "MOCHA_FILE",
        "PROXY_PORT",
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
        *("SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE"),
        *("NPM_CONFIG_CAFILE", "CARGO_HTTP_CAINFO", "CODEX_CA_CERTIFICATE", "HTTPLIB2_CA_CERTS", "NIX_SSL_CERT_FILE"),
        *("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "PERL_LWP_SSL_CA_FILE", "PERL_LWP_SSL_CA_PATH", "YARN_CA_FILE_PATH"),
        *("npm_config_noproxy", "npm_config_https_proxy", "NPM_CONFIG_STRICT_SSL", "CARGO_HTTP_PROXY", "DENO_CERT"),
        *("UV_SYSTEM_CERTS", "NODE_USE_ENV_PROXY", "NODE_USE_SYSTEM_CA", "NODE_TLS_REJECT_UNAUTHORIZED"),
        *("PYTHONHTTPSVERIFY", "GIT_SSL_NO_VERIFY", "JAVA_TOOL_OPTIONS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
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
