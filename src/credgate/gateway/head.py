"""Strict reading of an HTTP/1 head. Pure: bytes in, parts or HeadError out.

mitmproxy's own reader takes bare LF, folded lines and NUL, and waits without bound for a head that never ends (tried);
each of these is a way to make two parsers disagree, or to fill the memory.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import msgspec

MAX_HEAD = 64 << 10  # bytes with both line ends; nginx takes 32 KiB, Node 16
MAX_LINES = 257  # the first line and 256 fields: more than the parser of the rules takes, so that its reason counts

# A client says the same head again and again, but for a path now and then: those are taken apart once. Pure.
_SHORT, _MANY = 4 << 10, 256
_END = b"\r\n\r\n"
# A NUL, an LF without its CR, a CR without its LF (a CR at the end may still get it), a folded line (RFC 9112 5.2).
_ILLEGAL = re.compile(rb"\x00|(?<!\r)\n|\r(?![\n]|\Z)|\r\n[ \t]")
_OVERLAP = 3  # what _ILLEGAL has to see again of bytes that it has seen
_REQUEST_LINE = re.compile(rb"([^\x00-\x20\x7f]+) ([^\x00-\x20\x7f]+) (HTTP/[0-9]\.[0-9])")
_STATUS_LINE = re.compile(rb"(HTTP/1\.[01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
# The same grammar for a whole head at once; possessive, so that no input makes it look twice.
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\r\n\x00]*+)\r\n")
_FIELDS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[^\r\n\x00]*+\r\n)*+")
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ABSOLUTE = re.compile(rb"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)(.*)")

type Fields = tuple[tuple[bytes, bytes], ...]


class HeadError(Exception):
    """The bytes are no HTTP/1 head. `http` is False where not even the first line looks like one."""

    def __init__(self, detail: str, *, http: bool = True) -> None:
        super().__init__(detail)
        self.http = http


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """`target` is a path, or the whole target of CONNECT; scheme and authority are those of an absolute-form one."""

    method: bytes
    target: bytes
    version: bytes
    scheme: bytes
    authority: bytes
    fields: Fields


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """A status line and its fields."""

    version: bytes
    status: int
    phrase: bytes
    fields: Fields


def cut(buffer: bytes, seen: int) -> bytes | None:
    """Return the head without its empty line, None where more bytes are needed. Raises HeadError as soon as it can.

    `seen` is the length of the buffer at the last call: the bytes before it are not looked at again.
    """
    end = buffer.find(_END, max(0, seen - _OVERLAP))
    head = buffer if end < 0 else buffer[: end + 2]
    if end >= 0 and len(head) <= MAX_HEAD and _is_plain(head):
        return buffer[:end]
    if len(head) > MAX_HEAD:
        raise HeadError(f"head over {MAX_HEAD} bytes")
    if _ILLEGAL.search(head, max(0, seen - _OVERLAP)):
        raise HeadError("line ends or control bytes that HTTP does not have", http=_plausible(head))
    if head and not _plausible(head):
        raise HeadError("not HTTP", http=False)
    return buffer[:end] if end >= 0 else None


def _is_plain(head: bytes) -> bool:
    """Whether a whole head has nothing that would have to be told apart below."""
    known = len(head) <= _SHORT and not head.startswith(b"HTTP/")  # an answer has a time in it
    return _known_plain(head) if known else _looks_plain(head)


@lru_cache(maxsize=_MANY)
def _known_plain(head: bytes) -> bool:
    return _looks_plain(head)


def _looks_plain(head: bytes) -> bool:
    line, _, fields = head.partition(b"\r\n")
    return _plausible(line + b"\r\n") and _FIELDS.fullmatch(fields) is not None


def _plausible(head: bytes) -> bool:
    """Whether the first line, so far as it is there, may be one of HTTP."""
    line, ended, _ = head.partition(b"\r\n")
    if ended:
        return bool(_REQUEST_LINE.fullmatch(line) or _STATUS_LINE.fullmatch(line))
    return line[:1].isalpha() and not line.startswith(b"SSH-")


def take_request(buffer: bytes, seen: int) -> tuple[RequestHead, int] | None:
    """As cut and parse_request_head: the head, and the bytes that it takes with its empty line."""
    end = buffer.find(_END, max(0, seen - _OVERLAP))
    if 0 <= end <= _SHORT and _known_plain(buffer[: end + 2]):
        return _known_request(buffer[:end]), end + len(_END)
    line, _, block = buffer[: max(end, 0) + 2].partition(b"\r\n")
    if 0 <= end <= MAX_HEAD - 2 and _REQUEST_LINE.fullmatch(line) and (fields := _fields(block)) is not None:
        return _request(line, fields), end + len(_END)
    head = cut(buffer, seen)  # not whole, or what it is refused for
    return None if head is None else (parse_request_head(head), len(head) + len(_END))


def take_response(buffer: bytes, seen: int) -> tuple[ResponseHead, int] | None:
    """As cut and parse_response_head, likewise."""
    end = buffer.find(_END, max(0, seen - _OVERLAP))
    head = buffer[: max(end, 0) + 2]
    line, _, block = head.partition(b"\r\n")
    if 0 <= end <= MAX_HEAD - 2 and (match := _STATUS_LINE.fullmatch(line)) and not _CONTROL.search(head):
        fields = _fields(block)
        if fields is not None:
            version, status, phrase = match.groups()
            return ResponseHead(version=version, status=int(status), phrase=phrase or b"", fields=fields), end + 4
    raw = cut(buffer, seen)
    return None if raw is None else (parse_response_head(raw), len(raw) + len(_END))


def _fields(block: bytes) -> Fields | None:
    """The fields of a whole block, None where it is no plain one."""
    if not _FIELDS.fullmatch(block):
        return None
    found = _FIELD.findall(block)
    if len(found) >= MAX_LINES:
        return None
    return tuple([(name, value.strip(b" \t")) for name, value in found])


def parse_request_head(head: bytes) -> RequestHead:
    """Take a head from `cut` apart. Raises HeadError."""
    return _known_request(head) if len(head) <= _SHORT else _parse_request(head)


@lru_cache(maxsize=_MANY)
def _known_request(head: bytes) -> RequestHead:
    return _parse_request(head)


def _parse_request(head: bytes) -> RequestHead:
    line, fields = _split(head)
    return _request(line, fields)


def _request(line: bytes, fields: Fields) -> RequestHead:
    match = _REQUEST_LINE.fullmatch(line)
    if not match:
        raise HeadError("not a request line", http=False)
    method, target, version = match.groups()
    if method == b"PRI":  # RFC 9113 3.4: HTTP/2 by prior knowledge, which ALPN did not agree on
        raise HeadError("HTTP/2 without ALPN", http=False)
    scheme = authority = b""
    if method != b"CONNECT" and (absolute := _ABSOLUTE.fullmatch(target)):
        scheme, authority, rest = absolute.groups()
        target = rest if rest.startswith(b"/") else b"/" + rest  # RFC 9112 3.2.2: an empty path is "/"
        if not authority:
            raise HeadError("an absolute target without a host")
    return RequestHead(method=method, target=target, version=version, scheme=scheme, authority=authority, fields=fields)


def parse_response_head(head: bytes) -> ResponseHead:
    """Take a response's head apart. Raises HeadError."""
    line, fields = _split(head)
    match = _STATUS_LINE.fullmatch(line)
    if not match:
        raise HeadError("not a status line", http=False)
    if _CONTROL.search(head):
        raise HeadError("a control character in an answer's head")
    version, status, phrase = match.groups()
    return ResponseHead(version=version, status=int(status), phrase=phrase or b"", fields=fields)


def _split(head: bytes) -> tuple[bytes, Fields]:
    line, ended, rest = head.partition(b"\r\n")
    block = rest + ended
    if block.count(b"\r\n") >= MAX_LINES:
        raise HeadError(f"more than {MAX_LINES - 1} header fields")
    # RFC 9112 5.1: a space before the colon is how two parsers come to see different fields
    if not _FIELDS.fullmatch(block):
        raise HeadError("not a header field")
    return line, tuple([(name, value.strip(b" \t")) for name, value in _FIELD.findall(block)])
