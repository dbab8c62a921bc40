"""What is proposed for refusals: the narrowest rules that let them pass, and nothing beside."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rules.asked import Asked, Learned, request_of
from rules.decide import decide
from rules.idsegments import is_id, patterns
from rules.learn import applied, learn
from rules.learn_target import Target
from rules.learn_toml import document, quoted, told_lines
from rules.packhosts import known_hosts
from rules.paths import Path, PathPattern, normal_form
from rules.policy import Policy
from rules.reasons import Reason
from rules.request import Request
from rules.unproposed import PROPOSABLE, WHY
from rules.verdict import Allow, Deny
from tests.rules.policies import PACKS, load

BASE = """\
version = 1
[secret.s]
source = "keyring:credgate/s"
[endpoint.api]
host = "api.example.com"
[[endpoint.api.allow]]
id = "list"
methods = ["GET"]
paths = ["/v1/items"]
query = { allow = ["page"] }
[[endpoint.api.deny]]
id = "keys"
paths = ["/v1/keys/**"]
[endpoint.wild]
host = "*.wild.example"
[[endpoint.wild.allow]]
id = "root"
methods = ["GET"]
paths = ["/root"]
[endpoint.far]
host = "far.example.com"
address = ["10.1.0.0/16"]
[[endpoint.far.allow]]
id = "root"
methods = ["GET"]
paths = ["/root"]
[binding.s]
secret = "s"
endpoint = "api"
rules = ["list"]
place = "header:authorization"
[role.dev]
bindings = ["s"]
endpoints = ["wild"]
[role.bare]
"""
POLICY = load(BASE)
KNOWN = known_hosts(PACKS)


def asked(url: str, method: str = "GET", *, policy: Policy = POLICY, role: str = "dev", **more: Any) -> Asked:
    """A refusal as the ledger would have it, by the verdict of the policy."""
    scheme, _, rest = url.partition("://")
    authority, slash, tail = rest.partition("/")
    host, _, port = authority.partition(":")
    path, _, query = (slash + tail).partition("?")
    names = frozenset(part.partition("=")[0] for part in query.split("&") if part)
    number = int(port or {"https": 443, "http": 80}[scheme])
    made = Asked(reason="", method=method, scheme=scheme, host=host, port=number, path=path, query=names)
    request = request_of(made)
    verdict = request if isinstance(request, Deny) else decide(policy, role, request)
    reason = verdict.reason.value if isinstance(verdict, Deny) else "no_rule"
    return replace(made, reason=reason, first="2026-01-02T03:04:05.000000Z", last="2026-01-02T03:05:00.000000Z", **more)


def learned(*wanted: Asked, role: str = "dev", policy: Policy = POLICY) -> Learned:
    return learn(policy, role, wanted, KNOWN)


# ids


@pytest.mark.parametrize(
    "segment",
    [
        *("1", "0042", "17.json", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "d670460b4b4aece5", "a1b2c3d", "A1B2C3D4"),
        *(
            "req_011CSHoEeqs5C35K2UUqR7Fy",
            "file-Abc123Def456Ghi7",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "q_8Zp-3vTnL_0xYw-9aKb",
        ),
    ],
)
def test_ids(segment: str) -> None:
    assert is_id(segment)


@pytest.mark.parametrize(
    "segment",
    [
        "",
        "v1",
        "items",
        "claude-3-5-sonnet",
        "gpt-4o-mini",
        "deadbeef",
        "facade",
        "python3",
        "x86_64",
        "@scope",
        "a" * 64,
    ],
)
def test_words(segment: str) -> None:
    assert not is_id(segment)


def test_only_ids_that_differ_become_a_star() -> None:
    assert patterns(["/a/1/c/7", "/a/2/c/7"]) == {"/a/*/c/7": ("/a/1/c/7", "/a/2/c/7")}
    assert patterns(["/a/1", "/a/1"]) == {"/a/1": ("/a/1",)}
    assert patterns(["/a/x", "/a/y"]) == {"/a/x": ("/a/x",), "/a/y": ("/a/y",)}
    assert patterns(["/a/1", "/a/1/2"]) == {"/a/1": ("/a/1",), "/a/1/2": ("/a/1/2",)}
    assert patterns(["/1", "/2"]) == {"/1": ("/1",), "/2": ("/2",)}  # "/*" would say nothing
    many = ["/a" * 40 + "/1", "/a" * 40 + "/2"]  # a thousand segments fit into a path: each would be looked at
    assert patterns(many) == {path: (path,) for path in many}
    few = ["/a" * 20 + "/1", "/a" * 20 + "/2"]
    assert patterns(few) == {"/a" * 20 + "/*": tuple(few)}
    assert patterns(["/p/1%2f1", "/p/2%2f2"]) == {"/p/1%2f1": ("/p/1%2f1",), "/p/2%2f2": ("/p/2%2f2",)}


# what is proposed


def test_a_rule_for_an_endpoint_that_is_there() -> None:
    [made] = learned(
        asked("https://api.example.com/v1/items/1?x=1", count=3), asked("https://api.example.com/v1/items/2")
    ).proposals
    assert (made.endpoint, made.new, made.id) == ("api", False, "learned-1")
    assert (made.methods, made.path, made.query, made.count) == (("GET",), "/v1/items/*", ("x",), 4)
    assert "no secret goes with it" in made.notes[0]


def test_a_new_endpoint_for_a_host_that_is_not() -> None:
    made = learned(asked("https://docs.example.org/a"), asked("https://docs.example.org/b"), role="bare").proposals
    assert [(p.endpoint, p.new, p.id, p.path) for p in made] == [
        ("docs-example-org", True, "learned-1", "/a"),
        ("docs-example-org", True, "learned-2", "/b"),
    ]
    after = applied(POLICY, "bare", made)
    assert after.roles["bare"].endpoints == ("docs-example-org",)
    assert not after.roles["bare"].bindings


def test_methods_of_one_path_are_one_rule_and_other_paths_are_not_widened() -> None:
    made = learned(
        asked("https://api.example.com/v1/x/1"), asked("https://api.example.com/v1/x/2"),
        asked("https://api.example.com/v1/x/1", "POST"), asked("https://api.example.com/v1/x/2", "POST"),
        asked("https://api.example.com/v1/x/3", "DELETE"),
    ).proposals  # fmt: skip
    assert {(p.methods, p.path) for p in made} == {(("GET", "POST"), "/v1/x/*"), (("DELETE",), "/v1/x/3")}


def test_a_wildcards_host_gets_an_endpoint_of_its_own() -> None:
    [made] = learned(asked("https://a.wild.example/x")).proposals
    assert (made.endpoint, made.new, made.host) == ("a-wild-example", True, "a.wild.example")


def test_a_query_name_is_added_beside_the_rule() -> None:
    one = asked("https://api.example.com/v1/items?page=1&sort=2")
    assert one.reason == Reason.QUERY_REFUSED
    [made] = learned(one).proposals
    assert (made.path, made.query) == ("/v1/items", ("page", "sort"))


def test_an_escaped_slash_is_let_through_in_that_very_path() -> None:
    [made] = learned(asked("https://api.example.com/v1/@a%2fb")).proposals
    assert made.encoded_slash
    assert made.path == "/v1/@a%2fb"


def test_what_is_allowed_by_now_is_not_proposed_again() -> None:
    wanted = [asked("https://api.example.com/v1/other"), asked("https://new.example.org/x")]
    first = learned(*wanted)
    again = learned(*wanted, policy=applied(POLICY, "dev", first.proposals))
    assert len(first.proposals) == 2
    assert again.proposals == ()
    assert len(again.passing) == 2


# what is not


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://metadata.google.internal/computeMetadata/v1", "stay closed"),
        ("https://db.internal/x", "only an endpoint with address"),
        ("https://printer.local/x", "only an endpoint with address"),
        ("https://registry/x", "search list"),
        ("https://localhost/x", "the jail itself"),
        ("https://a.invalid/x", "only an endpoint with address"),
        ("https://api.github.com/user/keys", "pack github-api"),
        ("https://sts.amazonaws.com/", "pack aws"),
        ("https://oauth2.googleapis.com/token", "pack gcp"),
        ("https://api.example.com/v1/keys/1", "a deny rule covers it"),
        ("https://api.example.com/**", 'holds "*"'),
        ("https://api.example.com/v1/*", 'holds "*"'),
        ("https://api.example.com/v1/*:verb", 'holds "*"'),
        ("https://api.example.com/v1/x?a%22b=1", "names that a rule can't list"),
        ("https://api.example.com/v1/..%2f/x", "no rule lets it pass"),
        ("https://1.2.3.4/x", "addresses are never rules"),
    ],
)
def test_what_is_told_and_not_proposed(url: str, why: str) -> None:
    one = asked(url)
    found = learned(replace(one, query=frozenset({'a"b'})) if "%22" in url else one)
    assert found.proposals == ()
    [told] = found.told
    assert why in told.why


def test_control_the_same_url_without_what_closes_it_is_proposed() -> None:
    assert len(learned(asked("https://api.example.com/v1/x?a=1")).proposals) == 1
    assert len(learned(asked("https://registry.example.net/x")).proposals) == 1


def test_a_pack_that_knows_the_host_of_a_listed_endpoint_denies_still() -> None:
    policy = load('version = 1\n[endpoint.gh]\nhost = "api.github.com"\n[[endpoint.gh.allow]]\nid = "a"\nmethods = '
                  '["GET"]\npaths = ["/a"]\n[role.dev]\nendpoints = ["gh"]\n')  # fmt: skip
    mint = asked("https://api.github.com/user/keys", "POST", policy=policy)
    harmless = asked("https://api.github.com/user/emails", policy=policy)
    assert mint.reason == harmless.reason == Reason.NO_RULE
    found = learned(mint, harmless, policy=policy)
    assert [p.path for p in found.proposals] == ["/user/emails"]
    assert "makes a credential" in found.told[0].why


def test_an_endpoint_that_is_dialled_in_its_own_way_is_not_doubled() -> None:
    policy = load(BASE.replace('host = "*.wild.example"', 'host = "*.wild.example"\naddress = ["10.1.0.0/16"]'))
    found = learned(asked("https://a.wild.example/x"), policy=policy)
    assert found.proposals == ()
    assert "dialled in a way of its own" in found.told[0].why


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_has_a_sentence(reason: Reason) -> None:
    assert WHY[reason]
    one = replace(asked("https://api.example.com/v1/new"), reason=reason.value)
    found = learned(one)
    assert bool(found.proposals) == (reason in PROPOSABLE)
    assert bool(found.told) != bool(found.proposals)


def test_a_client_that_asks_for_paths_without_end_gets_a_bounded_list() -> None:
    found = learned(*(asked(f"https://api.example.com/w{'x' * n}") for n in range(50)))
    assert len(found.proposals) == 32
    assert sum(told.count for told in found.told) == 18


BODIED = BASE.replace(
    "[[endpoint.api.deny]]",
    """[[endpoint.api.allow]]
