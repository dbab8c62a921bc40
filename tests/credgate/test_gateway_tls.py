"""TLS on both sides of the strict lane: sessions stay in their run, each handshake has its name, ends are told."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from credgate.runs import Listener, Run
from tests.credgate.gateway_rig import DECOY, Rig, Script, Seen, Target, listening, rig, server_tls

OK = b"HTTP/1.1 200"


def client_context(r: Rig) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(r.ca))


def ask(
    context: ssl.SSLContext, port: int, host: bytes, name: str, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLSession, bool]:
    """One request straight to the TLS port: the answer's beginning, the session, whether it was one of before."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=name, session=session) as tls,
    ):
        tls.sendall(b"GET /free/a HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host)
        got = b"".join(iter(lambda: tls.recv(65536), b""))
        found = tls.session
        assert found is not None
        return got, found, bool(tls.session_reused)


def test_a_handshake_is_resumed_within_its_run_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            context, host = client_context(r), b"api.good.test:%d" % r.direct
            got, session, reused = await asyncio.to_thread(ask, context, r.direct, host, "api.good.test")
            assert (got[:12], reused) == (OK, False)
            got, session, reused = await asyncio.to_thread(ask, context, r.direct, host, "api.good.test", session)
            assert (got[:12], reused) == (OK, True)
            sock = listening()
            port = sock.getsockname()[1]
            other = Run(
                id="run-2", policy=r.run.policy, role="dev", gateway_ip="127.0.0.98", proxy_port=0, proof="p",
                decoys={"swap": DECOY},
            )  # fmt: skip
            await r.gateway.serve(other, [Listener(sock=sock, port=r.direct, proxy=False)])
            got, _, reused = await asyncio.to_thread(ask, context, port, host, "api.good.test", session)
            assert (got[:12], reused) == (OK, False)

    asyncio.run(main())


def test_a_resumed_handshake_is_judged_by_its_own_name(tmp_path: Path) -> None:
    """Whether OpenSSL resumes under another name or not, what counts is the name of this ClientHello."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            context, host = client_context(r), b"api.good.test:%d" % r.direct
            _, session, _ = await asyncio.to_thread(ask, context, r.direct, host, "api.good.test")
            got, _, _ = await asyncio.to_thread(ask, context, r.direct, host, "evil.test", session)
            assert b" 403 " in got[:16]
            assert len(r.good.seen) == 1
            assert r.records("deny")[-1]["reason"] == "identity_mismatch"

    asyncio.run(main())


def answers(*pieces: bytes, then: Callable[[asyncio.StreamWriter], None]) -> Script:
    async def script(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        await asyncio.sleep(0.05)
        then(writer)

    return script


def broken_record(writer: asyncio.StreamWriter) -> None:
    """Bytes that are no record of this connection's, below its TLS."""
    below = writer.transport.get_extra_info("socket")
    os.write(below.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))


def test_an_answer_without_length_that_ends_in_a_broken_record_has_no_proper_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            head = b"HTTP/1.1 200 OK\r\n\r\n"
            request = b"GET /free/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct
            for then, proper in ((lambda w: w.close(), True), (broken_record, False)):
                r.good.script = answers(head + b"first", then=then)
                client = await r.tunnel()
                client.writer.write(request)
                got, error = b"", False
                try:
                    async with asyncio.timeout(60):
                        while more := await client.reader.read(65536):
                            got += more
                except (ConnectionError, ssl.SSLError):
                    error = True
                assert got.endswith(b"first")
                assert error is not proper
            assert [o.get("reason", "") for o in r.records("outcome")] == ["", "upstream_reset"]

    asyncio.run(main())


def test_a_target_that_speaks_before_tls_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:

            async def first(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
                writer.close()

            early = await asyncio.start_server(first, "127.0.0.1", 0)
            object.__setattr__(r.run.policy.endpoints["good"], "dial_port", early.sockets[0].getsockname()[1])
            client = await r.tunnel()
            answer = await client.get("/free/a", host=f"api.good.test:{r.direct}")
            assert (answer.status, answer.code) == (502, "upstream_tls")
            early.close()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_old_protocol_is_not_spoken_on_either_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            context = client_context(r)
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
            context.set_ciphers("ALL:@SECLEVEL=0")
            try:
                await asyncio.to_thread(ask, context, r.direct, b"api.good.test", "api.good.test")
            except (ssl.SSLError, ConnectionError):
                pass
            else:
                raise AssertionError("TLS 1.1 was spoken")
            old = server_tls(r.extra["ca"], "api.good.test")
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
            old.set_ciphers("ALL:@SECLEVEL=0")
            async with Target(old) as target:
                object.__setattr__(r.run.policy.endpoints["good"], "dial_port", target.port)
                client = await r.tunnel()
                answer = await client.get("/free/a", host=f"api.good.test:{r.direct}")
                assert (answer.status, answer.code) in {(502, "upstream_tls"), (502, "upstream_reset")}
                assert target.raw == b""

    asyncio.run(main())
