"""One request: `Wire` as the gateway saw it, `Request` in its one normal form. Only parse_request builds a Request."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Via(StrEnum):
    """How the request came to the gateway; one function judges them all."""

    CONNECT = "connect"  # explicit proxy, tunnel
    ABSOLUTE = "absolute"  # explicit proxy, absolute-form, plain HTTP
    DIRECT = "direct"  # the client dialled the gateway as if it were the target


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Raw facts, unjudged. Bytes are what was on the wire (HTTP/2: the pseudo-headers' values)."""

    via: Via
    http_version: str  # "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ...
    method: bytes
    target: bytes  # request target or :path
    headers: tuple[tuple[bytes, bytes], ...]  # without pseudo-headers
    tls: bool
    authority: bytes = b""  # :authority, or the authority of an absolute-form target
    scheme: bytes = b""  # :scheme, or the scheme of an absolute-form target
    connect_host: bytes = b""  # of the CONNECT line, without port
    connect_port: int = 0
    sni: str | None = None
    listen_port: int = 0  # the gateway's port that accepted (DIRECT: the port the client means)
    has_body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Normal form. `target` ("path" or "path?query") is judged and is byte for byte what is sent."""

    via: Via
    http_version: str
    method: str
    scheme: str  # "https" | "http"
    host: str  # lower case, no trailing dot
    port: int
    path: str
    target: str
    query_names: tuple[str, ...]
    headers: tuple[tuple[bytes, bytes], ...]
    encoded_slash: bool = False  # the path holds %2f; only a rule that says so allows it
    upgrade: str = ""  # lower-case protocol of an Upgrade header
    has_body: bool = False
    body: bytes | None = field(default=None, repr=False)  # decoded; None: not read (yet)
    # What was read of this very body, by what was asked: it is asked for by each step of the judgement, and 6 MiB take
    # a second. replace() begins a new one.
    _readings: dict[object, object] = field(init=False, compare=False, repr=False, default_factory=dict)

    def once[T](self, asked: object, read: "Callable[[], T]") -> T:
        """What `read` makes of this request and of nothing else; `asked` says what that is."""
        if asked not in self._readings:
            self._readings[asked] = read()
        return cast("T", self._readings[asked])


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent in a request's place, secrets in it: never shown. `target` is "path" or "path?query".

    `body` None: the client's own goes on as it came; else this one, whole, without a content coding, and `fields` hold
    its content-length.
    """

    target: str
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
