"""Precedence of rules, bindings, decoys and the client's own credentials."""

import base64
import dataclasses
from typing import Any

import pytest

from rules.decide import decide, decide_connect, endpoint_for
from rules.hosts import HostPattern
from rules.paths import PathPattern
from rules.policy import (
    AllowRule,
    Binding,
    DenyRule,
    Endpoint,
    Foreign,
    Mode,
    Placeholder,
    PlaceKind,
    Policy,
    Role,
)
from rules.reasons import Reason
from rules.request import Request, Via
from rules.verdict import Allow, Deny, Tunnel

R = Reason
DECOY, OTHER_DECOY = "ghp_decoydecoydecoydecoy", "npm_decoydecoydecoydecoy"
DECOYS = {"github": DECOY, "other": OTHER_DECOY}
SHAPE = Placeholder(env="GITHUB_TOKEN", shape="ghp_{20}")


def allow_rule(rule_id: str, methods: str, *paths: str, **more: Any) -> AllowRule:
    patterns = tuple(PathPattern.parse(path) for path in paths)
    return AllowRule(id=rule_id, methods=frozenset(methods.split()), paths=patterns, **more)


def deny_rule(rule_id: str, methods: str | None, *paths: str) -> DenyRule:
    verbs = None if methods is None else frozenset(methods.split())
    return DenyRule(id=rule_id, methods=verbs, paths=tuple(PathPattern.parse(path) for path in paths))


def endpoint(name: str, host: str, *allow: AllowRule, **more: Any) -> Endpoint:
    port = more.pop("port", 443)
    return Endpoint(name=name, host=HostPattern.parse(host), port=port, dial_port=port, allow=allow, **more)


def binding(name: str, target: str, *rules: str, **more: Any) -> Binding:
    fields = {"secret": name, "place": PlaceKind.HEADER, "placeholder": SHAPE} | more
    return Binding(name=name, endpoint=target, rules=frozenset(rules), **fields)


GH = endpoint(
    "gh",
    "api.github.com",
    allow_rule("issues", "GET POST", "/repos/acme/app/issues", "/repos/acme/app/issues/*"),
    allow_rule("search", "GET", "/search/*", query=frozenset({"q", "page"})),
    allow_rule("keys", "GET POST", "/user/*"),
    allow_rule("open", "GET POST DELETE", "/open/**"),
    deny=(
        deny_rule("mint", "POST", "/user/keys"),
        deny_rule("emails", "GET", "/user/emails"),
        deny_rule("secret", None, "/open/secret/**"),
    ),
)
NPM = endpoint(
    "npm", "npm.acme.example", allow_rule("read", "GET", "/*", encoded_slash=True), allow_rule("plain", "GET", "/a/*")
)
FREE = endpoint("free", "free.example.com", allow_rule("all", "GET", "/**"), foreign=Foreign.ALLOW)
STRICT = endpoint("strict", "strict.example.com", allow_rule("all", "GET", "/**"), foreign=Foreign.DENY)
PLAIN = endpoint("plain", "plain.example.com", allow_rule("all", "GET", "/**"), port=80, tls=False)
ALT = endpoint("alt", "alt.example.com", allow_rule("all", "GET", "/**"), port=8443)
UNUSED = endpoint("unused", "unused.example.com", allow_rule("all", "GET", "/**"), port=9443)


def policy_of(*bindings: Binding, endpoints: tuple[Endpoint, ...] = (GH, NPM, FREE, STRICT, PLAIN, ALT)) -> Policy:
    return Policy(
        sha256="0",
        endpoints={e.name: e for e in (*endpoints, UNUSED)},
        bindings={b.name: b for b in bindings},
        roles={
            "dev": Role(
                name="dev", endpoints=tuple(e.name for e in endpoints), bindings=tuple(b.name for b in bindings)
            ),
            "none": Role(name="none"),
        },
    )


