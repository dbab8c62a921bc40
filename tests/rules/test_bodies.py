"""Body terms: what fits, what doesn't, and that what has two readings fits nothing."""

import dataclasses
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.bodies import MAX_NODES, Document, Unreadable, misfit, read
from rules.decide import decide
from rules.fieldpaths import ANY, FieldPath, FieldPathError
from rules.policy import BodyTerm, BodyType, FieldTest
from rules.request import Request
from rules.verdict import Allow, Deny
from tests.rules.policies import load
from tests.rules.tunnelled import tunnelled

JSON = b"application/json"
DEEP = 200_000


def request(body: bytes | None, content_type: bytes | None = JSON, path: bytes = b"/m") -> Request:
    fields = [] if content_type is None else [(b"content-type", content_type)]
    parsed = tunnelled(f"POST {path.decode()}", "a.example.org", *fields, has_body=True)
    return dataclasses.replace(parsed, body=body)


def term(**kw: Any) -> BodyTerm:
    tests = tuple(FieldTest(path=FieldPath.parse(p), values=v) for p, v in kw.pop("tests", {}).items())
    return BodyTerm(**{"type": BodyType.JSON, "max": 1 << 20, "tests": tests, **kw})


def fits(body: object, **tests: object) -> bool:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    wanted = {path: values if isinstance(values, tuple) else (values,) for path, values in tests.items()}
    return not misfit(term(tests=wanted), read(request(raw)))


@pytest.mark.parametrize(
    ("text", "steps", "optional"),
    [
        ("model", ("model",), False),
        ("a.b.c", ("a", "b", "c"), False),
        ("messages[0].role", ("messages", 0, "role"), False),
        ("m[0][12][*]", ("m", 0, 12, ANY), False),
        ("tools[*].type?", ("tools", ANY, "type"), True),
        ("a-b_$1", ("a-b_$1",), False),
    ],
)
def test_a_path_is_read(text: str, steps: tuple[object, ...], optional: bool) -> None:
    path = FieldPath.parse(text)
    assert (path.steps, path.optional) == (steps, optional)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "[0]",
        "a[]",
        "a[-1]",
        "a[01]",
        "a[x]",
        "a[0",
        "a b",
        "a?b",
        "a??",
        "é",
        "a\0",
        "a" * 65,
    ],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(FieldPathError):
        FieldPath.parse(text)


@pytest.mark.parametrize(
    ("body", "value", "same"),
    [
        ('{"a":"x"}', "x", True),
        ('{"a":"X"}', "x", False),
        ('{"a":"\\u0078"}', "x", True),
        ('{"a":1}', 1, True),
        ('{"a":1.0}', 1, False),
        ('{"a":true}', 1, False),
        ('{"a":1}', True, False),
        ('{"a":"1"}', 1, False),
        ('{"a":true}', True, True),
        ('{"a":null}', "null", False),
        ('{"a":["x"]}', "x", False),
        ('{"a":{"x":1}}', "x", False),
        ('{"a":-0}', 0, True),
        ('{"b":"x"}', "x", False),
        ('["x"]', "x", False),
        ('"x"', "x", False),
    ],
)
def test_equal_means_one_value_of_one_type(body: str, value: object, same: bool) -> None:
    assert fits(body.encode(), a=value) is same


