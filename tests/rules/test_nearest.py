"""What comes nearest to a refused request, and how it differs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.asked import Asked, request_of
from rules.decide import decide
from rules.nearest import nearest
from rules.request import Request
from rules.verdict import Deny
from tests.rules.policies import load

POLICY = load("""\
version = 1
[endpoint.api]
host = "api.example.com"
[[endpoint.api.allow]]
id = "items"
methods = ["GET"]
paths = ["/v1/items", "/v1/items/*"]
[[endpoint.api.allow]]
id = "send"
methods = ["POST"]
paths = ["/v1/messages"]
[endpoint.wild]
host = "*.cdn.example"
[[endpoint.wild.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
[endpoint.elsewhere]
host = "other.example.org"
[[endpoint.elsewhere.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
[role.dev]
endpoints = ["api", "wild"]
[role.none]
""")


def close(url: str, method: str = "GET", role: str = "dev") -> tuple[str, str] | None:
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.partition(":")
    number = int(port or {"https": 443, "http": 80}[scheme])
    request = request_of(Asked(reason="", method=method, scheme=scheme, host=host, port=number, path=slash + path))
    assert isinstance(request, Request)
    verdict = decide(POLICY, role, request)
    assert isinstance(verdict, Deny)
    found = nearest(POLICY, role, request, verdict)
    return None if found is None else (found.rule, found.why)


@pytest.mark.parametrize(
    ("url", "method", "found"),
    [
        ("https://api.example.com/v1/items/7", "DELETE", ("api.items", "its methods are GET, HEAD")),
        ("https://api.example.com/v1/message", "POST", ("api.send", "its path is /v1/messages")),
        ("https://api.example.com/v1/message", "GET", ("api.send", "its path is /v1/messages, its methods are POST")),
        ("https://api.example.com/v1/items/7/8", "GET", ("api.items", "its path is /v1/items/*")),
        ("https://api.example.com/v1/items", "POST", ("api.items", "its methods are GET, HEAD")),
        ("http://api.example.com/v1/items", "GET", ("api", "it is https on port 443")),
        ("https://api.example.com:8443/v1/items", "GET", ("api", "it is https on port 443")),
        ("https://api.exmaple.com/v1/items", "GET", ("api", "its host is api.example.com")),
        ("https://other.example.org/x", "GET", ("elsewhere", "it has this host, and the role does not reach it")),
        ("https://quite.different.net/x", "GET", None),
        ("http://metadata.google.internal/x", "GET", None),
    ],
)
def test_nearest(url: str, method: str, found: tuple[str, str] | None) -> None:
    assert close(url, method) == found


def test_a_role_without_endpoints_has_none() -> None:
    assert close("https://api.exmaple.com/x", role="none") is None


@given(st.lists(st.sampled_from(["v1", "items", "messages", "x", "7"]), max_size=6), st.sampled_from(["GET", "PUT"]))
def test_any_refused_path_has_a_nearest_rule(parts: list[str], method: str) -> None:
    url = "https://api.example.com/" + "/".join(parts)
    request = request_of(
        Asked(reason="", method=method, scheme="https", host="api.example.com", port=443, path=url[23:])
    )
    assert isinstance(request, Request)
    verdict = decide(POLICY, "dev", request)
    if isinstance(verdict, Deny):
        found = nearest(POLICY, "dev", request, verdict)
        assert found is not None
        assert found.rule in ("api.items", "api.send")
