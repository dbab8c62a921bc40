"""The decision table, row by row, in both settings of `dns.unlisted`. Answers are read by dnslib, not by our parser."""

import itertools

import pytest
from dnslib import DNSRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.answer import Answer, Kind, answer, servfail
from resolver.events import Code
from rules.hosts import HostPattern
from rules.names import NameTable
from rules.policy import Unlisted

GATEWAY = "10.99.0.1"
OPT = b"\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00"
A, AAAA, SVCB, HTTPS, ANY = 1, 28, 64, 65, 255
OTHER = {
    "TXT": 16,
    "NULL": 10,
    "MX": 15,
    "NS": 2,
    "SOA": 6,
    "SRV": 33,
    "CAA": 257,
    "NAPTR": 35,
    "PTR": 12,
    "DS": 43,
    "DNSKEY": 48,
    "CNAME": 5,
    "AXFR": 252,
    "TYPE65280": 65280,
}
MODES = pytest.mark.parametrize("unlisted", list(Unlisted))


def table(unlisted: Unlisted = Unlisted.GATEWAY, *, placed: bool = False) -> NameTable:
    """A table with exact names, both kinds of wildcard, and entries that try to open closed names."""
    opened = frozenset({("git", "corp", "internal"), ("metadata", "google", "internal")})
    return NameTable(
        gateway_ip=GATEWAY,
        unlisted=unlisted,
        exact=frozenset({("api", "github", "com"), ("registry",), ("kubernetes", "default", "svc")}) | opened,
        wildcards=(
            HostPattern.parse("*.s3.amazonaws.com"),
            HostPattern.parse("**.cdn.example"),
            HostPattern.parse("**.google.internal"),
        ),
        placed=opened if placed else frozenset(),
    )


def ask(name: str, qtype: int = A, *, flags: int = 0x0100, qclass: int = 1, opt: bytes = b"") -> bytes:
    """The bytes of a query."""
    labels = [part.encode() for part in name.split(".")] if name else []
    wire = b"".join(bytes([len(label)]) + label for label in labels) + b"\x00"
    counts = b"\x00\x01\x00\x00\x00\x00" + (b"\x00\x01" if opt else b"\x00\x00")
    return b"\xab\xcd" + flags.to_bytes(2, "big") + counts + wire + bytes([*divmod(qtype, 256), 0, qclass]) + opt


def read(result: Answer) -> DNSRecord:
    """The answer as another implementation reads it."""
    assert result.reply is not None
    return DNSRecord.parse(result.reply)


def assert_nodata(result: Answer, rcode: int = 0) -> None:
    """No answer record, one SOA with TTL and minimum 5: without one some clients wait."""
    record = read(result)
    assert record.header.rcode == rcode
    assert record.rr == []
    (soa,) = record.auth
    assert (soa.rtype, soa.ttl, soa.rdata.times[4]) == (6, 5, 5)


def assert_address(result: Answer, address: str, qtype: int = A) -> None:
    """One record of that address."""
    record = read(result)
    assert record.header.rcode == 0
    (answered,) = record.rr
    assert (answered.rtype, str(answered.rdata), answered.ttl) == (qtype, address, 5)
    assert record.auth == []


@MODES
def test_row_1_listed(unlisted: Unlisted) -> None:
    """The gateway's address, TTL 5, QR=1 RA=1, RD as asked, AA=TC=AD=0."""
    result = answer(table(unlisted), ask("api.github.com"))
    assert_address(result, GATEWAY)
    header = read(result).header
    assert (header.id, header.qr, header.aa, header.tc, header.rd, header.ra, header.ad, header.cd) == (
        *(0xABCD, 1, 0, 0, 1, 1, 0, 0),
    )
    assert (result.code, result.name, result.qtype) == (Code.ALLOW, "api.github.com", "A")


@MODES
@pytest.mark.parametrize("qtype", [AAAA, HTTPS, SVCB])
def test_rows_2_and_3_no_second_way(unlisted: Unlisted, qtype: int) -> None:
    """NODATA and no record: these come with every look-up."""
    result = answer(table(unlisted), ask("api.github.com", qtype))
    assert_nodata(result)
    assert result.code is None


