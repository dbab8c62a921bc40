"""Bytes of any kind give one of three values, at once, and never an exception."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.query import Drop, Fault, Malformed, Query, parse_query

OPT = b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"


def header(*, ident: int = 0x1234, flags: int = 0x0100, counts: tuple[int, int, int, int] = (1, 0, 0, 0)) -> bytes:
    """The twelve bytes in front."""
    return b"".join(n.to_bytes(2, "big") for n in (ident, flags, *counts))


def question(*labels: bytes, qtype: int = 1, qclass: int = 1) -> bytes:
    """A question; labels are written as they are, whatever is in them."""
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\x00"
    return name + qtype.to_bytes(2, "big") + qclass.to_bytes(2, "big")


GOOD = header() + question(b"ApI", b"github", b"com")
GOOD_OPT = header(counts=(1, 0, 0, 1)) + question(b"api", b"github", b"com") + OPT


def test_plain_question() -> None:
    """Row 18: labels are folded, the question's bytes are kept."""
    query = parse_query(GOOD)
    assert query == Query(
        ident=0x1234,
        recursion=True,
        labels=(b"api", b"github", b"com"),
        wire_labels=(b"ApI", b"github", b"com"),
        qtype=1,
        question=GOOD[12:],
        edns=None,
    )


def test_root_and_underscore_names_are_questions() -> None:
    """The root and service names are well formed; what they get is the table's affair."""
    root = parse_query(header() + question(qtype=2))
    assert isinstance(root, Query)
    assert root.labels == ()
    service = parse_query(header() + question(b"_dns", b"resolver", b"arpa", qtype=64))
    assert isinstance(service, Query)
    assert service.labels == (b"_dns", b"resolver", b"arpa")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (0x8100, Fault.RESPONSE),
        (0x8000, Fault.RESPONSE),
        (0x0300, Fault.TRUNCATED),
        *((opcode << 11, Fault.OPCODE) for opcode in range(1, 16)),
    ],
)
def test_row_14_dropped(flags: int, fault: Fault) -> None:
    """A response, a cut query and any opcode but QUERY get no answer."""
    assert parse_query(header(flags=flags) + GOOD[12:]) == Drop(fault=fault)


@pytest.mark.parametrize("size", range(12))
def test_without_a_header_there_is_nothing_to_answer(size: int) -> None:
    """Shorter than a header."""
    assert parse_query(GOOD[:size]) == Drop(fault=Fault.SHORT)


@pytest.mark.parametrize(
    "counts", [(0, 0, 0, 0), (2, 0, 0, 0), (65535, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 2)]
)
def test_row_15_counts(counts: tuple[int, int, int, int]) -> None:
    """One question, nothing else but one additional record."""
    body = question(b"api", b"github", b"com") * min(counts[0], 2)
    assert parse_query(header(counts=counts) + body + OPT * min(counts[3], 2)) == Malformed(
        ident=0x1234, recursion=True, fault=Fault.COUNTS
    )


@pytest.mark.parametrize(
    "additional",
    [
        b"\x00\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x00",  # TSIG
        b"\x00\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x01\x02\x03\x04",  # A
        b"\x01a\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00",  # OPT whose owner is not the root
        b"\xc0\x0c\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00",  # owner is a pointer
        OPT[:-1],
        OPT[:-2] + b"\x00\x01",  # options longer than the message
        b"",
    ],
)
def test_row_15_additional_is_one_whole_opt(additional: bytes) -> None:
    """Anything but OPT there is refused."""
    data = header(counts=(1, 0, 0, 1)) + question(b"api", b"github", b"com") + additional
    assert parse_query(data) == Malformed(ident=0x1234, recursion=True, fault=Fault.ADDITIONAL)


@pytest.mark.parametrize("qclass", [0, 2, 3, 4, 254, 255, 0x8001])
def test_row_16_class(qclass: int) -> None:
    """Only IN; the top bit of mDNS isn't IN."""
    parsed = parse_query(header() + question(b"version", b"bind", qtype=16, qclass=qclass))
    assert parsed == Malformed(ident=0x1234, recursion=True, fault=Fault.CLASS)


@pytest.mark.parametrize(
    "name",
    [
        b"\xc0\x0c",  # pointer to itself
        b"\x03api\xc0\x0c",
        b"\x40" + b"a" * 64 + b"\x00",
        b"\x80" + b"a" * 128 + b"\x00",
        b"\xbf" + b"a" * 191 + b"\x00",
        b"\x0aapi.github\x03com\x00",  # one label that reads like two
        b"\x04api\x00\x03com\x00",  # NUL inside a label
        b"\x04a\xc3\xa9b\x03com\x00",
        b"\x03a b\x00",
        b"\x01*\x03com\x00",
        b"\x03a\\b\x00",
        b"\x03api",  # no end
        b"\x09api",
    ],
)
def test_row_17_names(name: bytes) -> None:
    """Pointers, long labels and bytes that belong in no host name."""
    parsed = parse_query(header() + name + b"\x00\x01\x00\x01")
    assert isinstance(parsed, Malformed)
    assert parsed.fault in {Fault.NAME, Fault.SIZE}


