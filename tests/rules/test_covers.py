from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.covers import covers_address, covers_host, covers_path, covers_rule, overlaps, paths_meet, strictness
from rules.fieldpaths import FieldPath
from rules.hosts import HostPattern
from rules.paths import PathPattern
from rules.policy import AllowRule, BodyTerm, BodyType, FieldTest, Foreign


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("a.example.org", "a.example.org", True),
        ("a.example.org", "b.example.org", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "a.b.example.org", False),
        ("*.example.org", "example.org", False),
        ("**.example.org", "a.b.example.org", True),
        ("**.example.org", "*.example.org", True),
        ("**.example.org", "**.b.example.org", True),
        ("**.example.org", "**.example.net", False),
        ("*.example.org", "**.example.org", False),
        ("*.example.org", "*.b.example.org", False),
        ("a.example.org", "*.example.org", False),
    ],
)
def test_hosts(outer: str, inner: str, expected: bool) -> None:
    assert covers_host(HostPattern.parse(outer), HostPattern.parse(inner)) is expected


def test_overlap_is_cover_one_way_or_the_other() -> None:
    one, other = HostPattern.parse("*.example.org"), HostPattern.parse("a.example.org")
    assert overlaps(one, other)
    assert overlaps(other, one)
    assert not overlaps(one, HostPattern.parse("a.example.net"))


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("/**", "/a/*/b", True),
        ("/**", "/", True),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/*", True),
        ("/a/*", "/a/**", False),
        ("/a/*", "/a/", False),
        ("/a/**", "/a", True),
        ("/a/**", "/a/*/**", True),
        ("/a/b", "/a/*", False),
        ("/**/x", "/a/b/x", True),
        ("/**/x", "/**", False),
        ("/a/**/c/**", "/a/b/c", True),
        ("/a", "/A", False),
        ("/a/**", "/ab", False),
    ],
)
def test_paths(outer: str, inner: str, expected: bool) -> None:
    assert covers_path(PathPattern.parse(outer), PathPattern.parse(inner)) is expected


SEGMENT = st.sampled_from(["a", "b", "*", "**"])
PATTERN = st.lists(SEGMENT, min_size=1, max_size=5).map(lambda parts: PathPattern.parse("/" + "/".join(parts)))
PATH = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts))


@settings(max_examples=400, deadline=None)
@given(PATTERN, PATTERN, PATH)
def test_what_is_covered_lets_nothing_more_through(outer: PathPattern, inner: PathPattern, path: str) -> None:
    if covers_path(outer, inner) and inner.matches(path):
        assert outer.matches(path)


@settings(max_examples=100, deadline=None)
@given(PATTERN)
def test_a_pattern_covers_itself(pattern: PathPattern) -> None:
    assert covers_path(pattern, pattern)


def test_many_double_stars_stay_cheap() -> None:
    wide = PathPattern.parse("/" + "/".join(["**", "a"] * 60))
    assert not covers_path(wide, PathPattern.parse("/" + "/".join(["**", "b"] * 60)))


def rule(methods: str = "GET", paths: str = "/a", query: str | None = None, slash: bool = False) -> AllowRule:
    return AllowRule(
        id="r",
        methods=frozenset(methods.split()),
        paths=tuple(PathPattern.parse(p) for p in paths.split()),
        query=None if query is None else frozenset(query.split()),
        encoded_slash=slash,
    )


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (rule(), True),
        (rule(methods="GET POST"), False),
        (rule(paths="/a /b"), False),
        (rule(query="page"), True),
        (rule(slash=True), False),
    ],
)
def test_rules_under_a_plain_one(inner: AllowRule, expected: bool) -> None:
    assert covers_rule(rule(), inner) is expected


def test_rules_under_one_that_lists_query_names() -> None:
    outer = rule(query="page per_page", slash=True)
    assert covers_rule(outer, rule(query="page", slash=True))
    assert not covers_rule(outer, rule(query="page token"))
    assert not covers_rule(outer, rule())


def test_addresses() -> None:
    networks, pins = (ip_network("10.0.0.0/8"), ip_network("fd00::/16")), (ip_address("192.168.1.1"),)
    for inside in (
        ip_network("10.2.0.0/16"),
        ip_address("10.2.3.4"),
        ip_address("192.168.1.1"),
        ip_network("fd00::/32"),
    ):
        assert covers_address(networks, pins, inside)
    for outside in (
        ip_network("10.0.0.0/7"),
        ip_address("192.168.1.2"),
        ip_address("fd01::1"),
        ip_network("192.168.1.0/24"),
    ):
        assert not covers_address(networks, pins, outside)