OVERWRITE = binding("github", "gh", "issues")
IN_PLACE = binding("github", "gh", "issues", mode=Mode.PLACEHOLDER)
BASIC = binding("github", "gh", "issues", mode=Mode.PLACEHOLDER, place=PlaceKind.BASIC, format="x:{secret}")
OTHER = binding("other", "npm", "read", mode=Mode.PLACEHOLDER)
POLICY = policy_of(OVERWRITE, OTHER)


def request(method: str = "GET", host: str = "api.github.com", path: str = "/open/x", **more: Any) -> Request:
    query = more.pop("query", "")
    names = tuple(part.partition("=")[0] for part in query.split("&") if part)
    fields: dict[str, Any] = {
        "via": Via.CONNECT,
        "http_version": "HTTP/1.1",
        "scheme": "https",
        "port": 443,
        "target": path + (f"?{query}" if query else ""),
        "query_names": names,
        "headers": (),
        "encoded_slash": "%2f" in path.lower(),
    }
    return Request(method=method, host=host, path=path, **(fields | more))


def denied(verdict: object) -> Reason:
    assert isinstance(verdict, Deny), verdict
    assert verdict.status == (426 if verdict.reason is R.UPGRADE_REFUSED else 403)
    assert verdict.message[0].isupper()
    assert len(verdict.message) < 80
    return verdict.reason


def allowed(verdict: object) -> Allow:
    assert isinstance(verdict, Allow), verdict
    return verdict


ISSUES = "/repos/acme/app/issues"


@pytest.mark.parametrize(
    ("asked", "rule", "bindings"),
    [
        (request(path=ISSUES), "gh.issues", ["github"]),
        (request("POST", path=ISSUES), "gh.issues", ["github"]),
        (request("HEAD", path=ISSUES + "/1"), "gh.issues", ["github"]),
        (request(path="/open/x"), "gh.open", []),
        (request("DELETE", path="/open/x"), "gh.open", []),
        (request(path="/search/code", query="q=a&page=2"), "gh.search", []),
        (request(path="/user/keys"), "gh.keys", []),
        (request(host="npm.acme.example", path="/@a%2fb"), "npm.read", ["other"]),
        (request(host="plain.example.com", path="/", scheme="http", port=80), "plain.all", []),
        (request(host="alt.example.com", path="/", port=8443), "alt.all", []),
    ],
)
def test_what_a_rule_allows(asked: Request, rule: str, bindings: list[str]) -> None:
    verdict = allowed(decide(POLICY, "dev", asked, DECOYS))
    assert verdict.rule == rule
    assert [b.name for b in verdict.bindings] == bindings
    assert verdict.endpoint.name == rule.partition(".")[0]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(host="evil.com"), R.HOST_UNLISTED),
        (request(host="api.github.com.evil.com"), R.HOST_UNLISTED),
        (request(host="unused.example.com", port=9443), R.HOST_UNLISTED),
        (request(host="metadata.google.internal"), R.METADATA),
        (request(host="x.metadata.goog"), R.METADATA),
        (request(port=8443), R.PORT_UNLISTED),
        (request(port=22), R.PORT_UNLISTED),
        (request(scheme="http", port=80), R.PORT_UNLISTED),
        (request(scheme="http"), R.PORT_UNLISTED),
        (request(host="plain.example.com"), R.PORT_UNLISTED),
        (request(upgrade="websocket"), R.UPGRADE_REFUSED),
        (request(path="/nowhere", upgrade="h2c"), R.UPGRADE_REFUSED),
        (request(host="evil.com", upgrade="websocket"), R.HOST_UNLISTED),
        (request(path="/nowhere"), R.NO_RULE),
        (request("DELETE", path=ISSUES), R.NO_RULE),
        (request("HEAD", host="npm.acme.example", path="/x/y/z"), R.NO_RULE),
        (request(path=ISSUES + "/1/comments"), R.NO_RULE),
        (request("POST", path="/user/keys"), R.DENY_RULE),
        (request("POST", path="/user/KEYS"), R.DENY_RULE),
        (request("POST", path="/user/keys.json"), R.DENY_RULE),
        (request("HEAD", path="/user/emails"), R.DENY_RULE),
        (request(path="/open/secret"), R.DENY_RULE),
        (request("HEAD", path="/open/secret/x"), R.DENY_RULE),
        (request(path="/open/secret%2fx"), R.DENY_RULE),
        (request(path="/open/a%2fb"), R.PATH_AMBIGUOUS),
        (request(host="npm.acme.example", path="/a/b%2fc"), R.PATH_AMBIGUOUS),
        (request(path="/search/code", query="q=a&sort=b"), R.QUERY_REFUSED),
    ],
)
def test_what_is_refused_and_why(asked: Request, reason: Reason) -> None:
    assert denied(decide(POLICY, "dev", asked, DECOYS)) is reason


