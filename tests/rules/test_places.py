"""What a place's writing does to the rest: nothing. Each result is read back by a parser that is not ours."""

import copy
import dataclasses
import json
import re
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rules import bodies, places
from rules.bodies import Unreadable, read
from rules.cookies import cookies_of, is_plain
from rules.fieldpaths import FieldPath
from rules.foreign import check_credentials
from rules.forms import read_form
from rules.hosts import HostPattern
from rules.inject import InjectError, injected, path_for_records, rewrite
from rules.jsonfield import FieldError, find, with_value
from rules.paths import Path, PathPattern, normal_form
from rules.places import Held, held, overlap, place_text
from rules.policy import AllowRule, Binding, Endpoint, Mode, PlaceKind
from rules.queries import encoded, likeness, names_of, parameters, rewritten
from rules.request import Request, Via
from rules.verdict import Allow

MANY = settings(max_examples=150, deadline=None)
RULE = AllowRule(
    id="a",
    methods=frozenset({"GET", "POST"}),
    paths=(PathPattern.parse("/{token}/x"), PathPattern.parse("/a/**")),
    encoded_slash=True,
)
ENDPOINT = Endpoint(name="e", host=HostPattern.parse("a.example"), port=443, dial_port=443, allow=(RULE,))
JSON_TYPE = (b"content-type", b"application/json")
FORM_TYPE = (b"content-type", b"application/x-www-form-urlencoded")

secrets_ = st.text(min_size=1, max_size=40).filter(lambda t: "\0" not in t and t.isprintable())
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
queries = st.lists(st.from_regex(r"[a-c%20_+=.\[\]-]{0,6}", fullmatch=True), max_size=6).flatmap(
    lambda parts: st.sampled_from("&;").map(lambda mark: mark.join(parts))
)


def bound(kind: PlaceKind, slot: str, text: str = "{secret}") -> Binding:
    path = FieldPath.parse(slot) if kind is PlaceKind.JSON else None
    return Binding(
        name="b", secret="s", endpoint="e", rules=frozenset({"a"}), place=kind, slot=slot, json_path=path, format=text
    )


def request(target: str = "/a/b", *headers: tuple[bytes, bytes], body: bytes | None = None) -> Request:
    path, _, query = target.partition("?")
    return Request(
        via=Via.DIRECT,
        http_version="HTTP/1.1",
        method="POST",
        scheme="https",
        host="a.example",
        port=443,
        path=path,
        target=target,
        query_names=names_of(query),
        headers=((b"host", b"a.example"), *headers),
        body=body,
    )


def allow(*bindings: Binding) -> Allow:
    return Allow(rule="e.a", endpoint=ENDPOINT, bindings=bindings)


# -- query -----------------------------------------------------------------------------------------------------------


@MANY
@given(queries, anything)
@example("", "x")
@example("&&", "a&b=c")
def test_a_parameter_is_written_and_every_other_one_stays(query: str, secret: str) -> None:
    sent = rewritten(query, lambda _: False, [("key", encoded(secret))])
    before = [one.raw for one in parameters(query) if one.raw]
    after = [one for one in parameters(sent) if one.raw]
    assert [one.raw for one in after if one.name != "key"] == before
    assert [one.value for one in after if one.name == "key"] == [secret]


@MANY
@given(st.lists(st.tuples(st.text("abk&= +;%é", max_size=4), st.text(max_size=6)), max_size=6), anything)
def test_python_reads_the_same_query(pairs: list[tuple[str, str]], secret: str) -> None:
    pairs = [(name, value.replace("\ud800", "")) for name, value in pairs if name != "key"]
    query = urlencode(pairs, errors="ignore")
    sent = rewritten(query, lambda _: False, [("key", encoded(secret))])
    clean = parse_qsl(query, keep_blank_values=True)
    assert parse_qsl(sent, keep_blank_values=True) == [*clean, ("key", secret)]