@MODES
@pytest.mark.parametrize(("spelled", "qtype"), OTHER.items())
def test_row_4_other_types(unlisted: Unlisted, spelled: str, qtype: int) -> None:
    """NODATA, recorded with the type."""
    result = answer(table(unlisted), ask("api.github.com", qtype))
    assert_nodata(result)
    assert (result.code, result.qtype) == (Code.OTHERTYPE, spelled)


@MODES
def test_row_4_any_is_one_hinfo(unlisted: Unlisted) -> None:
    """RFC 8482."""
    result = answer(table(unlisted), ask("api.github.com", ANY))
    (record,) = read(result).rr
    assert (record.rtype, record.ttl, record.rdata.data) == (13, 5, b"\x07RFC8482\x00")
    assert result.code is Code.OTHERTYPE


@MODES
@pytest.mark.parametrize("name", ["bucket.s3.amazonaws.com", "a.cdn.example", "a.b.c.d.e.f.cdn.example"])
def test_row_5_below_a_wildcard(unlisted: Unlisted, name: str) -> None:
    """As a listed name, and the name itself is recorded: it is the one thing that can carry data outward."""
    result = answer(table(unlisted), ask(name))
    assert_address(result, GATEWAY)
    assert (result.code, result.name) == (Code.ALLOW, name)
    assert_nodata(answer(table(unlisted), ask(name, AAAA)))


@MODES
def test_row_5_caps(unlisted: Unlisted) -> None:
    """Seven extra labels, or a name that the run's count has no room for: NXDOMAIN and an alarm."""
    deep = answer(table(unlisted), ask("a.b.c.d.e.f.g.cdn.example"))
    assert_nodata(deep, rcode=3)
    assert deep.code is Code.DENY_WILDCARD
    full = answer(table(unlisted), ask("a.cdn.example"), admit=lambda _: False)
    assert_nodata(full, rcode=3)
    assert full.code is Code.DENY_WILDCARD


@pytest.mark.parametrize("name", ["cdn.example", "s3.amazonaws.com", "com", "example", "a.b.s3.amazonaws.com", ""])
def test_row_5_what_a_wildcard_is_not(name: str) -> None:
    """Not its apex, not its parents, not the root, "*" not two labels."""
    result = answer(table(Unlisted.NXDOMAIN), ask(name))
    assert_nodata(result, rcode=3)
    assert result.code is Code.DENY


UNLISTED_NAMES = (
    "evil.example",
    "evilgithub.com",
    "github.com",
    "github.com.attacker.net",
    "x.api.github.com",
    "127.0.0.1.nip.io",
    "localtest.me",
    "mzxw6ytboi.tunnel.example",
)


@pytest.mark.parametrize("name", UNLISTED_NAMES)
def test_row_6_unlisted_is_nxdomain_where_the_policy_says_so(name: str) -> None:
    """For every type, with a record."""
    for qtype in (A, AAAA, HTTPS, ANY, *OTHER.values()):
        result = answer(table(Unlisted.NXDOMAIN), ask(name, qtype))
        assert_nodata(result, rcode=3)
        assert (result.code, result.name) == (Code.DENY, name)


@pytest.mark.parametrize("name", UNLISTED_NAMES)
def test_row_6_unlisted_goes_to_the_gateway_by_default(name: str) -> None:
    """The same bytes as for a listed name; the record says deny."""
    result = answer(table(), ask(name))
    assert_address(result, GATEWAY)
    assert (result.code, result.name) == (Code.DENY, name)
    for qtype in (AAAA, HTTPS, SVCB, *OTHER.values()):
        other = answer(table(), ask(name, qtype))
        assert_nodata(other)
        assert other.code is Code.DENY


METADATA = (
    "metadata.google.internal",
    "metadata",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.tencentyun.com",
    "rancher-metadata",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "x.google.internal",
    "printer.local",
    "host.docker.internal",
    "host.containers.internal",
    "gateway.docker.internal",
)


@MODES
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("name", METADATA)
def test_row_7_metadata(unlisted: Unlisted, placed: bool, name: str) -> None:
    """NXDOMAIN, also where an entry, an entry with an address, or a wildcard matches."""
    result = answer(table(unlisted, placed=placed), ask(name))
    assert_nodata(result, rcode=3)
    assert result.code is Code.DENY_METADATA


@MODES
def test_row_7_an_entry_with_an_address_opens_internal(unlisted: Unlisted) -> None:
    """The pair: without the address the same name is closed."""
    assert_nodata(answer(table(unlisted), ask("git.corp.internal")), rcode=3)
    assert_address(answer(table(unlisted, placed=True), ask("git.corp.internal")), GATEWAY)