def test_a_role_reaches_only_its_own_endpoints() -> None:
    assert denied(decide(POLICY, "none", request())) is R.HOST_UNLISTED


def test_the_deciding_deny_rule_is_named() -> None:
    verdict = decide(POLICY, "dev", request("POST", path="/user/keys"))
    assert isinstance(verdict, Deny)
    assert verdict.rule == "gh.mint"


def test_a_refusal_says_which_rule_would_allow_it() -> None:
    verdict = decide(POLICY, "dev", request("PUT", path="/nowhere"))
    assert isinstance(verdict, Deny)
    assert "'gh'" in verdict.hint
    assert '"PUT"' in verdict.hint
    assert "/nowhere" not in verdict.message


class TestSharedHost:
    first = endpoint("first", "*.example.com", allow_rule("a", "GET", "/a", "/both"))
    second = endpoint("second", "api.example.com", allow_rule("b", "GET", "/b", "/both"))
    third = endpoint("third", "api.example.com", deny=(deny_rule("no", None, "/b"),))

    def ask(self, path: str, *bindings: Binding, endpoints: tuple[Endpoint, ...]) -> object:
        return decide(policy_of(*bindings, endpoints=endpoints), "dev", request(host="api.example.com", path=path))

    def test_rules_of_all_endpoints_count(self) -> None:
        both = (self.first, self.second)
        assert allowed(self.ask("/a", endpoints=both)).rule == "first.a"
        assert allowed(self.ask("/b", endpoints=both)).rule == "second.b"

    def test_deny_of_any_wins(self) -> None:
        assert denied(self.ask("/b", endpoints=(self.first, self.second, self.third))) is R.DENY_RULE
        assert denied(self.ask("/b", endpoints=(self.third, self.second, self.first))) is R.DENY_RULE

    def test_a_secret_goes_to_the_endpoint_that_it_is_bound_to(self) -> None:
        verdict = allowed(self.ask("/both", binding("s", "second", "b"), endpoints=(self.first, self.second)))
        assert (verdict.rule, verdict.endpoint.name) == ("second.b", "second")

    def test_a_rule_of_the_same_id_at_another_endpoint_is_another_rule(self) -> None:
        twin = dataclasses.replace(self.second, name="twin", host=HostPattern.parse("twin.example.com"))
        bound = binding("s", "twin", "b")
        assert allowed(self.ask("/b", bound, endpoints=(self.second, twin))).bindings == ()

    def test_two_bindings_of_one_place_are_ambiguous(self) -> None:
        pair = (binding("s", "second", "b"), binding("t", "second", "b", place=PlaceKind.BASIC))
        assert denied(self.ask("/b", *pair, endpoints=(self.second,))) is R.BINDING_AMBIGUOUS

    def test_bindings_of_two_endpoints_are_ambiguous(self) -> None:
        pair = (binding("s", "first", "a"), binding("t", "second", "b", header="x-key"))
        assert denied(self.ask("/both", *pair, endpoints=(self.first, self.second))) is R.BINDING_AMBIGUOUS

    def test_two_bindings_of_two_places_pass(self) -> None:
        pair = (binding("s", "second", "b"), binding("t", "second", "b", header="x-key"))
        verdict = allowed(self.ask("/b", *pair, endpoints=(self.second,)))
        assert [b.name for b in verdict.bindings] == ["s", "t"]

    def test_a_binding_counts_only_in_its_role_and_for_its_rules(self) -> None:
        assert allowed(self.ask("/both", binding("s", "second", "x"), endpoints=(self.second,))).bindings == ()


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


