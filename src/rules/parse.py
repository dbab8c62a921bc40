"""From what was on the wire to a Request, or to the reason why not. Raises nothing, whatever the bytes.

One identity: CONNECT host, SNI, Host or :authority, port and scheme name the same target, else identity_mismatch.
A body on GET or HEAD is refused: servers that ignore it read it as the next request.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from rules.addresses import AddressClass, classify
from rules.credentials import fold_name
from rules.hosts import AddressLiteral, HostError, normalize_host
from rules.paths import Ambiguity, normal_form
from rules.queries import names_of
from rules.reasons import Reason
from rules.request import Request, Via, Wire
from rules.verdict import Deny

__all__ = ["METHODS", "bracketed", "literal_denial", "parse_request"]

# Precedents: nginx takes 32 KiB of headers, Node 16 KiB, Apache 100 fields of 8 KiB.
MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 200
MAX_LINE = 16 << 10
MAX_TARGET = 8 << 10
_SHORT = 4 << 10  # bytes of headers that are worth to be remembered

METHODS = frozenset(
    {
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"),
        *("QUERY", "LIST"),  # the IETF's safe method with a body; HashiCorp Vault
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH"),  # WebDAV, Subversion
    }
)
_VERSIONS = frozenset({"HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/2"})
_DEFAULT_PORT = {"https": 443, "http": 80}
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110 5.5: a tab is the only one a value may hold
_QUERY = re.compile(rb"[\x21\x22\x24-\x7e]*")  # visible, without "#"
_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_DIGITS = re.compile(rb"[0-9]{1,19}")

_METHOD_OVERRIDES = frozenset({"x-http-method-override", "x-http-method", "x-method-override", "x-original-method"})
_PATH_OVERRIDES = frozenset({"x-original-url", "x-rewrite-url", "x-original-uri", "x-override-url"})
_FRAMING = frozenset({"host", "content-length", "transfer-encoding"})
# RFC 9113 8.2.2: these mean nothing in HTTP/2, and something to whoever translates it
_H1_ONLY = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    host: str | AddressLiteral
    port: int | None


class _Refused(Exception):
    """Carries a Deny out of the steps below; never leaves this module."""

    def __init__(self, deny: Deny) -> None:
        super().__init__(deny.reason)
        self.deny = deny


def parse_request(wire: Wire) -> Request | Deny:
    """The request in its one normal form, or why it has none."""
    try:
        return _parse(wire)
    except _Refused as refused:
        return refused.deny


def literal_denial(literal: AddressLiteral) -> Deny:
    """The refusal of an address that stands where a name belongs."""
    if classify(literal.address) is AddressClass.METADATA:
        return Deny(reason=Reason.METADATA, message="Metadata addresses are closed.")
    return Deny(
        reason=Reason.ADDRESS_LITERAL,
        message="Addresses are refused; use a host name that the policy lists.",
        hint="an endpoint names a host; its address goes into address = [...]",
    )


def bracketed(host: bytes) -> bytes:
    """The host of a CONNECT line with the brackets back that a parser may have taken from an IPv6 address."""
    return b"[" + host + b"]" if b":" in host and not host.startswith(b"[") else host


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What the connection and the headers say, whatever the target."""

    scheme: str
    host: str
    port: int
    method: str
    headers: tuple[tuple[bytes, bytes], ...]
    folded: frozenset[str]
    upgrade: str


def _head(wire: Wire) -> _Head:
    _check_headers(wire)
    _check_framing(wire)
    scheme = _scheme(wire)
    host, port = _identity(wire, scheme)
    return _Head(
        scheme=scheme,
        host=host,
        port=port,
        method=_method(wire),
        headers=_end_to_end(wire),
        folded=frozenset(fold_name(name) for name, _ in wire.headers),
        upgrade=_upgrade(wire),
    )


@lru_cache(maxsize=256)
def _known_head(wire: Wire) -> _Head:
    return _head(wire)


def _head_of(wire: Wire) -> _Head:
    """Of a client that sends the same headers for one target after the other they are looked at once."""
    if len(wire.target) > MAX_TARGET or sum(len(name) + len(value) for name, value in wire.headers) > _SHORT:
        return _head(wire)
    return _known_head(replace(wire, target=b""))


