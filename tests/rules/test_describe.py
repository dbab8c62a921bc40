from rules.describe import describe, describe_role
from tests.rules.policies import WHOLE, load


def test_a_role_in_sentences() -> None:
    assert describe_role(load(WHOLE), "dev") == (
        "allow GET|HEAD|POST https://api.github.com:443/repos/acme/app/issues query {page, per_page} encoded_slash"
        " + secret github (header:authorization, placeholder, ttl 28800, max_uses 500, rate 60/60s)",
        "allow GET|HEAD|POST https://api.github.com:443/repos/acme/app/issues/* query {page, per_page} encoded_slash"
        " + secret github (header:authorization, placeholder, ttl 28800, max_uses 500, rate 60/60s)",
        "deny https://api.github.com:443 pack github-credential-minting",
        "deny PUT https://api.github.com:443/repos/*/*/issues/*/lock",
        "dial https://api.github.com:443 with address = 10.20.0.0/16, 10.9.9.9",
        "dial https://api.github.com:443 with dial_port = 8443",
        "dial https://api.github.com:443 with ca = /etc/x/internal-ca.pem",
        "allow GET|HEAD https://mirror.example.org:443/**",
        "work tree: write",
        "tools: ~/.cargo/bin",
        "tools: /opt/tools",
        "read: ~/.gitconfig",
        "env: TERM",
        "env: LANG",
        "children: dev",
        "limits: memory 2147483648, processes 64, open_files 1024, cpu 1800, file_size 1073741824",
        "budget: requests 5000",
        "budget: bytes_out 209715200",
        "on_alarm: kill",
        "deadline: 7200",
    )


def test_what_no_role_reaches_is_not_said() -> None:
    unreached = WHOLE.replace('endpoints = ["mirror"]\n', "")
    assert not any("mirror" in line for line in describe(load(unreached)))
    assert all(line.startswith("dev: ") for line in describe(load(WHOLE)))


def test_a_switch_is_said_where_it_is_on() -> None:
    opened = WHOLE.replace("allow_debug = false", "allow_debug = true")
    assert set(describe(load(opened))) - set(describe(load(WHOLE))) == {"dev: allow_debug: true"}