def test_row_17_every_byte_outside_the_alphabet() -> None:
    """Of 256 byte values 64 may stand in a label (26 + 26 + 10 + hyphen + underscore)."""
    fine = [b for b in range(256) if isinstance(parse_query(header() + question(bytes([0x61, b, 0x61]))), Query)]
    assert bytes(fine) == b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


def test_row_17_name_of_255_bytes_and_one_more() -> None:
    """Both sides of the limit of RFC 1035."""
    longest = [b"a" * 63] * 3 + [b"a" * 61]
    assert isinstance(parse_query(header() + question(*longest)), Query)
    longest[-1] += b"a"
    assert parse_query(header() + question(*longest)) == Malformed(ident=0x1234, recursion=True, fault=Fault.NAME)


@pytest.mark.parametrize("data", [GOOD, GOOD_OPT])
def test_row_17_trailing_bytes(data: bytes) -> None:
    """Room behind the last record is room for a message."""
    assert isinstance(parse_query(data), Query)
    assert parse_query(data + b"\x00") == Malformed(ident=0x1234, recursion=True, fault=Fault.TRAILING)


@pytest.mark.parametrize("cut", range(12, len(GOOD_OPT)))
def test_every_cut_is_malformed(cut: int) -> None:
    """No prefix of a query is a query."""
    assert isinstance(parse_query(GOOD_OPT[:cut]), Malformed)


@pytest.mark.parametrize("version", [0, 1, 255])
def test_row_19_version_and_options(version: int) -> None:
    """ECS, cookie, padding, NSID, chain, report-channel: skipped; the version is told."""
    options = b"".join(code.to_bytes(2, "big") + b"\x00\x04\xff\x00\xc0\x0c" for code in (8, 10, 12, 3, 13, 18))
    opt = OPT[:6] + bytes([version]) + OPT[7:9] + len(options).to_bytes(2, "big") + options
    query = parse_query(header(counts=(1, 0, 0, 1)) + question(b"api", b"github", b"com") + opt)
    assert isinstance(query, Query)
    assert query.edns == version


@pytest.mark.parametrize("flags", [0x0120, 0x0110, 0x0140, 0x0130, 0x0500])
def test_row_20_bits_are_ignored(flags: int) -> None:
    """AD, CD, Z and AA of a query say nothing to us."""
    assert parse_query(header(flags=flags) + GOOD[12:]) == parse_query(GOOD)


def test_size_limit() -> None:
    """512 bytes are read, 513 are not."""
    padding = 512 - len(GOOD_OPT)
    opt = OPT[:9] + padding.to_bytes(2, "big") + b"\x00" * padding
    data = header(counts=(1, 0, 0, 1)) + question(b"api", b"github", b"com") + opt
    assert len(data) == 512
    assert isinstance(parse_query(data), Query)
    longer = data[: -padding - 2] + (padding + 1).to_bytes(2, "big") + b"\x00" * (padding + 1)
    assert parse_query(longer) == Malformed(ident=0x1234, recursion=True, fault=Fault.SIZE)


def test_a_message_that_cost_a_library_88_seconds() -> None:
    """10,000 questions, each a pointer into one chain of pointers: refused by size and by count, in no time."""
    chain = b"\x01a" + b"".join(b"\x01a" + (0xC000 | 12 + 4 * n).to_bytes(2, "big") for n in range(900))
    data = header(counts=(10_000, 0, 0, 0)) + chain + b"\xcd\x00\x00\x01\x00\x01" * 9_000
    start = time.process_time()
    for _ in range(1_000):
        assert isinstance(parse_query(data), Malformed)
        assert isinstance(parse_query(data[:512]), Malformed)
    assert time.process_time() - start < 1.0


@settings(max_examples=600, deadline=None)
@given(st.binary(max_size=700))
def test_arbitrary_bytes_give_a_value(data: bytes) -> None:
    """Never an exception."""
    assert isinstance(parse_query(data), Query | Malformed | Drop)


@settings(max_examples=800, deadline=None)
@given(
    st.sampled_from([GOOD, GOOD_OPT]),
    st.lists(st.tuples(st.integers(2, len(GOOD) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, 12),
    st.binary(max_size=12),
)
def test_mutants_give_a_value_that_holds_its_promises(
    base: bytes, edits: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    """Whatever passes is a whole, plain question whose bytes rebuild from its labels."""
    data = bytearray(base)
    for at, value in edits:
        data[at] = value
    mutant = bytes(data[: len(data) - cut]) + tail
    parsed = parse_query(mutant)
    if isinstance(parsed, Query):
        assert question(*parsed.wire_labels, qtype=parsed.qtype) == parsed.question
        assert mutant[12:].startswith(parsed.question)
        assert all(0 < len(label) <= 63 and b"." not in label and b"\x00" not in label for label in parsed.labels)
        assert tuple(label.lower() for label in parsed.wire_labels) == parsed.labels