class TestDecoys:
    def ask(self, bound: Binding, *headers: tuple[bytes, bytes], path: str = ISSUES, query: str = "") -> object:
        asked = request(path=path, headers=headers, query=query)
        return decide(policy_of(bound, OTHER), "dev", asked, DECOYS)

    def test_in_its_place(self) -> None:
        bearer = (b"Authorization", f"Bearer {DECOY}".encode())
        assert allowed(self.ask(IN_PLACE, bearer)).bindings == (IN_PLACE,)
        assert allowed(self.ask(IN_PLACE, (b"authorization", f"token {DECOY}".encode()))).bindings == (IN_PLACE,)
        assert allowed(self.ask(BASIC, (b"Authorization", basic(f"me:{DECOY}")))).bindings == (BASIC,)
        assert allowed(self.ask(OVERWRITE, bearer)).bindings == (OVERWRITE,)
        assert allowed(self.ask(OVERWRITE, (b"Authorization", basic(f"me:{DECOY}")))).bindings == (OVERWRITE,)

    @pytest.mark.parametrize("bound", [OVERWRITE, IN_PLACE, BASIC])
    @pytest.mark.parametrize(
        "header",
        [
            (b"X-Api-Key", DECOY.encode()),
            (b"Cookie", f"session={DECOY}".encode()),
            (b"X-Anything", f"a {DECOY} b".encode()),
            (b"Proxy-Authorization", basic(f"me:{DECOY}")),
            (b"X-Escaped", DECOY.replace("_", "%5f").encode()),
            (b"Authorization", f"Bearer {OTHER_DECOY}".encode()),
            (b"Authorization", basic(f"me:{OTHER_DECOY}")),
        ],
    )
    def test_in_a_header_where_it_does_not_belong(self, bound: Binding, header: tuple[bytes, bytes]) -> None:
        assert denied(self.ask(bound, header)) is R.PLACEHOLDER_MISPLACED

    @pytest.mark.parametrize("query", [f"key={DECOY}", f"x={DECOY.replace('_', '%5F')}", f"{DECOY}=1", f"a=b+{DECOY}"])
    def test_in_a_query(self, query: str) -> None:
        assert denied(self.ask(OVERWRITE, query=query)) is R.PLACEHOLDER_MISPLACED

    def test_in_a_path(self) -> None:
        assert denied(self.ask(OVERWRITE, path=f"/open/bot{DECOY}/send")) is R.PLACEHOLDER_MISPLACED

    def test_on_another_endpoint_or_rule(self) -> None:
        bearer = (b"Authorization", f"Bearer {DECOY}".encode())
        assert denied(self.ask(OVERWRITE, bearer, path="/open/x")) is R.PLACEHOLDER_MISPLACED
        asked = request(host="free.example.com", headers=(bearer,))
        assert denied(decide(POLICY, "dev", asked, DECOYS)) is R.PLACEHOLDER_MISPLACED

    @pytest.mark.parametrize(
        "headers",
        [
            [(b"Authorization", f"Bearer {DECOY} {DECOY}".encode())],
            [(b"Authorization", f"Bearer {DECOY}".encode())] * 2,
            [(b"Authorization", basic(f"me:{DECOY}"))],
        ],
    )
    def test_twice_or_in_another_form_of_its_place(self, headers: list[tuple[bytes, bytes]]) -> None:
        assert denied(self.ask(IN_PLACE, *headers)) is R.PLACEHOLDER_MISPLACED

    @pytest.mark.parametrize(
        "value",
        [basic(f"me:{DECOY}").rstrip(b"="), b"basic   " + base64.urlsafe_b64encode(f"\xff\xfe?:{DECOY}".encode())],
    )
    def test_base64_is_read_leniently(self, value: bytes) -> None:
        assert denied(self.ask(OVERWRITE, (b"X-Other", value))) is R.PLACEHOLDER_MISPLACED
        assert allowed(self.ask(BASIC, (b"Authorization", value))).bindings == (BASIC,)

    def test_quoted_in_free_text_it_is_inert(self) -> None:
        allowed(self.ask(OVERWRITE, (b"User-Agent", f"agent {DECOY}".encode())))

    def test_one_decoy_for_two_bindings(self) -> None:
        twin = binding("twin", "npm", "read", mode=Mode.PLACEHOLDER)
        shared = {"github": DECOY, "twin": DECOY}
        bearer = ((b"Authorization", f"Bearer {DECOY}".encode()),)
        for host, path in (("api.github.com", ISSUES), ("npm.acme.example", "/x")):
            asked = request(host=host, path=path, headers=bearer)
            assert allowed(decide(policy_of(IN_PLACE, twin), "dev", asked, shared)).bindings


