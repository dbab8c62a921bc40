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

from credgate.gateway import link
from credgate.gateway.client import Client as Client_
from credgate.gateway.dial import Dialler
from credgate.gateway.hooks import HOOKS, QUIET, Hooks
from credgate.gateway.lane import Lane
from credgate.gateway.link import Link
from credgate.gateway.steps import Steps
from credgate.gateway.targettls import TargetTls
from tests.credgate.gateway_rig import SECRET, Client, Rig, free_port, rig
from tests.credgate.h2_rig import H2Client

# What the client got, if it got that far; "" where it only saw its connection end.
type Drive = Callable[[Rig], Awaitable[bytes]]


async def raw_get(client: Client, rig: Rig, host: str = "api.good.test") -> bytes:
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n" % (host.encode(), rig.direct))
    return await client.rest()


async def get(rig: Rig) -> bytes:
    return await raw_get(await rig.tunnel(), rig)


async def by_turns(rig: Rig) -> tuple[Client, bytes]:
    """A connection on which two requests were answered, and the first one's bytes: known, and not the last ones."""
    client = await rig.tunnel()
    asked, other = (
        b"GET /ok/%b HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % (name, rig.direct) for name in (b"a", b"b")
    )
    assert (await client.ask(asked)).status == 200
    assert (await client.ask(other)).status == 200
    return client, asked


async def get_again(rig: Rig) -> bytes:
    """A request once more, whose answer has the same head; what came of it."""
    client, asked = await by_turns(rig)
    client.writer.write(asked)
    return await client.rest()


async def get_known(rig: Rig) -> bytes:
    """A request once more, whose connections stay; what came of it."""
    client, asked = await by_turns(rig)
    answer = await client.ask(asked)
    client.close()
    return answer.body


async def unreachable(rig: Rig) -> bytes:
    rig.names["up.good.test"] = (ip_address("127.0.0.77"),)
    return await raw_get(await rig.tunnel("up.good.test"), rig, "up.good.test")


async def h2_get(rig: Rig) -> bytes:
    """The same over HTTP/2: what came, with the status in front of it where there is one."""
    opened = await rig.tunnel("h2.good.test", alpn=BOTH)
    pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"h2.good.test:%d" % rig.direct)]
    answer = await H2Client(opened.reader, opened.writer).ask([*pseudo, (b":path", b"/ok/a")])
    opened.close()
    return (b"HTTP/1.1 %d " % answer.status if answer.status else b"") + answer.body


async def h2_unreachable(rig: Rig) -> bytes:
    object.__setattr__(rig.run.policy.endpoints["h2"], "dial_port", free_port())
    return await h2_get(rig)


async def h2_garbage(rig: Rig) -> bytes:
    opened = await rig.tunnel("h2.good.test", alpn=BOTH)
    opened.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    opened.writer.write(b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x")  # DATA without a stream
    got = await opened.rest()
    return b"" if got.startswith(b"\x00\x00") else got  # frames of the connection's own


async def bad_hello(rig: Rig) -> bytes:
    client = await rig.tunnel(sni=None)
    client.writer.write(b"\x16\x03\x01\x00\x05hello" + bytes(64))
    return await client.rest()


async def h2_leaves(rig: Rig) -> bytes:
    """A client that goes once it has the head of an answer, whose body is still on its way."""
    rig.good.pace, rig.good.answer_size = 0.2, 1 << 20
    opened = await rig.tunnel("h2.good.test", alpn=BOTH)
    pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"h2.good.test:%d" % rig.direct)]
    asking = asyncio.ensure_future(H2Client(opened.reader, opened.writer).ask([*pseudo, (b":path", b"/ok/a")]))
    async with asyncio.timeout(60):
        while not any(session.seen for session in rig.good.sessions):
            await asyncio.sleep(0.01)
    opened.close()
    asking.cancel()
    return b"first"


async def h2_idle_end(rig: Rig) -> bytes:
    """The target closes a connection that has no request on it."""
    await h2_get(rig)
    return b"first"