@MANY
@given(queries)
def test_a_query_is_taken_apart_and_put_together(query: str) -> None:
    found = parameters(query)
    assert "".join(one.lead + one.raw for one in found) == query
    assert tuple(one.name for one in found if one.raw) == names_of(query)


@MANY
@given(queries, secrets_)
def test_what_is_written_over_stands_there_once(query: str, secret: str) -> None:
    asked = request(f"/a/b?{query}&api_key=mine")
    binding = bound(PlaceKind.QUERY, "api_key")
    if held(asked, binding, ENDPOINT).trouble:
        return
    out = rewrite(asked, allow(binding), {"s": secret}, {})
    again = parameters(out.target.partition("?")[2])
    assert [one.value for one in again if likeness(one.name) == "api_key"] == [secret]
    assert "mine" not in out.target or "mine" in secret
    assert re.fullmatch(r"[\x21-\x7e]*", out.target)


@pytest.mark.parametrize("name", ["Key", "KEY", "k.ey", "key[0]", "key%5B%5D", "key%00x", "%6bey", "key", "+key"])
def test_names_that_some_server_takes_for_the_same_are_troublesome(name: str) -> None:
    binding = bound(PlaceKind.QUERY, "k_ey" if "." in name else "key")
    one = held(request(f"/a/b?{name}=1"), binding, ENDPOINT)
    assert one.trouble or one == Held(values=("1",))
    assert held(request(f"/a/b?{name}=1&{binding.slot}=2"), binding, ENDPOINT).trouble


def test_a_credential_of_the_query_goes_with_its_separator() -> None:
    for query, left in (
        ("token=a", "/a/b"),
        ("token=a&x=1", "/a/b?x=1"),
        ("x=1&token=a", "/a/b?x=1"),
        ("x=1;access_token=a&y", "/a/b?x=1&y"),
        ("%74oken=a&x=%20", "/a/b?x=%20"),
        ("x=1&y=2", "/a/b?x=1&y=2"),
        ("", "/a/b?"),
    ):
        assert rewrite(request(f"/a/b?{query}"), allow(), {}, {}).target == left


# -- path ------------------------------------------------------------------------------------------------------------


@MANY
@given(anything)
@example("a/b")
@example("..")
@example("%41")
@example("a;b")
@example("\u2025")  # NFKC makes two dots of it
def test_a_segment_stays_one_segment(secret: str) -> None:
    binding = bound(PlaceKind.PATH, "token", "bot{secret}")
    try:
        out = rewrite(request("/any/x?q=1"), allow(binding), {"s": secret}, {})
    except InjectError:
        return
    path, _, query = out.target.partition("?")
    _, segment, last = path.split("/")
    assert (last, query) == ("x", "q=1")
    assert unquote(segment) == f"bot{secret}"
    assert isinstance(normal_form(path.encode()), Path)


@pytest.mark.parametrize("secret", ["a/b", "a%41", "a;b", "a\\b", "a\x7f", "é\u2100"])
def test_a_secret_that_no_segment_carries_is_an_error(secret: str) -> None:
    with pytest.raises(InjectError):
        rewrite(request("/any/x"), allow(bound(PlaceKind.PATH, "token")), {"s": secret}, {})


@pytest.mark.parametrize("secret", ["..", "."])
def test_a_secret_that_is_a_dot_segment_is_an_error(secret: str) -> None:
    with pytest.raises(InjectError):
        rewrite(request("/any/x"), allow(bound(PlaceKind.PATH, "token")), {"s": secret}, {})
    assert rewrite(request("/any/x"), allow(bound(PlaceKind.PATH, "token", "bot{secret}")), {"s": secret}, {})


def test_a_record_has_the_name_in_place_of_the_segment() -> None:
    assert path_for_records(request("/bot123/x"), allow(bound(PlaceKind.PATH, "token"))) == "/{b}/x"
    assert path_for_records(request("/a/b"), allow(bound(PlaceKind.QUERY, "token"))) == "/a/b"


