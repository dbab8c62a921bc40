"""An exception in a hook lets nothing pass. mitmproxy itself logs it and goes on, which the first test shows."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from mitmproxy import hooks as mitm_hooks
from mitmproxy.addonmanager import safecall

from credgate.gateway.hooks import HOOKS, QUIET, Hooks
from tests.credgate.gateway_rig import SECRET, Client, Rig, Seen, rig

# What the client got, if it got that far; "" where it only saw its connection end.
type Drive = Callable[[Rig], Awaitable[bytes]]


async def raw_get(client: Client, rig: Rig, host: str = "api.good.test") -> bytes:
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n" % (host.encode(), rig.direct))
    return await client.rest()


async def get(rig: Rig) -> bytes:
    return await raw_get(await rig.tunnel(), rig)


async def unreachable(rig: Rig) -> bytes:
    rig.names["up.good.test"] = (ip_address("127.0.0.77"),)
    return await raw_get(await rig.tunnel("up.good.test"), rig, "up.good.test")


async def garbage(rig: Rig) -> bytes:
    client = await rig.dial(rig.proxy)
    client.writer.write(b"\x00\x01\x02 nothing\r\n\r\n")
    return await client.rest()


async def bad_hello(rig: Rig) -> bytes:
    client = await rig.tunnel(sni=None)
    client.writer.write(b"\x16\x03\x01\x00\x05hello" + bytes(64))
    return await client.rest()


async def two_parts(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.write(b"0\r\n\r\n")


async def short(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst")
    writer.close()


async def then_close(_seen: Seen, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()


def scripted(script: Callable[..., Awaitable[None]]) -> Drive:
    async def drive(rig: Rig) -> bytes:
        rig.good.script = script
        return await get(rig)

    return drive


async def leaves(rig: Rig) -> bytes:
    rig.good.script = two_parts
    client = await rig.tunnel()
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % rig.direct)
    got = await client.reader.readuntil(b"first")
    client.close()
    return got


BEFORE: dict[str, Drive] = {
    "client_connected": get,
    "next_layer": get,
    "bad_head": garbage,
    "http_connect": get,
    "tls_start_client": get,
    "tls_established_client": get,
    "tls_failed_client": bad_hello,
    "requestheaders": get,
    "request": get,
    "server_connect": get,
    "server_connected": get,
    "server_connect_error": unreachable,
    "tls_start_server": get,
    "tls_established_server": get,
    "tls_failed_server": get,
}
AFTER: dict[str, Drive] = {
    "responseheaders": get,
    "response": scripted(two_parts),
    "error": scripted(short),
    "server_disconnected": scripted(then_close),
    "client_disconnected": leaves,
}


class Planted(Exception):
    def __str__(self) -> str:
        return SECRET  # a text that must show up nowhere


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    calls: list[str] = []

    async def failing(_self: Hooks, *_args: object) -> None:
        calls.append(name)
        raise Planted

    monkeypatch.setattr(Hooks, name, failing)
    return calls


def test_every_hook_in_use_has_its_case() -> None:
    assert set(BEFORE) | set(AFTER) == set(HOOKS)
    assert not set(BEFORE) & set(AFTER)
    assert not set(HOOKS) & QUIET
    assert (set(HOOKS) | QUIET) <= set(mitm_hooks.all_hooks)


def test_the_addon_manager_of_mitmproxy_would_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with safecall():
        raise Planted
    assert "Addon error" in caplog.text


@pytest.mark.parametrize("name", BEFORE)
def test_raising_before_the_request_is_sent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        hosts = ("wrong.test",) if name == "tls_failed_server" else ("api.good.test", "up.good.test")
        async with rig(tmp_path, good_hosts=hosts) as r:
            calls = plant(monkeypatch, name)
            got = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                got = await BEFORE[name](r)
            assert calls
            assert r.untouched
            assert b"HTTP/1.1 200" not in got
            if name == "requestheaders":
                assert b"403" in got
                assert b'"internal"' in got
            else:
                assert got == b""
            told = r.records("deny", "outcome")[-1]
            assert told["reason"] == "internal"
            assert told["detail"] == f"hook {name}: Planted"
            await everything_closed(r)
        assert SECRET not in caplog.text
        assert SECRET not in "".join(f.read_text() for f in r.ledger_dir.glob("*.jsonl"))

    asyncio.run(main())


@pytest.mark.parametrize("name", AFTER)
def test_raising_after_the_request_was_sent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            calls = plant(monkeypatch, name)
            got = await AFTER[name](r)
            async with asyncio.timeout(5):
                await r.good.closed.wait()
            assert calls
            assert SECRET.encode() in r.good.raw
            if name == "responseheaders":
                assert got == b""
            else:
                assert got.removesuffix(b"\r\n").endswith(b"first")  # and not the end of the chunks
            await everything_closed(r)
            told = [x for x in r.records("outcome", "deny") if x.get("reason") == "internal"]
            assert told
            assert told[-1]["detail"] == f"hook {name}: Planted"
        assert SECRET not in caplog.text

    asyncio.run(main())


def test_raising_while_a_body_is_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`request` comes at the end of a streamed body: the target gets no end of it, the client no answer."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            plant(monkeypatch, "request")
            client = await r.tunnel()
            head = b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nTransfer-Encoding: chunked\r\n\r\n" % r.direct
            client.writer.write(head + b"5\r\nfirst\r\n0\r\n\r\n")
            assert await client.rest() == b""
            async with asyncio.timeout(5):
                await r.good.closed.wait()
            assert r.records("outcome")[-1]["reason"] == "internal"
            await everything_closed(r)

    asyncio.run(main())


async def everything_closed(r: Rig) -> None:
    async with asyncio.timeout(5):
        while any(i.handlers for instances in r.gateway._instances.values() for i in instances):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["tcp_start", "udp_start", "dns_request", "websocket_start", "socks5_auth"])
def test_a_hook_that_means_unjudged_bytes_ends_the_connection(name: str) -> None:
    assert name not in HOOKS
    assert name not in QUIET


def test_without_the_stamp_the_same_request_passes(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            answer = await client.get(host=f"api.good.test:{r.direct}")
            client.close()
            assert answer.status == 200
            assert SECRET.encode() in r.good.raw

    asyncio.run(main())
