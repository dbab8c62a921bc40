"""Only LineFault comes out of the parser, and only what link() made goes through it."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.ledger.chain import GENESIS, Fault, Head, LineFault, follow, link, parse_line
from credgate.ledger.record import MAX_LINE, Stamp, canonical

STAMP = Stamp(ts="2026-01-02T03:04:05.000006Z", boot="boot", mono_ns=7)


def _lines(count: int) -> list[bytes]:
    head, lines = Head(), []
    for n in range(count):
        line, head = link(head, "deny", {"host": f"h{n}"}, STAMP)
        lines.append(line)
    return lines


def test_first_line_links_to_genesis_and_the_next_to_the_whole_line():
    one, two = (json.loads(line) for line in _lines(2))
    assert (one["seq"], one["prev"]) == (1, GENESIS)
    assert (two["seq"], two["prev"]) == (2, hashlib.sha256(_lines(1)[0]).hexdigest())


def test_what_was_linked_follows():
    head = Head()
    for line in _lines(3):
        _, head = follow(head, line)
    assert head.seq == 3


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda line: line.replace(b'"host":"h0"', b'"host":"h1"'), Fault.HASH),
        (lambda line: line.replace(b'"seq":1', b'"seq":2'), Fault.HASH),
        (lambda line: line[:-1], Fault.NOT_CANONICAL),
        (lambda line: line.replace(b'"host"', b' "host"'), Fault.NOT_CANONICAL),
        (lambda line: line.replace(b'"ev"', b'"ev":"deny","ev"'), Fault.NOT_CANONICAL),
        (lambda line: line.replace(b'"mono_ns":7', b'"mono_ns":7.0'), Fault.UNPARSABLE),
        (lambda line: line.replace(b'"mono_ns":7', b'"mono_ns":true'), Fault.UNPARSABLE),
        (lambda line: line.replace(b'"mono_ns":7', b'"mono_ns":NaN'), Fault.UNPARSABLE),
        (lambda line: line.replace(b'"v":1', b'"v":2'), Fault.UNPARSABLE),
        (lambda line: line.replace(b'"host":"h0"', b'"host":"\\ud800"'), Fault.UNPARSABLE),
        (lambda line: b"[" * 16000 + b"\n", Fault.UNPARSABLE),
        (lambda line: b"9" * 16000 + b"\n", Fault.UNPARSABLE),
        (lambda line: b"[1]\n", Fault.UNPARSABLE),
        (lambda line: b"{}\n", Fault.UNPARSABLE),
        (lambda line: b"\n", Fault.UNPARSABLE),
        (lambda line: b"\xff\n", Fault.UNPARSABLE),
        (lambda line: b"a" * (MAX_LINE + 1), Fault.TOO_LONG),
    ],
)
def test_a_line_of_another_make_is_a_fault(change, fault: Fault):
    line = _lines(1)[0]
    assert parse_line(line)["seq"] == 1
    with pytest.raises(LineFault) as caught:
        parse_line(change(line))
    assert caught.value.fault is fault


def test_a_line_from_elsewhere_does_not_follow():
    one, two, three = _lines(3)
    _, head = follow(Head(), one)
    with pytest.raises(LineFault) as caught:
        follow(head, three)
    assert caught.value.fault is Fault.SEQ
    other, _ = link(Head(seq=1, sha256="f" * 64), "deny", {"host": "h1"}, STAMP)
    with pytest.raises(LineFault) as caught:
        follow(head, other)
    assert caught.value.fault is Fault.PREV
    follow(head, two)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_fault(data: bytes):
    with pytest.raises(LineFault):
        parse_line(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["v", "seq", "ts", "ev", "boot", "mono_ns", "prev", "hash", "x"]), _JSON))
def test_any_json_without_the_right_hash_is_a_fault(record: dict[str, object]):
    with pytest.raises(LineFault):
        parse_line(json.dumps(record).encode() + b"\n")


@given(st.dictionaries(st.sampled_from(["v", "seq", "ts", "ev", "boot", "mono_ns", "prev", "x"]), _JSON))
def test_a_right_hash_alone_does_not_make_a_line(record: dict[str, object]):
    try:
        body = canonical(record)
    except ValueError:  # NaN, lone surrogates
        return
    signed = {**record, "hash": hashlib.sha256(body).hexdigest()}
    try:
        parsed = parse_line(canonical(signed) + b"\n")
    except LineFault:
        return
    assert parsed == signed
    assert isinstance(parsed["seq"], int)
    assert isinstance(parsed["ts"], str)
