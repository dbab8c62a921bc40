"""What is answered: from a table and the bytes of a query to the bytes of the answer. Pure; nothing is looked up.

The rows that a test is named after:

 1 listed, A                      the gateway's address, TTL 5, AA=0, RA=1
 2 listed, AAAA                   NODATA with SOA (a jail has no IPv6); musl takes NXDOMAIN there for the whole name
 3 listed, HTTPS or SVCB          NODATA with SOA: no ECH key, no address hint, no h3
 4 listed, any other type         NODATA with SOA; ANY: one HINFO (RFC 8482)
 5 below a wildcard               as 1 to 4, for a bounded number of names and extra labels, else NXDOMAIN
 6 unlisted                       by the policy: as listed (the gateway refuses with a reason), or NXDOMAIN
 7 metadata, *.internal, *.local  NXDOMAIN
 8 localhost                      127.0.0.1, ::1
 9 in-addr.arpa, ip6.arpa         NXDOMAIN
10 resolver.arpa and the like     NXDOMAIN
11 listed name and a suffix       NXDOMAIN, so that a search list goes on to the bare name
12 a single label                 NXDOMAIN unless listed
13 rights taken back              NXDOMAIN
14 response, TC, opcode           no answer
15 counts                         FORMERR, header only
16 class                          FORMERR, header only
17 name, trailing bytes           FORMERR, header only
18 mixed case                     the question is echoed byte for byte
19 OPT                            OPT with 1232 in the answer; a version we don't know: BADVERS
20 DO, CD, AD                     ignored
21 size                           one record; never TC, which musl can't follow

A negative answer always has an SOA (some clients wait without one), of the root: an ancestor of every name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dnslib import AAAA, EDNS0, QTYPE, RD, RR, SOA, A, DNSHeader, DNSLabel, DNSQuestion, DNSRecord

from resolver.errors import ResolverError
from resolver.events import Code, spell
from resolver.query import HEADER_SIZE, MAX_QUERY, Drop, Fault, Malformed, Query, parse_query
from rules.names import NameTable, NameVerdict, decide_name

TTL = 5  # seconds, also of negative answers: a revoked right must not live on in a client's cache
EDNS_SIZE = 1232  # bytes; what crosses any path unfragmented
WILDCARD_EXTRA = 6  # labels in front of a wildcard's own

_A, _AAAA, _ANY, _HINFO, _SOA, _SVCB, _HTTPS = 1, 28, 255, 13, 6, 64, 65
_FORMERR, _SERVFAIL, _NXDOMAIN, _BADVERS_HIGH = 1, 2, 3, 1
_SOA_RECORD = SOA(DNSLabel((b"credgate", b"invalid")), DNSLabel((b"nobody", b"invalid")), (1, TTL, TTL, TTL, TTL))
_HINFO_DATA = b"\x07RFC8482\x00"

# Junk of a search list and what browsers ask by themselves is nobody's attempt at anything.
_NXDOMAIN_CODES: Mapping[NameVerdict, Code | None] = {
    NameVerdict.METADATA: Code.DENY_METADATA,
    NameVerdict.SEARCH_JUNK: Code.SUFFIX,
    NameVerdict.SPECIAL: None,
}

type Admit = Callable[[tuple[bytes, ...]], bool]


class Kind(StrEnum):
    """The forms an answer has."""

    ADDRESS = "address"  # of the gateway
    LOOPBACK = "loopback"
    NXDOMAIN = "nxdomain"
    BADVERS = "badvers"
    FORMERR = "formerr"
    SERVFAIL = "servfail"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """How a question is answered and under which code it is recorded (None: not at all)."""

    kind: Kind
    code: Code | None = None
    verdict: NameVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`reply` None: say nothing. The rest is for the record."""

    reply: bytes | None
    kind: Kind
    verdict: NameVerdict | None = None
    code: Code | None = None
    name: str = ""
    qtype: str = ""
    detail: str = ""


def answer(table: NameTable, data: bytes, *, revoked: bool = False, admit: Admit = lambda _: True) -> Answer:
    """The answer to the bytes of one message.

    `admit` tells whether a name below a wildcard may still have an answer in this run (it counts them).
    Raises ResolverError, or what dnslib raises, where we ourselves are wrong: then servfail() is the answer.
    """
    match parse_query(data):
        case Drop(fault=fault):
            return Answer(reply=None, kind=Kind.NONE, code=Code.MALFORMED, detail=fault.value)
        case Malformed(fault=fault) as bad:
            # Another class is no attempt at anything: answered, not recorded.
            code = None if fault is Fault.CLASS else Code.MALFORMED
            return Answer(reply=_header(bad.ident, bad.recursion, _FORMERR), kind=Kind.FORMERR, code=code, detail=fault)
        case Query() as query:
            ruling = rule(table, query, revoked=revoked, admit=admit)
            return Answer(
                reply=build(query, ruling.kind, table.gateway_ip),
                kind=ruling.kind,
                verdict=ruling.verdict,
                code=ruling.code,
                name=spell(query.labels),
                qtype=_type_name(query.qtype),
            )
        case unreachable:
            assert_never(unreachable)