def test_a_path_that_two_patterns_read_differently_is_troublesome() -> None:
    two = AllowRule(
        id="a", methods=frozenset({"POST"}), paths=tuple(map(PathPattern.parse, ("/{token}/*", "/*/{token}")))
    )
    endpoint = dataclasses.replace(ENDPOINT, allow=(two,))
    assert held(request("/x/y"), bound(PlaceKind.PATH, "token"), endpoint).trouble


# -- cookies ---------------------------------------------------------------------------------------------------------


@MANY
@given(st.binary(max_size=60).filter(lambda raw: not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", raw)))
@example(b'a="x; sid=y"; b=1')
@example(b"$Version=1; a=b; $Path=/")
def test_a_cookie_is_the_last_and_none_beside_it_is_a_credential(raw: bytes) -> None:
    binding = bound(PlaceKind.COOKIE, "sid")
    asked = request("/a/b", (b"Cookie", raw))
    if held(asked, binding, ENDPOINT).trouble:
        return
    fields = rewrite(asked, allow(binding), {"s": "SECRET"}, {}).fields
    (value,) = [v for n, v in fields if n.lower() == b"cookie"]
    pairs = value.decode("ascii").split("; ")
    assert pairs[-1] == "sid=SECRET"
    assert all(is_plain(cookie) for cookie in cookies_of(((b"cookie", "; ".join(pairs[:-1]).encode()),)))
    assert SimpleCookie(value.decode())["sid"].value == "SECRET"


@MANY
@given(anything)
def test_a_cookie_carries_what_a_cookie_can(secret: str) -> None:
    binding = bound(PlaceKind.COOKIE, "sid")
    try:
        fields = rewrite(request("/a/b", (b"Cookie", b"a=b")), allow(binding), {"s": secret}, {}).fields
    except InjectError:
        assert re.search(r'[^\x21-\x7e]|[",;\\]', secret)
        return
    assert (b"cookie", f"a=b; sid={secret}".encode()) in fields


@pytest.mark.parametrize(
    "name", ["SID", "session_id", "PHPSESSID", "auth", "x-csrf", "remember_me", "jwt", "a b", "$Path", ""]
)
def test_cookies_of_these_names_are_credentials(name: str) -> None:
    assert not any(is_plain(one) for one in cookies_of(((b"cookie", f"{name}=1".encode()),)))


# -- JSON ------------------------------------------------------------------------------------------------------------

leaves = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text('aé"\\\n{}[],:', max_size=5)
keys = st.sampled_from(["a", "b", "c", "d e", "é", '"'])
documents = st.recursive(leaves, lambda sub: st.lists(sub, max_size=3) | st.dictionaries(keys, sub, max_size=4))
styles = st.sampled_from([(None, None), (2, None), (None, (",", ":")), (None, (" , ", " : "))])
field_paths = st.lists(st.sampled_from(["a", "b", "c"]) | st.integers(0, 3), min_size=1, max_size=4).map(tuple)


def placed(value: Any, steps: tuple[str | int, ...], text: str) -> Any:
    """The same by plain assignment; None where it can't be done."""
    made = copy.deepcopy(value)
    at = made
    for i, step in enumerate(steps):
        last = i == len(steps) - 1
        if isinstance(step, str):
            if not isinstance(at, dict):
                return None
            if last:
                at[step] = text
            elif step not in at:
                at[step] = {}
            at = at[step]
        else:
            if not isinstance(at, list) or step >= len(at):
                return None
            if last:
                at[step] = text
            at = at[step]
    return made


@settings(max_examples=400, deadline=None)
@given(documents, field_paths, styles, st.booleans(), anything)
def test_a_field_is_written_and_every_other_one_stays(
    value: Any, steps: tuple[str | int, ...], style: tuple[Any, Any], plain: bool, secret: str
) -> None:
    text = json.dumps(value, indent=style[0], separators=style[1], ensure_ascii=plain)
    wanted = placed(value, steps, secret)
    try:
        found = find(text, steps)
    except FieldError:
        assert wanted is None
        return
    sent = with_value(text, found, secret)
    assert json.loads(sent) == wanted
    assert sent.startswith(text[: found.start])
    assert sent.endswith(text[found.end :])
    assert list(json.loads(sent)) == list(wanted) if isinstance(wanted, dict) else True


@MANY
@given(st.text('{}[]",:ab1.e-\\ \n', max_size=30), field_paths)
def test_no_text_breaks_the_search(text: str, steps: tuple[str | int, ...]) -> None:
    try:
        found = find(text, steps)
    except FieldError:
        return
    assert 0 <= found.start <= found.end <= len(text)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"a":1}' * 3, "", " ", '{"a":', '{"a" 1}', "\ufeff{}"]
)
def test_what_is_no_document_has_no_field(text: str) -> None:
    asked = request("/a/b", JSON_TYPE, body=text.encode())
    assert isinstance(read(asked), Unreadable)
    assert held(asked, bound(PlaceKind.JSON, "a"), ENDPOINT).trouble


def test_a_body_written_anew_says_its_own_length_and_no_digest_of_the_old_one() -> None:
    headers = (
        JSON_TYPE,
        (b"Content-Length", b"2"),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Digest", b"x"),
        (b"Accept", b"a"),
    )
    out = rewrite(request("/a/b", *headers, body=b"{}"), allow(bound(PlaceKind.JSON, "k")), {"s": "v"}, {})
    assert out.body == b'{"k":"v"}'
    assert out.fields == ((b"host", b"a.example"), JSON_TYPE, (b"Accept", b"a"), (b"content-length", b"9"))


def test_a_body_that_was_not_read_is_sent_nowhere() -> None:
    with pytest.raises(InjectError):
        rewrite(request("/a/b", JSON_TYPE), allow(bound(PlaceKind.JSON, "k")), {"s": "v"}, {})


def test_two_fields_of_one_body() -> None:
    pair = dataclasses.replace(bound(PlaceKind.JSON, "auth.id"), name="c", secret="t")
    body = b'{"auth": {"key": "x"}}'
    out = rewrite(
        request("/a/b", JSON_TYPE, body=body), allow(bound(PlaceKind.JSON, "auth.key"), pair), {"s": "k", "t": "i"}, {}
    )
    assert out.body == b'{"auth": {"key": "k","id":"i"}}'


# -- forms -----------------------------------------------------------------------------------------------------------


@MANY
@given(st.lists(st.tuples(st.text("ab&= +;%é", max_size=4), st.text("ab&=+%é\n;", max_size=6)), max_size=5), anything)
def test_a_form_is_read_back_with_its_field_alone_changed(pairs: list[tuple[str, str]], secret: str) -> None:
    body = urlencode(pairs).encode()
    binding = bound(PlaceKind.FORM, "key")
    out = rewrite(request("/a/b", FORM_TYPE, body=body), allow(binding), {"s": secret}, {})
    assert parse_qsl((out.body or b"").decode(), keep_blank_values=True) == [
        *parse_qsl(body.decode(), keep_blank_values=True),
        ("key", secret),
    ]
    again = read_form(request("/a/b", FORM_TYPE, body=out.body))
    assert not isinstance(again, str)
    assert [one.value for one in again if one.name == "key"] == [secret]


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60))
@example(b"a=%zz")
@example(b"a=%c0%af")
@example(b"a=1;b=2")
@example(b"a=%00")
def test_any_bytes_are_a_form_or_are_not(body: bytes) -> None:
    read = read_form(request("/a/b", FORM_TYPE, body=body))
    if isinstance(read, str):
        assert str(body) not in read
        return
    assert [(one.name, one.value) for one in read if one.raw] == parse_qsl(
        body.decode(), keep_blank_values=True, max_num_fields=100
    )


