"""Encrypted ClientHello: browsers send the extension as noise to everybody, and the gateway has no key for a real one.

The resolver gives no HTTPS record, so no client here has a configuration; what arrives is noise, and is passed over.
"""

import asyncio
import dataclasses
import os
import ssl
import struct
from pathlib import Path

from tests.credgate.gateway_rig import PATIENT, rig

ECH = 0xFE0D  # draft-ietf-tls-esni: encrypted_client_hello
HANDSHAKE, ALERT, SERVER_HELLO = 22, 21, 2


def client_hello(host: str) -> bytes:
    """The first record that OpenSSL would send."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=host).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake without a server")


def with_extension(record: bytes, kind: int, body: bytes) -> bytes:
    """The same with one more extension, all four lengths put right (RFC 8446, section 4.1.2)."""
    message = bytearray(record[5:])
    at = 4 + 2 + 32
    at += 1 + message[at]  # session id
    at += 2 + int.from_bytes(message[at : at + 2])  # cipher suites
    at += 1 + message[at]  # compression methods
    extensions = message[at + 2 :] + struct.pack(">HH", kind, len(body)) + body
    message[at:] = struct.pack(">H", len(extensions)) + extensions
    message[1:4] = (len(message) - 4).to_bytes(3)
    return record[:3] + struct.pack(">H", len(message)) + bytes(message)


def noise() -> bytes:
    """An outer ClientHello's extension as a browser makes it up: suite, config id, encapsulated key, payload."""
    return (
        b"\x00" + struct.pack(">HHB", 1, 1, 7) + struct.pack(">H", 32) + os.urandom(32) + b"\x00\xd0" + os.urandom(208)
    )


async def answer(port: int, hello: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello)
    async with asyncio.timeout(60):
        head = await reader.readexactly(6)
    writer.close()
    return head


def test_noise_is_tolerated(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            plain = client_hello("api.good.test")
            for hello in (plain, with_extension(plain, ECH, noise())):
                head = await answer(r.direct, hello)
                assert (head[0], head[5]) == (HANDSHAKE, SERVER_HELLO)
            assert r.good.seen == []

    asyncio.run(main())


def test_control_a_broken_hello_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, timeouts=dataclasses.replace(PATIENT, tls=1.0)) as r:
            hello = with_extension(client_hello("api.good.test"), ECH, noise())
            broken = hello[:-8]  # its own lengths promise more than the record holds
            with_lengths = broken[:3] + struct.pack(">H", len(broken) - 5) + broken[5:]
            try:
                head = await answer(r.direct, with_lengths)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            assert head[0] == ALERT

    asyncio.run(main())
