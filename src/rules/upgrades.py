"""WebSocket's handshake (RFC 6455): which request is one, which answer agrees to it, and what goes upstream."""

import base64
import hashlib
import re

from rules.request import Request, Via

__all__ = ["accepts", "is_websocket", "upgrade_fields"]

# An extension changes what a frame means (compression: its bytes too), so none is offered, and none can be agreed on.
_DROPPED = b"sec-websocket-extensions"
_PROTOCOL = b"sec-websocket-protocol"
# Subprotocols that are a credential: OpenAI's realtime API and Kubernetes take one so from browsers, which can set no
# header.
_CREDENTIALS = (b"openai-insecure-api-key.", b"base64url.bearer.authorization.k8s.io.")
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

type Fields = tuple[tuple[bytes, bytes], ...]


def is_websocket(request: Request) -> bool:
    """Whether this is a whole handshake of version 13, and of nothing else. In absolute-form no client sends one."""
    names = {part.strip().lower() for value in _values(request.headers, b"connection") for part in value.split(b",")}
    return (
        request.upgrade == "websocket"
        and request.via is not Via.ABSOLUTE
        and request.method == "GET"
        and request.http_version == "HTTP/1.1"
        and b"upgrade" in names
        and _values(request.headers, b"sec-websocket-version") == [b"13"]
        and len(_values(request.headers, b"sec-websocket-key")) == 1
        and _KEY.fullmatch(_values(request.headers, b"sec-websocket-key")[0]) is not None
    )


def upgrade_fields(kept: Fields, keep_credentials: bool) -> Fields:
    """The fields of a handshake to send, made of those that every request keeps."""
    fields = [
        (name, value if keep_credentials or name.lower() != _PROTOCOL else _without_credentials(value))
        for name, value in kept
        if name.lower() != _DROPPED
    ]
    hop = ((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))
    return (*((n, v) for n, v in fields if v or n.lower() != _PROTOCOL), *hop)


def _without_credentials(value: bytes) -> bytes:
    parts = (part.strip() for part in value.split(b","))
    return b", ".join(part for part in parts if not part.lower().startswith(_CREDENTIALS))


def accepts(request: Fields, response: Fields) -> bool:
    """Whether the fields of a 101 agree to the handshake in the fields of its request, and to no more than that."""
    keys, accepted = _values(request, b"sec-websocket-key"), _values(response, b"sec-websocket-accept")
    offered = {part.strip() for value in _values(request, _PROTOCOL) for part in value.split(b",")}
    chosen = _values(response, _PROTOCOL)
    digest = base64.b64encode(hashlib.sha1(b"".join(keys) + _GUID, usedforsecurity=False).digest())
    return (
        accepted == [digest]
        and [value.lower() for value in _values(response, b"upgrade")] == [b"websocket"]
        and any(part.strip().lower() == b"upgrade" for v in _values(response, b"connection") for part in v.split(b","))
        and not _values(response, _DROPPED)
        and len(chosen) <= 1
        and offered.issuperset(chosen)
    )


def _values(fields: Fields, name: bytes) -> list[bytes]:
    return [value.strip(b" \t") for key, value in fields if key.lower() == name]