def test_deny_is_the_strictest() -> None:
    assert strictness(Foreign.DENY) < strictness(Foreign.STRIP) < strictness(Foreign.ALLOW)


def bodied(body: BodyTerm | None, *, upgrade: bool = False) -> AllowRule:
    return AllowRule(id="r", methods=frozenset({"POST"}), paths=(PathPattern.parse("/m"),), body=body, upgrade=upgrade)


def term(kind: BodyType = BodyType.JSON, **kw: Any) -> BodyTerm:
    tests = tuple(FieldTest(path=FieldPath.parse(p), values=v) for p, v in kw.pop("tests", {}).items())
    return BodyTerm(**{"type": kind, "max": 100, "tests": tests, **kw})


OPERATIONS = {name: term(BodyType.GRAPHQL, operations=frozenset({name})) for name in ("query.a", "query.b", "query.*")}


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        (None, term(), True),
        (term(), None, False),
        (term(), term(), True),
        (term(max=100), term(max=99), True),
        (term(max=99), term(max=100), False),
        (term(), term(tests={"a": (1,)}), True),
        (term(tests={"a": (1,)}), term(), False),
        (term(tests={"a": (1, 2)}), term(tests={"a": (1,)}), True),
        (term(tests={"a": (1,)}), term(tests={"a": (1, 2)}), False),
        (term(tests={"a": (1,)}), term(tests={"a": (True,)}), False),
        (term(tests={"a": (1,)}), term(tests={"b": (1,)}), False),
        (term(tests={"a?": (1,)}), term(tests={"a": (1,)}), True),
        (term(tests={"a": (1,)}), term(tests={"a?": (1,)}), False),
        (term(tests={"a": ()}), term(tests={"a": ()}), True),
        (term(tests={"a": ()}), term(tests={"a": (1,)}), False),
        (term(tests={"a": (1,)}), term(tests={"a": ()}), False),
        (term(keys=frozenset({"a", "b"})), term(keys=frozenset({"a"})), True),
        (term(keys=frozenset({"a"})), term(), False),
        (term(), OPERATIONS["query.a"], False),
        (OPERATIONS["query.*"], OPERATIONS["query.a"], True),
        (OPERATIONS["query.a"], OPERATIONS["query.*"], False),
        (OPERATIONS["query.a"], OPERATIONS["query.b"], False),
    ],
)
def test_bodies(outer: BodyTerm | None, inner: BodyTerm | None, expected: bool) -> None:
    assert covers_rule(bodied(outer), bodied(inner)) is expected


def test_upgrades() -> None:
    assert covers_rule(bodied(None, upgrade=True), bodied(None))
    assert not covers_rule(bodied(None), bodied(None, upgrade=True))


PARTS = st.sampled_from(["a", "b", "*", "**", "*:run", "a:run"])
PLAIN = st.lists(st.sampled_from(["a", "b", "a:run", "b:run"]), max_size=4)


@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(PARTS, min_size=1, max_size=4), PLAIN)
def test_patterns_that_share_a_path_meet(one: list[str], other: list[str], parts: list[str]) -> None:
    first, second = (PathPattern.parse("/" + "/".join(words)) for words in (one, other))
    path = "/" + "/".join(parts)
    if first.matches(path) and second.matches(path):
        assert paths_meet(first, second)
    assert paths_meet(first, second) == paths_meet(second, first)
    assert paths_meet(first, first)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("/a/*", "/a/b", True), ("/a/*", "/a", False), ("/a/*", "/a/b/c", False), ("/**", "/x/y", True),
        ("/a/**/z", "/a/b", False), ("/a/**/z", "/a/*/*/z", True), ("/a", "/b", False), ("/*:run", "/x:run", True),
        ("/*:run", "/x:stop", False), ("/a/**", "/a", True),
    ],
)  # fmt: skip
def test_paths_meet(one: str, other: str, meet: bool) -> None:
    assert paths_meet(PathPattern.parse(one), PathPattern.parse(other)) is meet