id = "small"
methods = ["POST"]
paths = ["/v1/models/7"]
query = { allow = [] }
body = { type = "json", in = { "model" = ["small"] } }
[[endpoint.api.deny]]""",
)


@pytest.mark.parametrize(
    ("urls", "method"),
    [
        (["/v1/models/7?beta=1"], "POST"),  # beside it, with another query
        (["/v1/models/8", "/v1/models/9"], "POST"),  # "*" would cover it
    ],
)
def test_a_body_that_a_rule_judges_is_not_let_past_it(urls: list[str], method: str) -> None:
    policy = load(BODIED)
    wanted = [asked(f"https://api.example.com{url}", method, policy=policy) for url in urls]
    found = learned(*wanted, policy=policy)
    assert found.proposals == ()
    assert "rule api.small judges the body there" in found.told[0].why

    # the control: with such a rule the body that was refused would pass
    rule = Target.of(policy, "dev", wanted[0]).proposal(wanted, 0)
    request = request_of(asked("https://api.example.com/v1/models/7", "POST", policy=policy))
    assert isinstance(request, Request)
    sent = replace(request, body=b'{"model": "large"}', headers=((b"content-type", b"application/json"),))
    assert isinstance(decide(policy, "dev", sent), Deny)
    assert isinstance(decide(applied(policy, "dev", [rule]), "dev", sent), Allow)


def test_elsewhere_and_with_another_method_a_body_rule_stands_in_nothings_way() -> None:
    policy = load(BODIED)
    urls = [("/v1/models/8", "POST"), ("/v1/models/8", "DELETE"), ("/v1/models/9", "DELETE"), ("/v1/other/7", "POST")]
    wanted = [asked(f"https://api.example.com{url}", method, policy=policy) for url, method in urls]
    assert {(p.path, p.methods) for p in learned(*wanted, policy=policy).proposals} == {
        ("/v1/models/8", ("POST",)), ("/v1/models/*", ("DELETE",)), ("/v1/other/7", ("POST",))
    }  # fmt: skip


def test_a_placeholder_stays_refused_until_its_binding_names_the_rule() -> None:
    text = BASE.replace(
        'place = "header:authorization"',
        """place = "header:x-key"