@MODES
@pytest.mark.parametrize("name", ["localhost", "foo.localhost"])
def test_row_8_localhost(unlisted: Unlisted, name: str) -> None:
    """RFC 6761; glibc asks for foo.localhost."""
    assert_address(answer(table(unlisted), ask(name)), "127.0.0.1")
    assert_address(answer(table(unlisted), ask(name, AAAA)), "::1", AAAA)
    txt = answer(table(unlisted), ask(name, 16))
    assert_nodata(txt)
    assert txt.code is None


@MODES
@pytest.mark.parametrize("name", ["1.0.99.10.in-addr.arpa", f"{'0.' * 32}ip6.arpa", "in-addr.arpa", "1.in-addr"])
def test_row_9_reverse(unlisted: Unlisted, name: str) -> None:
    """Never forwarded: four bytes a query would be a tunnel."""
    result = answer(table(unlisted), ask(name, 12))
    assert_nodata(result, rcode=3)
    assert result.code is Code.DENY


@MODES
@pytest.mark.parametrize("qtype", [A, SVCB])
@pytest.mark.parametrize("name", ["use-application-dns.net", "_dns.resolver.arpa", "resolver.arpa", "wpad"])
def test_row_10_ways_around_the_resolver(unlisted: Unlisted, qtype: int, name: str) -> None:
    """A browser's canary, DDR, proxy discovery."""
    assert_nodata(answer(table(unlisted), ask(name, qtype)), rcode=3)


@MODES
@pytest.mark.parametrize("name", ["api.github.com.corp.example", "a.cdn.example.corp.example", "registry.corp.example"])
def test_row_11_search_suffix(unlisted: Unlisted, name: str) -> None:
    """NXDOMAIN lets every client go on to the bare name."""
    result = answer(table(unlisted), ask(name))
    assert_nodata(result, rcode=3)
    assert result.code is Code.SUFFIX


@MODES
def test_row_12_single_labels(unlisted: Unlisted) -> None:
    """NXDOMAIN unless listed."""
    assert_nodata(answer(table(unlisted), ask("printer")), rcode=3)
    assert_nodata(answer(table(unlisted), ask("", 2)), rcode=3)
    assert_address(answer(table(unlisted), ask("registry")), GATEWAY)


@MODES
@pytest.mark.parametrize("name", ["api.github.com", "a.cdn.example", "registry"])
def test_row_13_revoked(unlisted: Unlisted, name: str) -> None:
    """NXDOMAIN where there was an address."""
    assert_address(answer(table(unlisted), ask(name)), GATEWAY)
    result = answer(table(unlisted), ask(name), revoked=True)
    assert_nodata(result, rcode=3)
    assert result.code is Code.DENY_REVOKED


def test_row_13_revoked_leaves_no_unlisted_name_either() -> None:
    """The default setting must not outlive the rights."""
    assert_nodata(answer(table(), ask("evil.example"), revoked=True), rcode=3)


@pytest.mark.parametrize("flags", [0x8100, 0x0300, 0x2900, 0x0900])
def test_row_14_no_answer(flags: int) -> None:
    """And a record."""
    result = answer(table(), ask("api.github.com", flags=flags))
    assert (result.reply, result.code) == (None, Code.MALFORMED)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (ask("api.github.com")[:5] + b"\x02" + ask("api.github.com")[6:], Code.MALFORMED),  # row 15
        (ask("version.bind", 16, qclass=3), None),  # row 16
        (ask("api.github.com") + b"x", Code.MALFORMED),  # row 17
        (b"\xab\xcd\x01\x00\x00\x01" + bytes(6) + b"\xc0\x0c\x00\x01\x00\x01", Code.MALFORMED),
        (b"\xab\xcd\x01\x00\x00\x01" + bytes(6) + b"\x0aapi.github\x03com\x00\x00\x01\x00\x01", Code.MALFORMED),
        (ask("api.github.com") + bytes(60_000), Code.MALFORMED),
    ],
)
def test_rows_15_to_17_header_only(data: bytes, code: Code | None) -> None:
    """FORMERR in twelve bytes: ID and RD come back, no section does."""
    result = answer(table(), data)
    assert result.reply == b"\xab\xcd\x81\x81" + bytes(8)
    assert result.code is code