BOTH = ("h2", "http/1.1")
BEFORE: dict[str, Drive] = {
    "bad_head": h2_garbage,
    "requestheaders": h2_get,
    "request": h2_get,
    "error": h2_unreachable,
    "server_connect": h2_get,
    "server_connected": h2_get,
    "server_connect_error": h2_unreachable,
    "tls_start_server": h2_get,
    "tls_established_server": h2_get,
    "tls_failed_server": h2_get,
}
AFTER: dict[str, Drive] = {
    "responseheaders": h2_get,
    "response": h2_get,
    "server_disconnected": h2_idle_end,
    "client_disconnected": h2_leaves,
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
    assert set(BEFORE) | set(AFTER) == set(HOOKS) - {
        "socket_end",
        "socket_message",
    }  # test_websocket, test_socket_messages
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
        hosts = ("wrong.test",) if name == "tls_failed_server" else ("api.good.test", "up.good.test", "h2.good.test")
        async with rig(tmp_path, good_hosts=hosts, alpn=BOTH) as r:
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
        async with rig(tmp_path, alpn=BOTH) as r:
            calls = plant(monkeypatch, name)
            got = await AFTER[name](r)
            async with asyncio.timeout(60):
                await r.good.closed.wait()
            assert calls
            assert secret_arrived(r)
            if name in {"responseheaders", "response"}:
                assert b"HTTP/1.1" not in got  # the stream never came to its end
            else:
                assert got.removesuffix(b"\r\n").endswith(b"first")  # and not the end of the chunks
            await everything_closed(r)
            told = [x for x in r.records("outcome", "deny") if x.get("reason") == "internal"]
            assert told
            assert told[-1]["detail"] == f"hook {name}: Planted"
        assert SECRET not in caplog.text

    asyncio.run(main())


def secret_arrived(r: Rig) -> bool:
    over_h2 = [value for session in r.good.sessions for seen in session.seen for value in seen.values(b"authorization")]
    return SECRET.encode() in r.good.raw or b"Bearer " + SECRET.encode() in over_h2


async def everything_closed(r: Rig) -> None:
    async with asyncio.timeout(60):
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


# -- the steps of the strict lane -----------------------------------------------------------------------------------


async def garbage(rig: Rig) -> bytes:
    client = await rig.dial(rig.proxy)
    client.writer.write(b"\x00\x01\x02 nothing\r\n\r\n")
    return await client.rest()


async def refused(rig: Rig) -> bytes:
    client = await rig.tunnel()
    client.writer.write(b"GET /no HTTP/1.1\r\nHost: api.good.test:%d\r\nConnection: close\r\n\r\n" % rig.direct)
    return await client.rest()


async def connect(rig: Rig) -> bytes:
    client = await rig.dial(rig.proxy)
    client.writer.write(b"CONNECT api.good.test:%d HTTP/1.1\r\n\r\n" % rig.direct)
    return await client.rest()


async def upload(rig: Rig) -> bytes:
    client = await rig.tunnel()
    head = b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nTransfer-Encoding: chunked\r\n\r\n" % rig.direct
    client.writer.write(head + b"5\r\nfirst\r\n0\r\n\r\n")
    return await client.rest()


async def coded(rig: Rig) -> bytes:
    """An answer of whose body nothing is to be read yet."""

    async def script(_seen: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 90\r\n\r\n")
        await writer.drain()

    rig.good.script = script
    return await get(rig)


# step: how to come there, and whether a target has the request by then.
STEPS_DRIVEN: dict[str, tuple[Drive, bool]] = {
    "bad_head": (garbage, False),
    "open_tunnel": (connect, False),
    "admit": (get, False),
    "at_once": (get, False),
    "written": (get_known, True),
    "refuse": (refused, False),
    "await_answer": (get, False),
    "await_coding": (coded, True),
    "leaving": (upload, False),
    "sent": (upload, False),
    "answered": (get, True),
    "answered_again": (get_again, True),
    "received": (get, True),
    "finish": (get, True),
    "broke": (unreachable, False),
}


def test_every_step_has_its_case() -> None:
    steps = {name for name, value in vars(Steps).items() if callable(value) and not name.startswith("_")}
    # `hold`: where bodies are judged, test_gateway_bodies; `passed`: test_websocket; `judge_message`:
    # test_socket_messages
    assert steps - {"hold", "passed", "judge_message"} == set(STEPS_DRIVEN)


@pytest.mark.parametrize("name", STEPS_DRIVEN)
def test_raising_in_a_step_of_the_strict_lane(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            calls: list[str] = []

            def failing(*_args: object, **_named: object) -> None:
                calls.append(name)
                raise Planted

            monkeypatch.setattr(Steps, name, failing)
            drive, arrived = STEPS_DRIVEN[name]
            got = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                got = await drive(r)
            assert calls
            assert r.untouched is not arrived
            if name == "refuse":
                assert b'"internal"' in got  # the stamp: a denial that could not be made is one of ours
            elif name in ("admit", "at_once", "written"):
                assert b'"internal"' in got
                # those before, of which all had to be asked
                assert r.good.raw.count(b"GET ") == {"admit": 0, "at_once": 0, "written": 2}[name]
            else:
                assert got == b""  # not even an answer that came whole: its end could not be recorded
            assert [x for x in r.records("deny", "outcome") if x.get("reason") == "internal"]
            await everything_closed(r)
        assert SECRET not in caplog.text

    asyncio.run(main())


def test_a_body_that_fails_on_its_way_gets_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece fails: the target has the first, and never the last chunk."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            sent, calls = Steps.sent, []

            def second(self: Steps, *args: object) -> object:
                calls.append(args)
                if len(calls) > 2:
                    raise Planted
                return sent(self, *args)  # type: ignore[arg-type]

            monkeypatch.setattr(Steps, "sent", second)
            client = await r.tunnel()
            head = b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nTransfer-Encoding: chunked\r\n\r\n" % r.direct
            client.writer.write(head)
            await asyncio.sleep(0.1)
            client.writer.write(b"5\r\nfirst\r\n")
            await asyncio.sleep(0.1)
            client.writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
            assert await client.rest() == b""
            async with asyncio.timeout(60):
                await r.good.closed.wait()
            assert len(calls) == 3
            assert r.records("outcome")[-1]["reason"] == "internal"
            await everything_closed(r)

    asyncio.run(main())


# -- the ways of the strict lane that are no step -------------------------------------------------------------------


async def over_tls(rig: Rig) -> bytes:
    streams = await asyncio.open_connection("127.0.0.1", rig.direct, ssl=rig.trust(), server_hostname="api.good.test")
    return await raw_get(Client(*streams), rig)


async def plain(rig: Rig) -> bytes:
    client = await rig.dial(rig.cleartext)
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: plain.good.test:%d\r\n\r\n" % rig.cleartext)
    return await client.rest()


# what raises: how to come there
WAYS: dict[str, tuple[type, Drive]] = {
    "_begin": (Client_, plain),
    "_leaf": (Client_, over_tls),
    "hand_over": (Client_, h2_get),
    "received": (Lane, get),
    "_arrive": (Lane, get),
    "_flow": (Lane, get),
    "_open": (Lane, get),
    "connected": (Lane, get),
    "_send_head": (Lane, get),
    "reach": (Dialler, get),
    "context": (TargetTls, get),
    "_dial": (Link, get),
    "_no_handshake": (Client_, bad_hello),
}


@pytest.mark.parametrize("name", WAYS)
def test_raising_on_a_way_of_the_strict_lane(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=BOTH) as r:
            calls: list[str] = []

            def failing(*_args: object, **_named: object) -> None:
                calls.append(name)
                raise Planted

            place, drive = WAYS[name]
            monkeypatch.setattr(place, name, failing)
            got = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                got = await drive(r)
            assert calls
            assert got == b""
            assert r.untouched
            if name != "_no_handshake":  # which records
                assert [x for x in r.records("deny", "outcome") if x.get("reason") == "internal"]
            await everything_closed(r)
        assert SECRET not in caplog.text
        assert SECRET not in "".join(f.read_text() for f in r.ledger_dir.glob("*.jsonl"))

    asyncio.run(main())


def test_pins_that_can_not_be_looked_at_let_nothing_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object) -> None:
        raise Planted

    async def main() -> None:
        async with rig(tmp_path) as r:
            monkeypatch.setattr(link, "pinned", failing)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert await get(r) == b""
            assert r.untouched
            assert r.records("outcome")[-1]["reason"] == "internal"
            await everything_closed(r)

    asyncio.run(main())
