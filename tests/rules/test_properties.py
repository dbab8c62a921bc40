"""Invariants over any input.

The normal form is a fixed point; parse_request raises nothing; what it takes is what was sent; deny wins in any order
of rules; more in a request never gets more allowed; no header of the client can carry a credential past rewrite.
"""

import dataclasses
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rules.addresses import FLOOR, AddressClass, classify, closed
from rules.credentials import fold_name, is_credential_header
from rules.decide import decide, decide_connect
from rules.hosts import AddressLiteral, HostError, HostPattern, normalize_host
from rules.inject import rewrite
from rules.names import NameTable, NameVerdict, decide_name
from rules.parse import parse_request
from rules.paths import Ambiguity, Path, PathPattern, normal_form, readings_of
from rules.policy import AllowRule, Binding, DenyRule, Endpoint, Foreign, PlaceKind, Policy, Role
from rules.request import Request, Via, Wire
from rules.verdict import Allow, Deny, Tunnel

HOST = "api.good.test"
FUZZ = settings(max_examples=300)

segment = st.text("abAB._-~%25ef2F;\\*@:é/", max_size=6)
path_text = st.lists(segment, max_size=5).map(lambda parts: "/" + "/".join(parts))
path_bytes = st.one_of(st.binary(max_size=40).map(lambda raw: b"/" + raw), path_text.map(str.encode))
word = st.sampled_from(["a", "b", "c", "a%2fb", "A", "x.json"])
clean_path = st.lists(word, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
# half of them are taken, so that the properties of what is taken are tried
wire_path = st.one_of(path_bytes, clean_path.map(str.encode))
pattern = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=4).map(
    lambda parts: PathPattern.parse("/" + "/".join(parts))
)
methods = st.sets(st.sampled_from(["GET", "HEAD", "POST"]), min_size=1).map(frozenset)
allow_rules = st.lists(
    st.builds(
        AllowRule,
        id=st.sampled_from(["r1", "r2", "r3"]),
        methods=methods,
        paths=st.lists(pattern, min_size=1, max_size=2).map(tuple),
        query=st.one_of(st.none(), st.sets(st.sampled_from(["p", "q"])).map(frozenset)),
        encoded_slash=st.booleans(),
    ),
    max_size=4,
).map(tuple)
deny_rules = st.lists(
    st.builds(
        DenyRule,
        id=st.just("d"),
        methods=st.one_of(st.none(), methods),
        paths=st.lists(pattern, min_size=1, max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)
token = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(str.encode)
field = st.tuples(
    st.one_of(token, st.sampled_from([b"authorization", b"X_Api_Key", b"cookie", b"connection", b"x-forwarded-for"])),
    st.sampled_from([b"a", b"Bearer CLIENT", b"Basic Q0xJRU5U", b"close, x-a"]),
)
headers = st.lists(field, max_size=6).map(tuple)


def policy_of(
    allow: tuple[AllowRule, ...], deny: tuple[DenyRule, ...], foreign: Foreign = Foreign.STRIP, bound: bool = False
) -> Policy:
    target = Endpoint(
        name="e",
        host=HostPattern.parse(HOST),
        port=443,
        dial_port=443,
        allow=allow,
        deny=deny,
        foreign=foreign,
    )
    binding = Binding(name="b", secret="s", endpoint="e", rules=frozenset({"r1"}), place=PlaceKind.HEADER)
    return Policy(
        sha256="0",
        endpoints={"e": target},
        bindings={"b": binding},
        roles={"dev": Role(name="dev", endpoints=("e",), bindings=("b",) if bound else ())},
    )


def request(method: str, path: str, names: tuple[str, ...] = (), sent: tuple[tuple[bytes, bytes], ...] = ()) -> Request:
    query = "&".join(names)
    return Request(
        via=Via.CONNECT,
        http_version="HTTP/1.1",
        method=method,
        scheme="https",
        host=HOST,
        port=443,
        path=path,
        target=f"{path}?{query}" if query else path,
        query_names=names,
        headers=sent,
        encoded_slash="%2f" in path,
    )


def is_allowed(policy: Policy, asked: Request) -> bool:
    return isinstance(decide(policy, "dev", asked), Allow)


@FUZZ
@given(wire_path)
@example(b"/a%2f..%2fb")
@example(b"/%c0%ae%c0%ae/")
def test_a_path_in_normal_form_stays_as_it_is(raw: bytes) -> None:
    normal = normal_form(raw)
    if isinstance(normal, Ambiguity):
        return
    assert isinstance(normal, Path)
    assert normal.text.encode() == raw
    assert normal_form(normal.text.encode()) == normal
    assert not {".", "..", ""} & set(normal.text.split("/")[1:-1])


@FUZZ
@given(wire_path, st.one_of(path_text, clean_path))
@example(b"/a%2Fb", "/a%2fb")
@example(b"/A", "/a")
def test_no_other_path_matches_an_exact_pattern(raw: bytes, text: str) -> None:
    normal, pattern_form = normal_form(raw), normal_form(text.encode())
    if isinstance(normal, Ambiguity) or isinstance(pattern_form, Ambiguity) or "*" in text:
        return
    assert PathPattern.parse(text).matches(normal.text) is _same(text, normal.text)


def _same(left: str, right: str) -> bool:
    """Equal but for the case of hex digits."""
    parts, others = left.split("%"), right.split("%")
    return len(parts) == len(others) and all(
        a[:2].upper() + a[2:] == b[:2].upper() + b[2:] if i else a == b
        for i, (a, b) in enumerate(zip(parts, others, strict=True))
    )


@FUZZ
@given(pattern, clean_path)
def test_a_deny_reading_is_never_narrower_than_a_match(rule: PathPattern, path: str) -> None:
    if rule.matches(path):
        assert rule.could_mean(readings_of(path))


@FUZZ
@given(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda s: s.encode("utf-8", "surrogatepass"))))
def test_a_host_is_a_fixed_point_or_refused(raw: bytes) -> None:
    try:
        normal = normalize_host(raw)
    except HostError:
        return
    if not isinstance(normal, AddressLiteral):
        assert normalize_host(normal.encode()) == normal
        assert raw.lower() in (normal.encode(), normal.encode() + b".")


