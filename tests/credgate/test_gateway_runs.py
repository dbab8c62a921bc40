"""Runs come and go; each is known by its listener, and ends whole."""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import ssl
import weakref
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.proxy import events

from credgate.gateway import hooks, mode
from credgate.gateway.crowd import Crowd
from credgate.gateway.server import Gateway, GatewayError
from credgate.loops import new_loop
from credgate.runs import Listener, Run
from tests.credgate.gateway_rig import DECOY, SECRET, Rig, listening, rig
from tests.credgate.h2_rig import H2Client


def second_run(r: Rig, **changes: Any) -> tuple[Run, list[Listener]]:
    fields: dict[str, Any] = {"decoys": {"swap": DECOY[::-1]}, "proof": "proof-2", **changes}
    sock = listening()
    port = sock.getsockname()[1]
    run = Run(id="run-2", policy=r.run.policy, role="dev", gateway_ip="127.0.0.98", proxy_port=port, **fields)
    return run, [Listener(sock=sock, port=port, proxy=True)]


def test_a_run_is_known_by_its_listener(tmp_path: Path) -> None:
    """The placeholder of one run is refused in another, though both come from one address."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            run, listeners = second_run(r)
            await r.gateway.serve(run, listeners)
            host = f"api.good.test:{r.direct}"
            mine, r.proxy = r.proxy, listeners[0].port
            client = await r.tunnel()
            refused = await client.get("/ph/a", host=host, Authorization=f"token {DECOY}")
            assert (refused.status, refused.code, r.good.seen) == (403, "placeholder_misplaced", [])
            assert (await client.get("/ph/a", host=host, Authorization=f"token {DECOY[::-1]}")).status == 200
            assert SECRET[::-1].encode() in r.good.seen[-1].raw
            assert {x["run"] for x in r.records("intent")} == {"run-2"}
            assert (run.allowed, r.run.allowed) == (1, 0)
            r.proxy = mine

    asyncio.run(main(), loop_factory=new_loop)


def test_closing_a_run_ends_its_connections_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            release = asyncio.Event()

            async def hang(_seen: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
                await writer.drain()
                await release.wait()

            run, listeners = second_run(r)
            await r.gateway.serve(run, listeners)
            theirs = await r.tunnel()
            r.proxy = listeners[0].port
            mine, idle = await r.tunnel(), await r.tunnel(sni=None)
            r.good.script = hang
            for client in (theirs, mine):
                client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\n\r\n" % r.direct)
                await client.reader.readuntil(b"part")
            await r.gateway.close("run-2")
            assert await mine.rest() == b""
            assert await idle.rest() == b""
            with pytest.raises(ConnectionError):
                await r.dial(listeners[0].port)
            assert [x["detail"] for x in r.records("outcome")] == ["the run ended"]
            release.set()
            assert not theirs.writer.transport.is_closing()
            await r.gateway.close("run-2")  # once more is no error

    asyncio.run(main(), loop_factory=new_loop)


def test_a_socket_that_does_not_listen(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            good, bad = listening(), socket.socket()
            with bad:
                bad.bind(("127.0.0.1", 0))
                run, unused = second_run(r)
                unused[0].sock.close()
                wanted = [Listener(sock=good, port=1, proxy=True), Listener(sock=bad, port=2, proxy=False)]
                port = good.getsockname()[1]
                with pytest.raises(GatewayError, match="listen_failed"):
                    await r.gateway.serve(run, wanted)
                with pytest.raises(ConnectionError):  # none of them is served
                    await r.dial(port)

    asyncio.run(main(), loop_factory=new_loop)


def test_a_run_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            with pytest.raises(GatewayError, match="run_served"):
                await r.gateway.serve(r.run, [])

    asyncio.run(main(), loop_factory=new_loop)


def test_not_started(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            fresh = Gateway(
                authority=r.extra["authority"],
                ledger=r.extra["ledger"],
                vault=r.vault,  # type: ignore[arg-type]
                resolve=lambda _host, _over: asyncio.sleep(0, ()),
                own_addresses=frozenset,
            )
            with pytest.raises(GatewayError, match="gateway_stopped"):
                await fresh.serve(r.run, [])

    asyncio.run(main(), loop_factory=new_loop)


def test_a_missing_hook_is_no_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            monkeypatch.setattr("credgate.gateway.serving.HOOKS", (*hooks.HOOKS, "no_such_hook"))
            with pytest.raises(GatewayError, match="no_such_hook"):
                await r.gateway.start()

    asyncio.run(main(), loop_factory=new_loop)


def test_a_missing_option_is_no_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            monkeypatch.setattr("credgate.gateway.serving._OPTIONS", {"no_such_option": False})
            with pytest.raises(GatewayError, match="option"):
                await r.gateway.start()

    asyncio.run(main(), loop_factory=new_loop)


def test_an_unknown_hook_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that no release had yet, or one that means raw bytes."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            names = tuple(n for n in hooks.HOOKS if n != "requestheaders")
            monkeypatch.setattr("credgate.gateway.handler.HOOKS", names)
            client = await r.tunnel("h2.good.test", alpn=("h2", "http/1.1"))
            pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/ok/a")]
            asked = [*pseudo, (b":authority", b"h2.good.test:%d" % r.direct)]
            with contextlib.suppress(ConnectionError, AssertionError):
                assert (await H2Client(client.reader, client.writer).ask(asked)).status == 0
            assert r.untouched
            assert "hook requestheaders" in r.records("deny")[-1]["detail"]

    asyncio.run(main(), loop_factory=new_loop)


def test_the_options_are_the_strict_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            options = r.gateway._options
            assert options.connection_strategy == "lazy"
            assert options.validate_inbound_headers is True
            assert (options.rawtcp, options.http3, options.websocket, options.upstream_cert) == (False,) * 4

    asyncio.run(main(), loop_factory=new_loop)


def test_connections_of_a_run_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            monkeypatch.setattr(mode, "MAX_CONNECTIONS", 3)
            clients = [await r.tunnel(sni=None) for _ in range(3)]
            surplus = await r.dial(r.proxy)
            assert await surplus.rest() == b""
            clients[0].close()
            await asyncio.sleep(0.05)
            assert await r.tunnel(sni=None)

    asyncio.run(main(), loop_factory=new_loop)


def test_the_bound_is_of_the_run_and_not_of_a_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            monkeypatch.setattr(mode, "MAX_CONNECTIONS", 3)
            clients = [await r.dial(port) for port in (r.proxy, r.direct, r.proxy)]
            await asyncio.sleep(0.05)
            for port in (r.proxy, r.direct):
                surplus = await r.dial(port)
                assert await surplus.rest() == b""
            clients[1].close()
            await asyncio.sleep(0.05)
            assert await r.tunnel(sni=None)

    asyncio.run(main(), loop_factory=new_loop)


def test_all_runs_together_have_a_bound_too() -> None:
    crowd = Crowd(8)
    assert [crowd.enter("a", 512) for _ in range(3)] == [True, True, False], "a run has a quarter of it at most"
    assert [crowd.enter(run, 512) for run in "bbccdd"] == [True] * 6
    assert not crowd.enter("e", 512)
    crowd.leave("a")
    assert crowd.enter("e", 512)
    assert not crowd.enter("a", 1), "and no more than was given"


def test_the_bound_stays_below_the_files_that_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 256), (4096, 1280), (256, 4), (resource.RLIM_INFINITY, 349525)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert Crowd.below_the_limit()._total == most


def test_nodelay_on_both_sides(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
            (handler,) = (h for i in r.gateway._instances["run-1"] for h in i.handlers)
            sockets = [pipe.info("socket") for pipe in (handler.pipe, handler._lane._link._pipe)]
            assert all(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for s in sockets)

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize("request_too", [True, False])
def test_nothing_of_a_connection_is_left_to_the_garbage_collector(request_too: bool, tmp_path: Path) -> None:
    """What it would free is cold by then, and each holds TLS's buffers until it comes."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            kept = list[weakref.ref[Any]]()
            for _ in range(3):
                client = await r.tunnel()
                if request_too:
                    assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
                (handler,) = (h for i in r.gateway._instances["run-1"] for h in i.handlers)
                kept += [weakref.ref(handler), weakref.ref(handler.pipe.tls)]
                del handler
                client.close()
                async with asyncio.timeout(60):
                    while any(i.handlers for i in r.gateway._instances["run-1"]) or any(ref() for ref in kept):
                        await asyncio.sleep(0.01)
            assert len(kept) == 6

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main(), loop_factory=new_loop)
    finally:
        gc.enable()