@pytest.mark.parametrize(
    "types",
    [
        (),
        (FORM_TYPE, FORM_TYPE),
        (JSON_TYPE,),
        ((b"content-type", b"application/x-www-form-urlencoded; charset=latin-1"),),
    ],
)
def test_a_form_has_its_type(types: tuple[tuple[bytes, bytes], ...]) -> None:
    assert isinstance(read_form(request("/a/b", *types, body=b"a=1")), str)


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (bound(PlaceKind.QUERY, "a_b"), bound(PlaceKind.QUERY, "A-B"), True),
        (bound(PlaceKind.QUERY, "a"), bound(PlaceKind.QUERY, "b"), False),
        (bound(PlaceKind.QUERY, "a"), bound(PlaceKind.FORM, "a"), False),
        (bound(PlaceKind.JSON, "a.b"), bound(PlaceKind.JSON, "a"), True),
        (bound(PlaceKind.JSON, "a.b"), bound(PlaceKind.JSON, "a.c"), False),
        (bound(PlaceKind.JSON, "a[0].b"), bound(PlaceKind.JSON, "a[1].b"), False),
        (bound(PlaceKind.HEADER, ""), dataclasses.replace(bound(PlaceKind.BASIC, ""), format="x:{secret}"), True),
        (bound(PlaceKind.PATH, "a"), bound(PlaceKind.PATH, "b"), False),
    ],
)
def test_which_places_overlap(one: Binding, other: Binding, shared: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is shared


def test_a_place_is_called_as_the_policy_writes_it() -> None:
    names = [place_text(bound(kind, "a")) for kind in PlaceKind if kind is not PlaceKind.HEADER]
    assert names == ["basic", "query:a", "path:a", "cookie:a", "json:a", "form:a", "sigv4", "certificate"]
    assert place_text(bound(PlaceKind.HEADER, "")) == "header:authorization"


@pytest.mark.parametrize("kind", [PlaceKind.QUERY, PlaceKind.COOKIE])
def test_a_place_without_its_placeholder_is_cleared(kind: PlaceKind) -> None:
    binding = dataclasses.replace(bound(kind, "odd"), mode=Mode.PLACEHOLDER)
    asked = request("/a/b?odd=mine&x=1", (b"Cookie", b"odd=mine; x=1"))
    out = rewrite(asked, allow(binding), {}, {"b": "decoy"})
    assert b"mine" not in b" ".join(value for _, value in out.fields)
    if kind is PlaceKind.QUERY:
        assert out.target == "/a/b?x=1"


def test_a_body_is_read_once_for_the_whole_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    parse, look = bodies.parse, places.find
    monkeypatch.setattr(bodies, "parse", lambda body: reads.append("parse") or parse(body))
    monkeypatch.setattr(places, "find", lambda *given: reads.append("find") or look(*given))
    binding = dataclasses.replace(bound(PlaceKind.JSON, "auth.token"), mode=Mode.PLACEHOLDER)
    decoys, decoy = {"b": "tok_" + "a" * 36}, b"tok_" + b"a" * 36
    asked, allowed = request("/a/b", JSON_TYPE, body=b'{"auth": {"token": "%b"}}' % decoy), allow(binding)
    assert check_credentials(asked, allowed, decoys, ()) is allowed
    assert injected(asked, allowed, decoys) == (binding,)
    assert rewrite(asked, allowed, {"s": "value-of-s"}, decoys).body == b'{"auth": {"token": "value-of-s"}}'
    assert sorted(reads) == ["find", "parse"]
    other = dataclasses.replace(asked, body=b'{"auth": {"token": "other"}}')
    assert not injected(other, allowed, decoys)  # another body is read anew


def test_a_key_that_is_no_text_ends_the_search() -> None:
    with pytest.raises(FieldError):
        find('{1:2,"a":"b"}', ("a",))