@pytest.mark.parametrize(
    ("path", "body", "same"),
    [
        ("m[0].role", {"m": [{"role": "x"}, {"role": "y"}]}, True),
        ("m[1].role", {"m": [{"role": "x"}, {"role": "y"}]}, False),
        ("m[2].role", {"m": [{"role": "x"}]}, False),
        ("m[2].role?", {"m": [{"role": "x"}]}, True),
        ("m[*].role", {"m": [{"role": "x"}, {"role": "x"}]}, True),
        ("m[*].role", {"m": [{"role": "x"}, {"role": "y"}]}, False),
        ("m[*].role", {"m": [{"role": "x"}, {}]}, False),
        ("m[*].role?", {"m": [{"role": "x"}, {}]}, True),
        ("m[*].role", {"m": []}, True),
        ("m[*].role", {}, False),
        ("m[*].role?", {}, True),
        ("m[*].role?", {"m": None}, False),
        ("m[*].role?", {"m": {"role": "x"}}, False),
        ("m.role?", {"m": "x"}, False),
        ("m.role?", {"m": {"ROLE": "y"}}, False),
        ("m.role", {"m": {"role": "x", "ROLE": "y"}}, False),
        ("m.role", {"m": {"role": "x"}, "M": {"role": "y"}}, False),
    ],
)
def test_a_path_leads_where_it_says(path: str, body: object, same: bool) -> None:
    assert fits(body, **{path: "x"}) is same


@pytest.mark.parametrize(
    ("path", "body", "absent"),
    [
        ("a", {}, True),
        ("a", {"b": 1}, True),
        ("a", {"a": 1}, False),
        ("a", {"a": None}, False),
        ("a", {"A": 1}, False),
        ("a", {"\u212a": 1}, True),
        ("k", {"\u212a": 1}, False),  # the Kelvin sign folds to k, in Go's decoder too
        ("a.b", {"a": {"c": 1}}, True),
        ("a.b", {"a": {"b": 1}}, False),
        ("a.b", {"a": 1}, True),
        ("a[*].b", {"a": [{}, {"b": 1}]}, False),
        ("a[*].b", {"a": [{}, 3]}, True),
        ("a", [], True),
    ],
)
def test_absent_means_not_even_as_null_or_in_capitals(path: str, body: object, absent: bool) -> None:
    assert fits(body, **{path: ()}) is absent


def test_keys_are_all_that_may_be_there() -> None:
    listed = term(keys=frozenset({"a", "b"}))
    assert not misfit(listed, read(request(b'{"a":1}')))
    for body in (b'{"a":1,"c":1}', b'{"A":1}', b"[]", b'"a"', b"null"):
        assert misfit(listed, read(request(body)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}{}",
        b"{} x",
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\xff"}',
        b'{"a":1,"a":2}',
        b'{"x":[{"a":1,"a":2}]}',
        b'{"a":1,"\\u0061":2}',
        b'{"a\\u0000":1}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":"\n"}',
        b'{"a":01}',
        b'/**/{"a":1}',
        b'{"a":' + b"9" * 5000 + b"}",
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        zlib.compress(b"{}"),
    ],
)
def test_what_has_more_than_one_reading_has_none(body: bytes) -> None:
    found = read(request(body))
    assert isinstance(found, Unreadable)
    assert misfit(term(), found) == str(found)


@pytest.mark.parametrize(
    ("content_type", "good"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=UTF-8", True),
        (b'application/json;charset="utf-8"', True),
        (b"application/vnd.api+json", True),
        (None, False),
        (b"", False),
        (b"text/plain", False),
        (b"text/json", False),
        (b"application/x-www-form-urlencoded", False),
        (b"multipart/form-data; boundary=x", False),
        (b"application/json; charset=utf-7", False),
        (b"application/json, text/plain", False),
        (b"application/jsonp", False),
        (b"application/json; boundary=x", False),
    ],
)
def test_a_body_is_what_its_type_says(content_type: bytes | None, good: bool) -> None:
    assert isinstance(read(request(b"{}", content_type)), Document) is good


def test_two_types_are_none() -> None:
    one = request(b"{}")
    assert isinstance(read(dataclasses.replace(one, headers=(*one.headers, (b"Content-Type", JSON)))), Unreadable)


def test_max_counts_the_bytes() -> None:
    body = b'{"a":"' + b"x" * 92 + b'"}'
    assert not misfit(term(max=100), read(request(body)))
    assert misfit(term(max=99), read(request(body)))