class TestForeign:
    key = (b"X-Api-Key", b"attacker")

    def ask(self, host: str, *headers: tuple[bytes, bytes], query: str = "", bound: Binding | None = None) -> object:
        path = ISSUES if host == "api.github.com" else "/x"
        policy = policy_of(*([bound] if bound else []))
        return decide(policy, "dev", request(host=host, path=path, headers=headers, query=query), DECOYS)

    def test_strip_lets_headers_pass_to_be_stripped(self) -> None:
        allowed(self.ask("api.github.com", self.key))
        allowed(self.ask("api.github.com", self.key, bound=OVERWRITE))

    def test_deny_refuses(self) -> None:
        assert denied(self.ask("strict.example.com", self.key)) is R.FOREIGN_CREDENTIAL
        assert denied(self.ask("strict.example.com", (b"X_API_KEY", b"a"))) is R.FOREIGN_CREDENTIAL
        assert denied(self.ask("strict.example.com", (b"Cookie", b"a=b"))) is R.FOREIGN_CREDENTIAL
        allowed(self.ask("strict.example.com", (b"Accept", b"*/*")))

    def test_deny_of_a_binding_refuses_all_but_its_own_decoy(self) -> None:
        strict = dataclasses.replace(IN_PLACE, foreign=Foreign.DENY)
        mine, alien = ((b"Authorization", f"Bearer {value}".encode()) for value in (DECOY, "attacker"))
        allowed(self.ask("api.github.com", mine, bound=strict))
        allowed(self.ask("api.github.com", bound=strict))
        assert denied(self.ask("api.github.com", alien, bound=strict)) is R.FOREIGN_CREDENTIAL
        assert denied(self.ask("api.github.com", mine, self.key, bound=strict)) is R.FOREIGN_CREDENTIAL

    def test_the_place_of_a_binding_is_a_credential_whatever_its_name(self) -> None:
        odd = binding("github", "gh", "issues", header="x-odd", foreign=Foreign.DENY)
        assert denied(self.ask("api.github.com", (b"X-Odd", b"attacker"), bound=odd)) is R.FOREIGN_CREDENTIAL

    @pytest.mark.parametrize("name", ["access_token", "key", "API-KEY", "X-Amz-Signature", "sig", "token"])
    def test_a_credential_in_the_query_is_one_like_those_in_headers(self, name: str) -> None:
        allowed(self.ask("api.github.com", query=f"{name}=a"))  # to be stripped
        allowed(self.ask("api.github.com", query=f"{name}=a", bound=OVERWRITE))
        assert denied(self.ask("strict.example.com", query=f"{name}=a")) is R.FOREIGN_CREDENTIAL
        strict = dataclasses.replace(OVERWRITE, foreign=Foreign.DENY)
        assert denied(self.ask("api.github.com", query=f"{name}=a", bound=strict)) is R.FOREIGN_CREDENTIAL

    def test_allow_counts_only_without_a_binding(self) -> None:
        bound = binding("free", "free", "all", foreign=Foreign.DENY)
        asked = request(host="free.example.com", path="/x", query="key=a")
        assert denied(decide(policy_of(bound), "dev", asked)) is R.FOREIGN_CREDENTIAL
        allowed(self.ask("free.example.com", self.key))