def rule(table: NameTable, query: Query, *, revoked: bool = False, admit: Admit = lambda _: True) -> Ruling:
    """Decide on one question; the rows about names."""
    if query.edns not in {None, 0}:
        return Ruling(kind=Kind.BADVERS)
    verdict = decide_name(table, query.labels)
    kind, code = _by_verdict(table, query, verdict, admit)
    if revoked and kind is Kind.ADDRESS:
        kind, code = Kind.NXDOMAIN, Code.DENY_REVOKED
    return Ruling(kind=kind, code=code, verdict=verdict)


def _by_verdict(table: NameTable, query: Query, verdict: NameVerdict, admit: Admit) -> tuple[Kind, Code | None]:
    match verdict:
        case NameVerdict.ALLOW:
            return Kind.ADDRESS, _listed_code(query.qtype)
        case NameVerdict.ALLOW_WILDCARD:
            if _extra_labels(table, query.labels) > WILDCARD_EXTRA or not admit(query.labels):
                return Kind.NXDOMAIN, Code.DENY_WILDCARD
            return Kind.ADDRESS, _listed_code(query.qtype)
        case NameVerdict.UNLISTED_GATEWAY:
            return Kind.ADDRESS, Code.DENY
        case NameVerdict.LOOPBACK:
            return Kind.LOOPBACK, None
        case NameVerdict.DENY | NameVerdict.REVERSE | NameVerdict.SINGLE_LABEL:
            return Kind.NXDOMAIN, Code.DENY
        case NameVerdict.METADATA | NameVerdict.SEARCH_JUNK | NameVerdict.SPECIAL:
            return Kind.NXDOMAIN, _NXDOMAIN_CODES[verdict]
        case unreachable:
            assert_never(unreachable)


def _listed_code(qtype: int) -> Code | None:
    if qtype == _A:
        return Code.ALLOW
    return None if qtype in {_AAAA, _SVCB, _HTTPS} else Code.OTHERTYPE


def _extra_labels(table: NameTable, labels: tuple[bytes, ...]) -> int:
    """Labels in front of the nearest wildcard that matches."""
    name = tuple(label.decode("ascii") for label in labels)
    return min(len(name) - len(p.labels) for p in table.wildcards if p.matches_labels(name))


def build(query: Query, kind: Kind, gateway_ip: str) -> bytes:
    """The bytes of an answer. Raises ResolverError when they don't repeat the question or are too long."""
    header = DNSHeader(id=query.ident, bitmap=0, qr=1, ra=1, rd=int(query.recursion), rcode=0)
    question = DNSQuestion(DNSLabel(query.wire_labels), query.qtype, 1)
    record = DNSRecord(header, q=question)
    if kind is Kind.NXDOMAIN:
        header.rcode = _NXDOMAIN
    if kind is not Kind.BADVERS:
        _fill(record, question.qname, query.qtype, _data(kind, query.qtype, gateway_ip))
    if query.edns is not None:
        high = _BADVERS_HIGH if kind is Kind.BADVERS else 0
        record.add_ar(EDNS0(udp_len=EDNS_SIZE, ext_rcode=high))
    packed = bytes(record.pack())
    if not packed.startswith(query.question, HEADER_SIZE) or len(packed) > MAX_QUERY:
        raise ResolverError("answer", f"the answer has {len(packed)} bytes, or does not repeat the question")
    return packed


def _fill(record: DNSRecord, owner: DNSLabel, qtype: int, data: RD | None) -> None:
    if data is None:
        record.add_auth(RR(DNSLabel(()), _SOA, 1, TTL, _SOA_RECORD))
    else:
        record.add_answer(RR(owner, _HINFO if qtype == _ANY else qtype, 1, TTL, data))


def _data(kind: Kind, qtype: int, gateway_ip: str) -> RD | None:
    match kind, qtype:
        case Kind.ADDRESS, 1:
            return A(gateway_ip)
        case Kind.LOOPBACK, 1:
            return A("127.0.0.1")
        case Kind.LOOPBACK, 28:
            return AAAA("::1")
        case ((Kind.ADDRESS | Kind.LOOPBACK), 255):
            return RD(_HINFO_DATA)
        case _:
            return None


def servfail(data: bytes) -> bytes | None:
    """The answer when ours could not be made: without dnslib and the table, which may be what failed."""
    match parse_query(data):
        case Query() as query:
            header = _header(query.ident, query.recursion, _SERVFAIL)
            return header[:4] + b"\x00\x01" + header[6:] + query.question
        case Malformed() as bad:
            return _header(bad.ident, bad.recursion, _FORMERR)
        case Drop():
            return None


def _header(ident: int, recursion: bool, rcode: int) -> bytes:
    """Twelve bytes: QR and RA, the query's ID and RD, no sections."""
    flags = 0x8080 | (0x0100 if recursion else 0) | rcode
    return ident.to_bytes(2, "big") + flags.to_bytes(2, "big") + bytes(HEADER_SIZE - 4)


def _type_name(qtype: int) -> str:
    """The type's name, or RFC 3597's spelling for one that has none."""
    return str(QTYPE.get(qtype)) if qtype in QTYPE.forward else f"TYPE{qtype}"