GRAPHQL = BodyTerm(type=BodyType.GRAPHQL, max=1 << 20, operations=frozenset({"query.viewer", "mutation.createIssue"}))


def asked(query: object, **more: object) -> str:
    return misfit(GRAPHQL, read(request(json.dumps({"query": query, **more}).encode())))


@pytest.mark.parametrize(
    "query",
    [
        "{ viewer { login } }",
        "query { viewer { login } __typename }",
        "query Evil { alias: viewer { repository { deleteEverything } } }",
        "mutation M($t: String!) { createIssue(input: {title: $t}) { issue { id } } }",
        "query A { viewer { id } } query B { viewer { login } }",
        "{ ...F } fragment F on Query { viewer { id } }",
        "{ ... on Query { viewer { id } } }",
        "{ ... @include(if: true) { viewer { id } } }",
        '# deleteRepo\n{ viewer(a: "mutation { deleteRepo }") { id } }',
        '{ viewer(a: """block " } mutation { deleteRepo }""") { id } }',
        "{ viewer { ...F } } fragment F on User { ...F }",
    ],
)
def test_listed_operations_pass(query: str) -> None:
    assert asked(query) == ""


@pytest.mark.parametrize(
    "query",
    [
        "mutation { deleteRepo }",
        "mutation { viewer }",
        "query { createIssue }",
        "subscription { viewer }",
        "{ viewer: deleteRepo }",
        "{ viewer { id } deleteRepo }",
        "query A { viewer { id } } mutation B { deleteRepo }",
        "{ ...F } fragment F on Query { deleteRepo }",
        "{ ...F } fragment F on Query { ...G } fragment G on Query { deleteRepo }",
        "{ ... { ... on Query { deleteRepo } } viewer { id } }",
        "{ viewer { id } ... @skip(if: true) { deleteRepo } }",
        "{ __schema { types { name } } }",
        "{ viewer { id } } { deleteRepo }",
    ],
)
def test_what_is_not_listed_is_found_wherever_it_stands(query: str) -> None:
    assert asked(query).startswith("an operation that operations does not list")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "{",
        "viewer",
        "{ }",
        "{ viewer { id }",
        "{ ...Missing }",
        "fragment F on Query { viewer }",
        "type Query { viewer: Int }",
        "{ viewer } type Query { viewer: Int }",
        "{ ...F } fragment F on Query { viewer } fragment F on Query { deleteRepo }",
        "{ viewer \0 }",
        "{" + "a " * 30_000 + "}",
        "{" * DEEP,
        "{" + "...{" * 3000 + "viewer" + "}" * 3001,
        None,
        1,
        ["{ viewer { id } }"],
    ],
)
def test_what_is_no_document_fits_nothing(query: object) -> None:
    assert asked(query) != ""


@pytest.mark.parametrize(
    "body",
    [
        [{"query": "{ viewer { id } }"}],
        {},
        {"operationName": "A"},
        {"query": "{ viewer { id } }", "documentId": "x"},
        {"query": "{ viewer { id } }", "id": "x"},
        {"query": "{ viewer { id } }", "extensions": {"persistedQuery": {"sha256Hash": "x"}}},
        {"query": "{ viewer { id } }", "extensions": {"PersistedQuery": {}}},
        {"query": "{ viewer { id } }", "extensions": "x"},
        {"QUERY": "{ viewer { id } }"},
    ],
)
def test_stored_queries_and_batches_fit_nothing(body: object) -> None:
    assert misfit(GRAPHQL, read(request(json.dumps(body).encode()))) != ""


def test_variables_and_names_of_clients_change_nothing() -> None:
    more = {
        "variables": {"deleteRepo": 1},
        "operationName": "deleteRepo",
        "extensions": {"clientLibrary": {"name": "x"}},
    }
    assert asked("query deleteRepo { viewer { id } }", **more) == ""


