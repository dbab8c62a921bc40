"""A tunnel through a corporate proxy: CONNECT for the target's name, and nothing else of HTTP."""

import asyncio
import base64
import re
import ssl
from datetime import UTC, datetime

from credgate.secretvalue import Secret
from rules.policy import CorporateProxy

_MAX_HEAD = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?\r\n")

type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProxyRefused(OSError):
    """The proxy did not open the tunnel; the text holds its status and nothing else of its answer."""


def tls_of(proxy: CorporateProxy, bundle: str) -> ssl.SSLContext:
    """What a proxy with tls = true is verified by. Raises OSError where `ca` can't be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for file in (bundle, proxy.ca):
        if file:
            context.load_verify_locations(file)
    return context


def instant() -> str:
    """Now by the wall clock, as the ledger's `ts`."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def open_tunnel(streams: Streams, proxy: CorporateProxy, target: tuple[str, int], secret: Secret | None) -> None:
    """Ask for a tunnel to (host, port). Raises ProxyRefused, OSError."""
    reader, writer = streams
    writer.write(_question(proxy, target, secret))
    await writer.drain()
    while True:
        status = await _answer(reader)
        if status >= 200:
            break
    if status >= 300:
        raise ProxyRefused(f"the proxy refused the tunnel, status {status}")


def _question(proxy: CorporateProxy, target: tuple[str, int], secret: Secret | None) -> bytes:
    authority = f"{target[0]}:{target[1]}".encode("ascii")
    lines = [b"CONNECT " + authority + b" HTTP/1.1", b"Host: " + authority]
    if secret is not None:
        pair = f"{proxy.user}:{secret.reveal()}".encode()
        lines.append(b"Proxy-Authorization: Basic " + base64.b64encode(pair))
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _answer(reader: asyncio.StreamReader) -> int:
    """The status of one head. What follows it belongs to the tunnel: a body of a refusal is never read."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise ProxyRefused("the proxy gave no answer") from None
    match = _STATUS.match(head)
    if match is None or len(head) > _MAX_HEAD:
        raise ProxyRefused("the proxy's answer is not HTTP")
    return int(match[1])