mode = "placeholder"
placeholder = { env = "K", shape = "key_{36}" }""",
    )
    policy = load(text)
    [made] = learned(asked("https://api.example.com/v1/new", policy=policy), policy=policy).proposals
    assert any("stays refused until then" in note for note in made.notes)
    after = applied(policy, "dev", [made])
    request = request_of(made.asked[0])
    assert isinstance(request, Request)
    decoys = {"s": "key_" + "a" * 36}
    sent = replace(request, headers=(*request.headers, (b"x-key", decoys["s"].encode())))
    assert isinstance(decide(after, "dev", request, decoys), Allow)  # the control
    verdict = decide(after, "dev", sent, decoys)
    assert isinstance(verdict, Deny)
    assert verdict.reason is Reason.PLACEHOLDER_MISPLACED


# over any input

SEGMENTS = st.sampled_from(["a", "b", "1", "2", "v1", "d670460b4b4aece5", "a1b2c3d", "x.json", "%2f", "7.json", "keys"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
HOSTS = st.sampled_from(["api.example.com", "new.example.org", "a.wild.example", "far.example.com"])
URLS = st.builds(
    lambda host, path, names, scheme: f"{scheme}://{host}{path}?{'&'.join(f'{n}=' for n in names)}",
    HOSTS, PATHS, st.sets(st.sampled_from(["page", "q", "sort"])), st.sampled_from(["https", "https", "http"]),
)  # fmt: skip
METHODS = st.sampled_from(["GET", "POST", "DELETE", "HEAD"])
ASKED = st.lists(st.tuples(URLS, METHODS), min_size=1, max_size=8)


def passes(policy: Policy, one: Asked) -> bool:
    request = request_of(one)
    return isinstance(request, Request) and isinstance(decide(policy, "dev", request), Allow)


def replace_endpoint(verdict: Allow | Deny, policy: Policy) -> Allow | Deny:
    """The verdict with its endpoint as another policy has it."""
    return replace(verdict, endpoint=policy.endpoints[verdict.endpoint.name]) if isinstance(verdict, Allow) else verdict


def meant(one: Asked, other: Asked) -> bool:
    """Whether a request is one that was asked for, but for the ids in its path and the choice of query names."""
    parts, others = one.path.split("/"), other.path.split("/")
    same = len(parts) == len(others) and all(
        a == b or (b != "" and is_id(a)) for a, b in zip(parts, others, strict=True)
    )
    method = one.method == other.method or (one.method, other.method) == ("GET", "HEAD")
    return same and method and (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


@settings(max_examples=150, deadline=None)
@given(ASKED, ASKED)
def test_with_the_proposals_exactly_what_was_asked_for_passes(
    one: list[tuple[str, str]], two: list[tuple[str, str]]
) -> None:
    wanted = [asked(url, method) for url, method in one]
    wanted = [each for each in wanted if not passes(POLICY, each)]
    found = learn(POLICY, "dev", wanted, KNOWN)
    after = applied(POLICY, "dev", found.proposals)
    covered = [each for proposal in found.proposals for each in proposal.asked]
    assert all(passes(after, each) for each in covered)
    for url, method in two:
        other = asked(url, method)
        if passes(POLICY, other):  # as before, to the same place, with the same secret
            request = request_of(other)
            assert isinstance(request, Request)
            assert decide(after, "dev", request) == replace_endpoint(decide(POLICY, "dev", request), after)
    assert len(covered) + sum(len(told.asked) for told in found.told) == len(wanted)
    for url, method in two:
        other = asked(url, method)
        if passes(after, other) and not passes(POLICY, other):
            assert any(meant(each, other) for each in covered)
            assert other.query <= frozenset().union(*(each.query for each in covered if meant(each, other)))
            request = request_of(other)
            assert isinstance(request, Request)
            verdict = decide(after, "dev", request)
            assert isinstance(verdict, Allow)
            assert verdict.bindings == ()


@settings(max_examples=150, deadline=None)
@given(ASKED)
def test_the_text_is_the_same_policy(one: list[tuple[str, str]]) -> None:
    wanted = [asked(url, method) for url, method in one]
    found = learn(POLICY, "dev", wanted, KNOWN)
    new = tuple(dict.fromkeys(p.endpoint for p in found.proposals if p.new))
    listed = ", ".join(f'"{name}"' for name in ("wild", *new))
    text = BASE.replace('endpoints = ["wild"]', f"endpoints = [{listed}]") + "\n".join(document(found.proposals)) + "\n"
    loaded = load(text)
    after = applied(POLICY, "dev", found.proposals)
    assert loaded.endpoints == after.endpoints
    assert loaded.roles["dev"].endpoints == after.roles["dev"].endpoints


@given(st.lists(PATHS.filter(lambda path: isinstance(normal_form(path.encode()), Path)), min_size=1, max_size=10))
def test_each_path_is_covered_by_one_pattern_that_says_no_more_than_ids(paths: list[str]) -> None:
    found = patterns(paths)
    assert sorted(path for group in found.values() for path in group) == sorted(set(paths))
    for text, group in found.items():
        pattern = PathPattern.parse(text)
        assert all(pattern.matches(path) for path in group)
        for at, part in enumerate(pattern.segments):
            values = {path.split("/")[1:][at] for path in group}
            assert part != "**"
            assert (part == "*") == (len(values) > 1)
            assert part != "*" or all(is_id(value) for value in values)


HOSTILE = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ['"]\n[role.dev]\nendpoints = ["evil"]\n#', "\x1b]0;x\x07", "/a\u2028[x]", "'''", '"""', "\\", "\ud800", "\x7f"]
)