def _parse(wire: Wire) -> Request:
    head = _head_of(wire)
    path, query = _split_target(wire.target)
    normal = normal_form(path)
    if isinstance(normal, Ambiguity):
        raise _refuse(Reason.PATH_AMBIGUOUS, "The path can be read in more than one way.", hint=normal.why)
    names = names_of(query.decode("ascii"))
    _check_overrides(head.folded, names)
    _check_body(wire, head.method)
    return Request(
        via=wire.via,
        http_version=wire.http_version,
        method=head.method,
        scheme=head.scheme,
        host=head.host,
        port=head.port,
        path=normal.text,
        target=wire.target.decode("ascii"),
        query_names=names,
        headers=head.headers,
        encoded_slash=normal.encoded_slash,
        upgrade=head.upgrade,
        has_body=wire.has_body,
    )


def _refuse(reason: Reason, message: str, status: int = 403, hint: str = "") -> _Refused:
    return _Refused(Deny(reason=reason, message=message, status=status, hint=hint))


def _malformed(hint: str) -> _Refused:
    return _refuse(Reason.MALFORMED, "The request is not well-formed HTTP.", 400, hint)


def _mismatch(hint: str) -> _Refused:
    return _refuse(Reason.IDENTITY_MISMATCH, "The request names more than one target.", hint=hint)


def _is_h2(wire: Wire) -> bool:
    return wire.http_version.startswith("HTTP/2")


def _check_headers(wire: Wire) -> None:
    if wire.http_version not in _VERSIONS:
        raise _malformed("the version is none of HTTP/1.0, HTTP/1.1, HTTP/2")
    if len(wire.headers) > MAX_HEADERS or len(wire.target) > MAX_TARGET:
        raise _malformed(f"more than {MAX_HEADERS} headers, or a target over {MAX_TARGET} bytes")
    if sum(len(name) + len(value) + 4 for name, value in wire.headers) > MAX_HEADER_BYTES:
        raise _malformed(f"headers over {MAX_HEADER_BYTES} bytes")
    for name, value in wire.headers:
        _check_field(name, value)


def _check_field(name: bytes, value: bytes) -> None:
    if len(name) + len(value) > MAX_LINE:
        raise _malformed(f"a header over {MAX_LINE} bytes")
    if not _TOKEN.fullmatch(name):
        raise _malformed("a header name that is not a token")
    if _CONTROL.search(value):
        raise _malformed("a header value with a control character or a folded line")
    if b"_" in name and fold_name(name) in _FRAMING:
        raise _malformed("a header that some servers read as framing")


def _check_framing(wire: Wire) -> None:
    lengths, codings = _values(wire, b"content-length"), _values(wire, b"transfer-encoding")
    if len(lengths) > 1 or not all(_DIGITS.fullmatch(value) for value in lengths):
        raise _malformed("content-length is not one decimal number")
    if codings and (lengths or wire.http_version == "HTTP/1.0" or [c.lower() for c in codings] != [b"chunked"]):
        raise _malformed('transfer-encoding is not "chunked" alone')
    if _is_h2(wire):
        _check_h2(wire)
    elif not _connection_names(wire).isdisjoint(_FRAMING):
        raise _malformed("connection names a header that frames the message")


def _check_h2(wire: Wire) -> None:
    for name, value in wire.headers:
        if name != name.lower() or name.decode("latin-1") in _H1_ONLY:
            raise _malformed("a header that HTTP/2 does not have")
        if name == b"te" and value.lower() != b"trailers":
            raise _malformed("te is not trailers")


def _connection_names(wire: Wire) -> set[str]:
    return {fold_name(part.strip()) for value in _values(wire, b"connection") for part in value.split(b",")}


def _end_to_end(wire: Wire) -> tuple[tuple[bytes, bytes], ...]:
    """The headers that count: those that connection names go no further (RFC 9110 7.6.1), so nothing is judged by them.

    A content type or an operation that only the rules see would be a second reading of the body.
    """
    names = _connection_names(wire) - {"connection"}
    return tuple(f for f in wire.headers if fold_name(f[0]) not in names) if names else wire.headers


def _values(wire: Wire, name: bytes) -> list[bytes]:
    size = len(name)
    return [value.strip(b" \t") for key, value in wire.headers if len(key) == size and key.lower() == name]