@FUZZ
@given(st.text(max_size=30))
@example("*.é.example")
@example("[::1")
def test_a_pattern_is_parsed_or_refused_with_a_hint(text: str) -> None:
    try:
        parsed = HostPattern.parse(text)
    except HostError as error:
        hint = error.hint
    else:
        hint = "taken"
        assert parsed.exact or len(parsed.labels) >= 2
    assert hint


@FUZZ
@given(
    st.builds(
        Wire,
        via=st.sampled_from(list(Via)),
        http_version=st.one_of(st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0"]), st.text(max_size=8)),
        method=st.one_of(st.just(b"GET"), st.binary(max_size=8)),
        target=st.one_of(path_bytes, st.binary(max_size=30)),
        headers=st.lists(
            st.tuples(st.one_of(token, st.just(b"Host"), st.binary(max_size=10)), st.binary(max_size=20)), max_size=5
        ).map(lambda pairs: ((b"Host", HOST.encode()), *pairs)),
        tls=st.booleans(),
        authority=st.one_of(st.just(b""), st.just(HOST.encode()), st.binary(max_size=20)),
        scheme=st.one_of(st.sampled_from([b"", b"http", b"https"]), st.binary(max_size=6)),
        connect_host=st.one_of(st.just(HOST.encode()), st.binary(max_size=20)),
        connect_port=st.one_of(st.just(443), st.integers()),
        sni=st.one_of(st.none(), st.just(HOST), st.text(max_size=20)),
        listen_port=st.one_of(st.just(443), st.integers()),
        has_body=st.booleans(),
    )
)
def test_parse_request_raises_nothing_and_changes_nothing(wire: Wire) -> None:
    match parse_request(wire):
        case Deny() as deny:
            assert deny.status in (400, 403)
        case Request() as taken:
            assert taken.target.encode() == wire.target
            assert taken.headers == wire.headers
            assert taken.host == HOST
            decide(policy_of((), ()), "dev", taken)


@FUZZ
@given(
    wire_target=wire_path,
    sent=headers,
    method=st.sampled_from([b"GET", b"POST", b"HEAD"]),
)
def test_a_well_formed_wire_is_judged_to_the_end(
    wire_target: bytes, sent: tuple[tuple[bytes, bytes], ...], method: bytes
) -> None:
    """The same as above from closer by, so that the fuzz reaches decide and rewrite and not the first check alone."""
    wire = Wire(
        via=Via.CONNECT,
        http_version="HTTP/1.1",
        method=method,
        target=wire_target,
        headers=((b"Host", HOST.encode()), *sent),
        tls=True,
        connect_host=HOST.encode(),
        connect_port=443,
        sni=HOST,
    )
    taken = parse_request(wire)
    if isinstance(taken, Deny):
        return
    everything = AllowRule(
        id="r1",
        methods=frozenset({"GET", "POST"}),
        paths=(PathPattern.parse("/**"),),
        encoded_slash=True,
    )
    verdict = decide(policy_of((everything,), (), bound=True), "dev", taken)
    if isinstance(verdict, Deny):
        return
    out = rewrite(taken, verdict, {"s": "SECRET"}, {}).fields
    carriers = [value for name, value in out if is_credential_header(name)]
    assert carriers == [b"Bearer SECRET"]


@FUZZ
@given(allow_rules, deny_rules, st.sampled_from(["GET", "HEAD", "POST"]), clean_path, st.randoms())
def test_deny_wins_in_any_order_and_an_order_changes_no_verdict(
    allow: tuple[AllowRule, ...], deny: tuple[DenyRule, ...], method: str, path: str, shuffle: Any
) -> None:
    asked = request(method, path)
    before = is_allowed(policy_of(allow, deny), asked)
    mixed_allow, mixed_deny = list(allow), list(deny)
    shuffle.shuffle(mixed_allow)
    shuffle.shuffle(mixed_deny)
    assert is_allowed(policy_of(tuple(mixed_allow), tuple(mixed_deny)), asked) is before
    assert not before or is_allowed(policy_of(allow, ()), asked)
    barred = (*mixed_deny, DenyRule(id="all", methods=None, paths=(PathPattern.parse("/**"),)))
    assert not is_allowed(policy_of(allow, barred), asked)


@FUZZ
@given(
    allow_rules,
    deny_rules,
    st.sampled_from(list(Foreign)),
    st.sampled_from(["GET", "POST"]),
    clean_path,
    st.lists(st.sampled_from(["p", "q", "key", "z"]), max_size=2).map(tuple),
    headers,
    st.sampled_from(["p", "z", "key", "access_token"]),
    field,
)
def test_more_in_a_request_never_gets_more_allowed(
    allow: tuple[AllowRule, ...],
    deny: tuple[DenyRule, ...],
    foreign: Foreign,
    method: str,
    path: str,
    names: tuple[str, ...],
    sent: tuple[tuple[bytes, bytes], ...],
    name: str,
    header: tuple[bytes, bytes],
) -> None:
    policy = policy_of(allow, deny, foreign)
    small = request(method, path, names, sent)
    if is_allowed(policy, small):
        return
    assert not is_allowed(policy, request(method, path, (*names, name), sent))
    assert not is_allowed(policy, request(method, path, names, (*sent, header)))
    assert not is_allowed(policy, dataclasses.replace(small, upgrade="websocket"))


@FUZZ
@given(headers, st.booleans())
def test_no_client_credential_and_no_lie_about_the_sender_leaves(
    sent: tuple[tuple[bytes, bytes], ...], bound: bool
) -> None:
    policy = policy_of(
        (AllowRule(id="r1", methods=frozenset({"GET"}), paths=(PathPattern.parse("/**"),)),), (), bound=bound
    )
    verdict = decide(policy, "dev", request("GET", "/a", sent=sent))
    assert isinstance(verdict, Allow)
    out = rewrite(request("GET", "/a", sent=sent), verdict, {"s": "SECRET"}, {}).fields
    assert [v for n, v in out if is_credential_header(n)] == ([b"Bearer SECRET"] if bound else [])
    assert not {fold_name(n) for n, _ in out} & {"connection", "x-forwarded-for"}


@FUZZ
@given(st.binary(max_size=60), st.integers())
def test_a_connect_line_raises_nothing(host: bytes, port: int) -> None:
    assert isinstance(decide_connect(policy_of((), ()), "dev", host, port), Tunnel | Deny)


@FUZZ
@given(st.lists(st.binary(max_size=70), max_size=6).map(tuple))
@example((b"api.good", b"test"))
def test_a_name_of_any_bytes_has_a_verdict(labels: tuple[bytes, ...]) -> None:
    table = NameTable(gateway_ip="10.99.0.1", exact=frozenset({tuple(HOST.split("."))}))
    verdict = decide_name(table, labels)
    assert isinstance(verdict, NameVerdict)
    lowered = tuple(label.lower() for label in labels)
    assert (verdict is NameVerdict.ALLOW) is (lowered == tuple(HOST.encode().split(b".")))


@FUZZ
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_only_public_addresses_are_open_by_themselves(address: IPv4Address | IPv6Address) -> None:
    kind = classify(address)
    assert (closed(address) is None) is (kind is AddressClass.PUBLIC)
    if kind in FLOOR:
        assert closed(address, pins=(address,)) is kind
    if isinstance(address, IPv6Address) and kind is AddressClass.PUBLIC:
        assert int(address) >> 125 == 1
