import pytest

from rules.lint import warnings
from tests.rules.policies import WHOLE, changed, load

UNBOUND = changed('bindings = ["github"]\n', "").replace('["mirror"]', '["mirror", "github-api"]')
EMPTY = changed('[[endpoint.mirror.allow]]\nid = "read"\nmethods = ["GET"]\npaths = ["/**"]\n', "")
PROXIED = changed("[endpoint.mirror]\n", '[endpoint.mirror]\nproxy = "p"\n') + (
    '[proxy.p]\nhost = "p.example.org"\nport = 3128\nsecret = "github"\nuser = "u"\n'
)


def test_a_policy_that_means_what_it_says_has_no_warnings() -> None:
    assert warnings(load(WHOLE)) == ()


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        (WHOLE + '[secret.spare]\nsource = "env:SPARE"\n', "secret.spare", "no binding uses it"),
        (changed('endpoints = ["mirror"]\n', ""), "endpoint.mirror", "no role reaches it"),
        (UNBOUND, "binding.github", "no role has it"),
        (EMPTY, "endpoint.mirror", "allows nothing"),
        (changed('"/repos/acme/app/issues", ', '"/**", '), "endpoint.github-api.allow", "writing on every path"),
        (WHOLE + '[proxy.p]\nhost = "p.example.org"\nport = 1\n', "proxy.p", "no endpoint goes through it"),
        (PROXIED, "proxy.p", "clear text"),
        (changed('"/repos/acme/app/issues", ', '"/{token}/x", '), "endpoint.github-api.allow", "{token}, which no"),
        ("version = 1\n", "role", "nothing can run"),
    ],
)
def test_what_was_hardly_meant_is_said(text: str, where: str, part: str) -> None:
    found = warnings(load(text))
    assert [(problem.where, part in problem.message) for problem in found] == [(where, True)]


def test_an_opaque_endpoint_needs_no_rule_and_a_proxys_secret_is_used() -> None:
    opaque = changed(
        '[[endpoint.mirror.allow]]\nid = "read"\nmethods = ["GET"]\npaths = ["/**"]\n',
        'protocol = "tcp"\nlisten = 5432\n',
    )
    assert warnings(load(opaque)) == ()
    assert warnings(load(PROXIED.replace("port = 3128\n", "port = 3128\ntls = true\n"))) == ()


def test_reading_everything_with_a_secret_is_no_warning() -> None:
    reading = changed('"/repos/acme/app/issues", ', '"/**", ').replace('["GET", "POST"]', '["GET"]')
    assert warnings(load(reading)) == ()