@MODES
def test_row_18_mixed_case(unlisted: Unlisted) -> None:
    """Folded to decide, echoed as asked, in the record lower case."""
    for name in ("aPi.GitHub.COM", "A.cDN.eXample", "eViL.ExAmPlE", "LOCALHOST"):
        data = ask(name)
        result = answer(table(unlisted), data)
        assert result.reply is not None
        assert result.reply[12:].startswith(data[12:])
        assert result.name == name.lower()
    assert_address(answer(table(unlisted), ask("API.github.COM")), GATEWAY)


@MODES
def test_row_19_opt_only_if_asked(unlisted: Unlisted) -> None:
    """udp=1232, version 0, no options, whatever the options were."""
    ecs = OPT[:9] + b"\x00\x0b\x00\x08\x00\x07\x00\x01\x18\x00\x0a\x00\x01"
    for name, opt in itertools.product(("api.github.com", "evil.example", "printer"), (OPT, ecs)):
        reply = answer(table(unlisted), ask(name, opt=opt)).reply
        assert reply is not None
        assert reply.endswith(b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00")
        plain = read(answer(table(unlisted), ask(name)))
        assert plain.ar == []


def test_row_19_unknown_version() -> None:
    """BADVERS is 16: the high bits stand in the OPT."""
    result = answer(table(), ask("api.github.com", opt=OPT[:6] + b"\x01" + OPT[7:]))
    record = read(result)
    assert (record.header.rcode, record.rr, record.auth) == (0, [], [])
    assert record.ar[0].ttl == 0x01000000
    assert result.code is None


@pytest.mark.parametrize("flags", [0x0110, 0x0120, 0x0130])
def test_row_20_bits(flags: int) -> None:
    """AD and CD change nothing; DO isn't echoed."""
    assert answer(table(), ask("api.github.com", flags=flags)).reply == answer(table(), ask("api.github.com")).reply
    do = OPT[:7] + b"\x80\x00" + OPT[9:]
    assert answer(table(), ask("api.github.com", opt=do)).reply == answer(table(), ask("api.github.com", opt=OPT)).reply


@MODES
def test_row_21_longest_name(unlisted: Unlisted) -> None:
    """The longest question there is still fits with SOA and OPT, without TC."""
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    for qtype in (A, AAAA, 16, ANY):
        reply = answer(table(unlisted), ask(longest, qtype, opt=OPT)).reply
        assert reply is not None
        assert len(reply) <= 512
        assert not reply[2] & 0x02


def test_row_25_servfail_repeats_the_question() -> None:
    """Made without the table or the library."""
    data = ask("aPi.github.com")
    reply = servfail(data)
    assert reply is not None
    record = DNSRecord.parse(reply)
    assert (record.header.rcode, record.header.id, record.header.qr) == (2, 0xABCD, 1)
    assert reply[12:] == data[12:]
    assert servfail(b"") is None
    assert servfail(ask("a.example", qclass=3)) == b"\xab\xcd\x81\x81" + bytes(8)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=600), st.sampled_from(Unlisted))
def test_any_bytes_have_an_answer_or_none(data: bytes, unlisted: Unlisted) -> None:
    """Never an exception, never more than 512 bytes, never TC."""
    result = answer(table(unlisted), data)
    assert result.reply is None or (len(result.reply) <= 512 and not result.reply[2] & 0x02)


NAME = st.lists(st.text("abcXYZ019-_", min_size=1, max_size=63), max_size=6).map(".".join)


@settings(max_examples=500, deadline=None)
@given(NAME, st.integers(0, 65535), st.sampled_from(Unlisted), st.booleans())
def test_no_answer_holds_anything_but_our_addresses(name: str, qtype: int, unlisted: Unlisted, revoked: bool) -> None:
    """What can be said at all: the gateway, loopback, the HINFO of RFC 8482; the question always comes back."""
    data = ask(name, qtype, opt=OPT)
    result = answer(table(unlisted), data, revoked=revoked)
    if result.kind is Kind.FORMERR:  # a name over 255 bytes
        return
    assert result.reply is not None
    assert result.reply[12:].startswith(data[12:-11])
    for record in read(result).rr:
        assert record.rtype == 13 or str(record.rdata) in {GATEWAY, "127.0.0.1", "::1"}