@settings(max_examples=300, deadline=None)
@given(st.builds(
    Asked,
    reason=st.sampled_from([*(r.value for r in PROPOSABLE), "x\n[y]"]),
    method=HOSTILE | METHODS, scheme=HOSTILE | st.just("https"),
    host=HOSTILE | HOSTS, port=st.integers(0, 70000), path=HOSTILE | HOSTILE.map("/".__add__) | PATHS,
    query=st.frozensets(HOSTILE, max_size=2), first=HOSTILE, last=HOSTILE, rule=HOSTILE, hint=HOSTILE,
))  # fmt: skip
def test_nothing_of_a_jails_leaves_its_quotes(one: Asked) -> None:
    found = learn(POLICY, "dev", [one], KNOWN)
    lines = [*document(found.proposals), *(f"# {line}" for line in told_lines(found.told))]
    assert all(line.isprintable() for line in lines)
    parsed = tomllib.loads("\n".join(lines))
    assert set(parsed) <= {"endpoint"}
    for proposal in found.proposals:
        table = parsed["endpoint"].pop(proposal.endpoint)
        assert set(table) <= {"host", "port", "tls", "allow"}
        assert [rule["paths"] for rule in table["allow"]] == [[proposal.path]]
    assert not parsed.get("endpoint")


@given(HOSTILE)
def test_a_quoted_text_reads_back(text: str) -> None:
    assume("\ud800" not in text and not any("\ud800" <= c <= "\udfff" for c in text))
    assert tomllib.loads(f"x = {quoted(text)}") == {"x": text}
    assert quoted(text).isascii()