def test_a_star_takes_every_field_of_its_type() -> None:
    every = BodyTerm(type=BodyType.GRAPHQL, max=1 << 20, operations=frozenset({"query.*"}))
    for query, good in (("{ a b }", True), ("{ __schema { x } }", True), ("mutation { a }", False)):
        assert (not misfit(every, read(request(json.dumps({"query": query}).encode())))) is good


RULES = """\
version = 1
[secret.s]
source = "env:S"
[endpoint.e]
host = "a.example.org"
[[endpoint.e.allow]]
id = "small"
methods = ["POST"]
paths = ["/m"]
body = { type = "json", max = "100B", equals = { "model" = "small" } }
[[endpoint.e.allow]]
id = "large"
methods = ["POST"]
paths = ["/m"]
body = { type = "json", max = "1KiB", equals = { "model" = "large" } }
[[endpoint.e.allow]]
id = "free"
methods = ["POST"]
paths = ["/free"]
[[endpoint.e.allow]]
id = "both"
methods = ["POST"]
paths = ["/free"]
body = { type = "json", equals = { "model" = "small" } }
"""
BOUND = '[binding.b]\nsecret = "s"\nendpoint = "e"\nrules = ["large", "both"]\nplace = "header:authorization"\n'
PLAIN, WITH = RULES + '[role.r]\nendpoints = ["e"]\n', RULES + BOUND + '[role.r]\nbindings = ["b"]\n'


def judged(policy: str, body: bytes | None, path: bytes = b"/m") -> Allow | Deny:
    return decide(load(policy), "r", request(body, path=path))


def test_a_head_asks_for_the_largest_body_of_its_rules() -> None:
    allow = judged(PLAIN, None)
    assert isinstance(allow, Allow)
    assert allow.body_max == 1024


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b'{"model":"small"}', "e.small"),
        (b'{"model":"large"}', "e.large"),
        (b'{"model":"large","x":"' + b"x" * 200 + b'"}', "e.large"),
        (b'{"model":"small","x":"' + b"x" * 200 + b'"}', ""),
        (b'{"model":"other"}', ""),
        (b"", ""),
        (b"x", ""),
    ],
)
def test_the_body_picks_the_rule(body: bytes, rule: str) -> None:
    verdict = judged(PLAIN, body)
    if rule:
        assert isinstance(verdict, Allow)
        assert (verdict.rule, verdict.body_max) == (rule, 0)
    else:
        assert isinstance(verdict, Deny)
        assert (verdict.reason, verdict.status) == ("body_refused", 403)
        assert "e.small" in verdict.hint


def test_a_secret_goes_with_the_rule_that_the_body_picked() -> None:
    for body, bindings in ((b'{"model":"small"}', 0), (b'{"model":"large"}', 1)):
        verdict = judged(WITH, body)
        assert isinstance(verdict, Allow)
        assert len(verdict.bindings) == bindings


def test_a_body_that_is_nobodys_business_is_not_read() -> None:
    without = judged(PLAIN, None, b"/free")
    assert isinstance(without, Allow)
    assert (without.rule, without.body_max) == ("e.free", 0)
    bound = judged(WITH, None, b"/free")
    assert isinstance(bound, Allow)
    assert bound.body_max > 0
    for body, rule in ((b'{"model":"small"}', "e.both"), (b"x", "e.free")):
        verdict = judged(WITH, body, b"/free")
        assert isinstance(verdict, Allow)
        assert (verdict.rule, len(verdict.bindings)) == (rule, int(rule == "e.both"))


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "A", "b", "model", "query"]), inner, max_size=3),
    ),
    max_leaves=12,
)
paths = st.sampled_from(["a", "a.b", "a[0]", "a[*].b", "model", "a.b?", "b[*][*]", "A"]).map(FieldPath.parse)
tests = st.lists(st.builds(FieldTest, path=paths, values=st.sampled_from([(), ("x",), (1,), (True, "a")])), max_size=3)
FUZZ = settings(max_examples=300, deadline=None)