def _scheme(wire: Wire) -> str:
    if wire.via is Via.ABSOLUTE:
        if wire.tls or wire.scheme.lower() != b"http" or not wire.authority:
            raise _mismatch("an absolute-form target is for http through the proxy; https goes through CONNECT")
        return "http"
    scheme = "https" if wire.tls else "http"
    if _is_h2(wire):
        if wire.scheme != scheme.encode():
            raise _mismatch("the scheme is not that of the connection")
    elif wire.authority or wire.scheme:
        raise _mismatch("an absolute-form target where only a path belongs")
    return scheme


def _identity(wire: Wire, scheme: str) -> tuple[str, int]:
    default = _DEFAULT_PORT[scheme]
    named = [_place(text, default) for text in _authorities(wire)]
    if wire.via is Via.CONNECT:
        named.append(_Place(host=_host(bracketed(wire.connect_host)), port=wire.connect_port))
    elif wire.via is Via.DIRECT:
        named.append(_Place(host=named[0].host, port=wire.listen_port))
    for place in named:
        if isinstance(place.host, AddressLiteral):
            raise _Refused(literal_denial(place.host))
    if wire.tls:
        named.append(_Place(host=_sni(wire.sni), port=named[0].port))
    if any(place != named[0] for place in named[1:]):
        raise _mismatch("CONNECT, SNI, host and port do not agree")
    return str(named[0].host), named[0].port or default


def _authorities(wire: Wire) -> list[bytes]:
    hosts = _values(wire, b"host")
    if len(hosts) > 1 or (not hosts and not _is_h2(wire)):
        raise _refuse(Reason.HOST_INVALID, "The request needs exactly one host.", 400, "one host header")
    found = [*([wire.authority] if wire.authority else []), *hosts]
    if not found:
        raise _refuse(Reason.HOST_INVALID, "The request needs exactly one host.", 400, "an :authority")
    return found


def _place(text: bytes, default: int) -> _Place:
    """Take host[:port] apart. No port means the scheme's own (RFC 9110 4.2)."""
    host, colon, port = text, b"", b""
    if not text.endswith(b"]"):
        host, colon, port = text.rpartition(b":") if b":" in text else (text, b"", b"")
    if not colon:
        return _Place(host=_host(host), port=default)
    if not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        raise _refuse(Reason.HOST_INVALID, "The host of the request is not valid.", 400, "a port that is no number")
    return _Place(host=_host(host), port=int(port))


def _host(raw: bytes) -> str | AddressLiteral:
    try:
        return normalize_host(raw)
    except HostError as error:
        raise _refuse(Reason.HOST_INVALID, "The host of the request is not valid.", 400, error.detail) from None


def _sni(sni: str | None) -> str | AddressLiteral:
    if not sni:
        raise _mismatch("TLS without a server name")
    try:
        return normalize_host(sni.encode("ascii"))
    except (UnicodeEncodeError, HostError):
        raise _mismatch("the server name of TLS is not a host name") from None


def _method(wire: Wire) -> str:
    method = wire.method.decode("latin-1")
    if method not in METHODS:
        raise _refuse(Reason.METHOD_INVALID, "The method is not accepted.", hint="not an upper-case word of the list")
    return method


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        raise _malformed("the target is not a path")
    if re.search(rb"[\x00-\x20\x7f]", target):
        raise _malformed("the target holds a space or a control character")
    if not _QUERY.fullmatch(query):
        raise _refuse(Reason.PATH_AMBIGUOUS, "The path can be read in more than one way.", hint="a query outside ascii")
    return path, query


def _check_overrides(folded: frozenset[str], names: tuple[str, ...]) -> None:
    if not folded.isdisjoint(_METHOD_OVERRIDES) or "_method" in names:
        raise _refuse(Reason.METHOD_INVALID, "The method is not accepted.", hint="a second method beside the first")
    if not folded.isdisjoint(_PATH_OVERRIDES):
        raise _refuse(
            Reason.PATH_AMBIGUOUS, "The path can be read in more than one way.", hint="a header names one more"
        )


def _check_body(wire: Wire, method: str) -> None:
    if method not in ("GET", "HEAD"):
        return
    framed = any(int(value) for value in _values(wire, b"content-length")) or _values(wire, b"transfer-encoding")
    if wire.has_body or framed:
        raise _refuse(Reason.BODY_REFUSED, "A body is not accepted with this method.", hint="send it with POST")


def _upgrade(wire: Wire) -> str:
    return b", ".join(_values(wire, b"upgrade")).decode("latin-1").lower()