def test_a_client_that_does_not_trust_us_is_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", r.direct, ssl=True, server_hostname="api.good.test")
            async with asyncio.timeout(60):
                while not r.records("tunnel"):
                    await asyncio.sleep(0.01)
            (note,) = r.records("tunnel")
            assert note["sni"] == "api.good.test"
            assert "broke off" in note["detail"]

    asyncio.run(main(), loop_factory=new_loop)


def test_the_engine_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its texts quote URLs, headers and bytes."""
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            await client.get("/ok/canary", host=f"api.good.test:{r.direct}", X_Canary="canary")
            await client.ask(b"GET /canary\x00 HTTP/1.1\r\n\r\n")

    asyncio.run(main(), loop_factory=new_loop)
    assert [x.name for x in caplog.records if x.name.startswith(("mitmproxy", "h2", "hpack"))] == []
    assert "canary" not in caplog.text


def test_a_proxy_variable_of_the_daemon_means_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200

    asyncio.run(main(), loop_factory=new_loop)


class Below(asyncio.Transport):
    """A transport that is only asked to go."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_a_connection_that_is_cut_before_it_is_there(tmp_path: Path) -> None:
    """Between the accept and the protocol's first call the loop may do something else: revoke, for one."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            instance = r.gateway._instances["run-1"][0]
            pipe, below = instance._accept(), Below()
            assert r.gateway.cut("run-1", "revoked") == 1
            pipe.connection_made(below)
            assert below.aborted
            pipe.connection_lost(None)
            assert not instance.handlers

    asyncio.run(main(), loop_factory=new_loop)


async def engine(r: Rig) -> Any:
    """The handler of a connection in HTTP/2, which has carried one request."""
    client = await r.tunnel("h2.good.test", alpn=("h2", "http/1.1"))
    pseudo = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/ok/a")]
    asked = [*pseudo, (b":authority", b"h2.good.test:%d" % r.direct)]
    assert (await H2Client(client.reader, client.writer).ask(asked)).status == 200
    (handler,) = (h for i in r.gateway._instances["run-1"] for h in i.handlers)
    return handler


def test_after_the_kill_nothing_reaches_the_lane(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert (await client.get(host=f"api.good.test:{r.direct}")).status == 200
            (handler,) = (h for i in r.gateway._instances["run-1"] for h in i.handlers)
            reached: list[bytes] = []
            handler._lane.received = reached.append
            client.writer.write(b"x")
            await asyncio.sleep(0.05)
            assert reached == [b"x"]
            client.writer.write(b"y")  # waits in the socket when the connection is killed
            handler.kill()
            handler.pipe.buffer_updated(0)
            await asyncio.sleep(0.05)
            assert reached == [b"x"]
            assert await client.rest() == b""

    asyncio.run(main(), loop_factory=new_loop)


def test_after_the_kill_no_event_reaches_a_layer(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, alpn=("h2", "http/1.1")) as r:
            handler = await engine(r)
            reached: list[object] = []
            handler.layer.handle_event = lambda event: reached.append(event) or iter(())
            await handler.server_event(events.DataReceived(handler.client, b"x"))
            assert len(reached) == 1
            handler.kill()
            await handler.server_event(events.DataReceived(handler.client, b"x"))
            assert len(reached) == 1

    asyncio.run(main(), loop_factory=new_loop)


def test_after_the_kill_no_event_that_waited_reaches_a_layer(tmp_path: Path) -> None:
    async def main() -> list[object]:
        async with rig(tmp_path, alpn=("h2", "http/1.1")) as r:
            handler = await engine(r)
            reached: list[object] = []

            def take(event: object) -> object:
                reached.append(event)
                if len(reached) == 1:  # an event that comes while one is at work waits its turn
                    handler.feed(events.DataReceived(handler.client, b"y"))
                    assert len(reached) == 1
                    if killed:
                        handler.kill()
                return iter(())

            handler.layer.handle_event = take
            await handler.server_event(events.DataReceived(handler.client, b"x"))
            return reached

    killed = False
    assert len(asyncio.run(main(), loop_factory=new_loop)) == 2
    killed = True
    assert len(asyncio.run(main(), loop_factory=new_loop)) == 1