@FUZZ
@given(
    st.one_of(
        st.binary(max_size=80), values.map(lambda v: json.dumps(v).encode()), st.text(max_size=80).map(str.encode)
    ),
    tests,
)
def test_any_bytes_are_judged_without_an_error(body: bytes, wanted: list[FieldTest]) -> None:
    found = read(request(body))
    for kind in (term(), GRAPHQL):
        assert isinstance(misfit(dataclasses.replace(kind, tests=tuple(wanted)), found), str)


@FUZZ
@given(values, tests, tests)
def test_more_tests_never_fit_more(value: object, wanted: list[FieldTest], more: list[FieldTest]) -> None:
    found = read(request(json.dumps(value).encode()))
    few, many = (BodyTerm(type=BodyType.JSON, max=1 << 20, tests=tuple(t)) for t in (wanted, wanted + more))
    assert misfit(few, found) == "" or misfit(many, found) != ""


@FUZZ
@given(st.text('{}()[]:!$@#,."\\ \nabqueryfragmentonmutationviewer…', max_size=60))
def test_any_text_is_parsed_or_refused(query: str) -> None:
    assert isinstance(asked(query), str)


@FUZZ
@given(values)
def test_equals_agrees_with_what_json_says(value: object) -> None:
    body = json.dumps({"a": value})
    [parsed] = json.loads(body).values()
    assert fits(body.encode(), a="x") is (isinstance(parsed, str) and parsed == "x")


@pytest.mark.parametrize("name", [b"Content_Type", b"CONTENT-TYPE", b"content_type"])
def test_a_second_type_in_another_spelling_is_a_second_one(name: bytes) -> None:
    """CGI and WSGI servers read an underscore as a hyphen."""
    one = request(b"{}")
    two = dataclasses.replace(one, headers=(*one.headers, (name, b"application/x-www-form-urlencoded")))
    assert isinstance(read(two), Unreadable)


def test_values_are_counted_before_they_are_made() -> None:
    assert isinstance(read(request(b"[" + b"0," * (MAX_NODES + 1) + b"0]")), Unreadable)
    assert isinstance(read(request(b"[" + b"0," * 1000 + b"0]")), Document)


GRAPH_RULES = """\
version = 1
[endpoint.e]
host = "a.example.org"
[[endpoint.e.allow]]
id = "graphql"
methods = ["POST"]
paths = ["/m"]
body = { type = "graphql", operations = ["query.viewer"] }
[[endpoint.e.allow]]
id = "listed"
methods = ["POST"]
paths = ["/listed"]
query = { allow = ["trace", "query", "Query"] }
body = { type = "graphql", operations = ["query.viewer"] }
[role.r]
endpoints = ["e"]
"""


@pytest.mark.parametrize(
    ("target", "passes"),
    [
        (b"/m", True),
        (b"/m?", True),
        (b"/m?query=mutation%7Bx%7D", False),
        (b"/m?QUERY=x", False),
        (b"/m?%71uery=x", False),
        (b"/m?id=1", False),
        (b"/m?trace=1", False),
        (b"/listed?trace=1", True),
        (b"/listed?query=x", False),
        (b"/listed?Query=x", False),
    ],
)
def test_a_graphql_request_is_in_its_body_alone(target: bytes, passes: bool) -> None:
    """Several servers take `query` from the target before they look into the body."""
    verdict = judged(GRAPH_RULES, b'{"query": "{ viewer { id } }"}', target)
    assert isinstance(verdict, Allow) is passes


@pytest.mark.parametrize(
    ("target", "passes"),
    [(b"/m", True), (b"/m?page=1", True), (b"/m?model=x", False), (b"/m?MODEL[0]=x", False), (b"/m?model.a=x", False)],
)
def test_a_field_that_is_tested_is_not_in_the_query_too(target: bytes, passes: bool) -> None:
    assert isinstance(judged(PLAIN, b'{"model":"small"}', target), Allow) is passes