class TestConnect:
    @pytest.mark.parametrize(
        ("host", "port", "name"),
        [
            (b"api.github.com", 443, "gh"),
            (b"API.GitHub.com.", 443, "gh"),
            (b"alt.example.com", 8443, "alt"),
            (b"plain.example.com", 80, "plain"),
            (b"api.github.com", 8443, None),
            (b"evil.com", 443, None),
            (b"evil.com", 8443, None),
            (b"unused.example.com", 443, None),
            (b"127.0.0.1", 443, None),
            (b"::1", 443, None),
            (b"[::1]", 443, None),
            (b"169.254.169.254", 443, None),
            (b"metadata.google.internal", 443, None),
        ],
    )
    def test_a_tunnel_is_given_so_that_the_refusal_can_be_spoken(
        self, host: bytes, port: int, name: str | None
    ) -> None:
        match decide_connect(POLICY, "dev", host, port):
            case Tunnel(endpoint=target):
                assert (target.name if target else None) == name
            case Deny() as deny:
                pytest.fail(str(deny))

    def test_a_metadata_name_has_no_endpoint_even_under_a_wildcard(self) -> None:
        wide = endpoint("wide", "**.google.internal", allow_rule("all", "GET", "/**"))
        match decide_connect(policy_of(endpoints=(wide,)), "dev", b"metadata.google.internal", 443):
            case Tunnel(endpoint=target):
                assert target is None
            case Deny() as deny:
                pytest.fail(str(deny))

    @pytest.mark.parametrize("port", [22, 53, 0, 9443, 65535])
    def test_other_ports_are_refused_at_once(self, port: int) -> None:
        assert denied(decide_connect(POLICY, "dev", b"api.github.com", port)) is R.PORT_UNLISTED

    @pytest.mark.parametrize("host", [b"", b"0x7f.1", b"user@evil.com", b"[api.github.com]", b"a..b", b"\xff", b"a b"])
    def test_what_is_no_host_is_a_bad_request(self, host: bytes) -> None:
        verdict = decide_connect(POLICY, "dev", host, 443)
        assert isinstance(verdict, Deny)
        assert (verdict.reason, verdict.status) == (R.HOST_INVALID, 400)


def test_endpoint_for() -> None:
    assert endpoint_for(POLICY, "dev", "api.github.com", 443, True) is GH
    assert endpoint_for(POLICY, "dev", "api.github.com", 443, False) is None
    assert endpoint_for(POLICY, "dev", "api.github.com", 8443, True) is None
    assert endpoint_for(POLICY, "dev", "plain.example.com", 80, False) is PLAIN
    assert endpoint_for(POLICY, "dev", "unused.example.com", 9443, True) is None
    wide = endpoint("wide", "**.google.internal", allow_rule("all", "GET", "/**"))
    assert endpoint_for(policy_of(endpoints=(wide,)), "dev", "metadata.google.internal", 443, True) is None


def test_a_verdict_has_no_truth_value() -> None:
    for verdict in (decide(POLICY, "dev", request()), decide(POLICY, "none", request()), Tunnel()):
        with pytest.raises(TypeError, match="match"):
            bool(verdict)
