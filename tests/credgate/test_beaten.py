"""The beaten track: what comes of the requests on it is what comes of them where there is none, whatever happens."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from credgate.gateway import standing
from credgate.gateway.beaten import Beaten, Track
from credgate.gateway.records import Records
from credgate.known import KnownValues
from credgate.ledger.record import LedgerError
from credgate.ledger.writer import Ledger
from credgate.loops import new_loop
from tests.credgate.gateway_rig import FAST, POLICY, SECRET, Client, Rig, Seen, Target, rig

ROTATED = "ghp_rotatedRotatedRotatedRotatedRotated01"
OTHER = "ghp_otherOtherOtherOtherOtherOtherOther01"


def head(r: Rig, path: str = "/ok/a", method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: api.good.test:{r.direct}\r\n{more}\r\n".encode()


async def asks(client: Client, raw: bytes, times: int = 3) -> list[object]:
    """What came of each; an end of the connection is what came of it too."""
    got: list[object] = []
    for _ in range(times):
        try:
            answer = await client.ask(raw)
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            return [*got, "end"]
        got.append((answer.status, answer.head, answer.body))
    return got


def once(script: Callable[[Seen, Any, asyncio.StreamWriter], Awaitable[None]], at: int) -> Any:
    """A target that does something else with one request, the `at`-th."""
    count = [0]
    usual = Target(None).script

    async def answer(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count[0] += 1
        await (script if count[0] == at else usual)(seen, reader, writer)

    return answer


async def plainly(r: Rig) -> list[object]:
    return await asks(await r.tunnel(), head(r), 5)


async def without_body(r: Rig) -> list[object]:
    return await asks(await r.tunnel(), head(r, method="HEAD"), 4)


async def with_a_length_of_none(r: Rig) -> list[object]:
    return await asks(await r.tunnel(), head(r, more="Content-Length: 0\r\nUser-Agent: mine/1\r\n"), 4)


async def two_by_turns(r: Rig) -> list[object]:
    client = await r.tunnel()
    return [await asks(client, head(r, path), 1) for path in ("/ok/a", "/ok/b") * 3]


async def in_one_write(r: Rig) -> list[object]:
    client = await r.tunnel()
    first = await asks(client, head(r), 2)
    client.writer.write(head(r) * 3)
    return [*first, *[(await client.answer()).body for _ in range(3)], *await asks(client, head(r), 2)]


async def in_pieces(r: Rig) -> list[object]:
    client, raw = await r.tunnel(), head(r)
    got = await asks(client, raw, 2)
    client.writer.write(raw[:20])
    await client.writer.drain()
    await asyncio.sleep(0.05)
    got += await asks(client, raw[20:], 1)
    return got + await asks(client, raw, 2)


async def wrong_ones_between(r: Rig) -> list[object]:
    client = await r.tunnel()
    got = await asks(client, head(r), 2)
    got += await asks(client, head(r, "/no"), 1)
    got += await asks(client, head(r), 2)
    client.writer.write(b"GET /ok/a HTTP/1.1\r\nHost : x\r\n\r\n")
    return [*got, b" 400 " in await client.rest()]


async def rotated(r: Rig) -> list[object]:
    client, vault = await r.tunnel(), r.vault
    got = await asks(client, head(r), 3)
    vault.values["token"] = ROTATED
    got += await asks(client, head(r), 3)
    del vault.values["token"]
    got += await asks(client, head(r), 2)
    vault.values["token"] = SECRET
    return got + await asks(client, head(r), 2)


async def revoked(r: Rig) -> list[object]:
    client = await r.tunnel()
    got = await asks(client, head(r), 3)
    r.run.paused = True
    got += await asks(client, head(r), 2)
    r.run.paused = False
    got += await asks(client, head(r), 2)
    r.run.revoked_bindings.add("token")
    got += await asks(client, head(r), 2)
    r.run.revoked_bindings.clear()
    got += await asks(client, head(r), 2)
    proof, r.run.proof = r.run.proof, ""
    got += await asks(client, head(r), 2)
    r.run.proof = proof + "x"
    got += await asks(client, head(r), 2)
    r.run.revoked = True
    return got + await asks(client, head(r), 2)


async def another_secret_is_known(r: Rig) -> list[object]:
    """From then on it may not be in a head, nor in an answer."""
    client = await r.tunnel()
    raw = head(r, more=f"X-Note: {OTHER}\r\n")
    got = await asks(client, raw, 3)
    r.gateway._hooks.judge.known.add("other", OTHER)
    return got + await asks(client, raw, 2)


async def said_back(r: Rig) -> list[object]:
    async def tells(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        body = b"it is " + SECRET.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Request-Id: target-1\r\n" % len(body))
        writer.write(b"Set-Cookie: a=b\r\nAlt-Svc: h3\r\n\r\n" + body)

    r.good.script = once(tells, 4)
    return await asks(await r.tunnel(), head(r), 6)


async def in_two_pieces(r: Rig) -> list[object]:
    async def slow(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Request-Id: target-1\r\nSet-")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"Cookie: a=b\r\nAlt-Svc: h3\r\n\r\nok")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b" 0")

    r.good.script = once(slow, 4)
    return await asks(await r.tunnel(), head(r), 6)


async def too_long(r: Rig) -> list[object]:
    async def more(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Request-Id: target-1\r\n")
        writer.write(b"Set-Cookie: a=b\r\nAlt-Svc: h3\r\n\r\nok 0HTTP/1.1 200 OK\r\n\r\n")

    r.good.script = once(more, 4)
    return await asks(await r.tunnel(), head(r), 6)


async def closing(r: Rig) -> list[object]:
    async def last(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Request-Id: target-1\r\n")
        writer.write(b"Set-Cookie: a=b\r\nAlt-Svc: h3\r\nConnection: close\r\n\r\nok 0")
        writer.close()

    r.good.script = once(last, 4)
    return await asks(await r.tunnel(), head(r), 6)


async def gone(r: Rig) -> list[object]:
    """It ends in place of an answer: a GET is sent once more."""

    async def ends(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.close()

    r.good.script = once(ends, 4)
    return await asks(await r.tunnel(), head(r), 6)


async def broken(r: Rig) -> list[object]:
    async def nothing(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nothing of HTTP\r\n\r\n")

    r.good.script = once(nothing, 4)
    return await asks(await r.tunnel(), head(r), 6)


async def unasked(r: Rig) -> list[object]:
    """Bytes behind an answer, while nothing is on its way."""

    async def more(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Request-Id: target-1\r\n")
        writer.write(b"Set-Cookie: a=b\r\nAlt-Svc: h3\r\n\r\nok 0")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    r.good.script = once(more, 4)
    client = await r.tunnel()
    got = await asks(client, head(r), 4)
    await asyncio.sleep(0.2)
    return got + await asks(client, head(r), 2)


async def leaving(r: Rig) -> list[object]:
    """The client goes while its request is on the way to the disk, or to the target."""
    client = await r.tunnel()
    got = await asks(client, head(r), 3)
    client.writer.write(head(r))
    client.writer.close()
    await settled(r, 4)
    return got


async def lent(r: Rig) -> list[object]:
    """Another connection of the run takes the target's connection meanwhile."""
    one, other = await r.tunnel(), await r.tunnel()
    got = []
    for _ in range(3):
        got += [*await asks(one, head(r), 2), *await asks(other, head(r, "/ok/b"), 2)]
    return got


async def anew(r: Rig, raw: bytes, times: int = 3, sni: str = "", host: str = "api.good.test") -> list[object]:
    """Each on a connection of its own, which has left its target's to the pool."""
    got: list[object] = []
    for _ in range(times):
        client = await r.tunnel(host, sni=sni)
        got += await asks(client, raw, 1)
        client.close()
        async with asyncio.timeout(60):
            while any(one.handlers for one in r.gateway._instances["run-1"]):
                await asyncio.sleep(0.01)
    return got


async def connections(r: Rig) -> list[object]:
    raw, direct = head(r), await r.tls()
    got = await asks(direct, raw, 2)
    direct.close()
    got += await anew(r, raw, 3)
    got += await anew(r, raw, 2, sni="other.good.test")
    got += await anew(r, raw, 2, host="other.good.test", sni="api.good.test")
    got += await anew(r, head(r, method="HEAD"), 3)
    got += await anew(r, head(r, more="Connection: close\r\n"), 3)
    got += await anew(r, head(r, "/no"), 2)
    return got + await anew(r, raw, 2)


async def connections_of_another_policy(r: Rig) -> list[object]:
    raw = head(r)
    got, policy = await anew(r, raw, 3), r.run.policy
    r.run.policy, r.run.generation = replace(policy, sha256="0" * 64), 1
    got += await anew(r, raw, 3)
    r.run.policy, r.run.generation = policy, 3
    return got + await anew(r, raw, 2)


async def connections_whose_target_is_closed(r: Rig) -> list[object]:
    """Its address has become the gateway's own: the connection that waits there is nobody's any more."""
    raw = head(r)
    got, mine = await anew(r, raw, 3), r.gateway._listening
    r.gateway._listening = mine | {ip_address("127.0.0.1")}
    got += await anew(r, raw, 2)
    r.gateway._listening = mine
    return got + await anew(r, raw, 2)


async def connections_that_change(r: Rig) -> list[object]:
    raw, vault = head(r), r.vault
    got = await anew(r, raw, 3)
    vault.values["token"] = ROTATED
    got += await anew(r, raw, 3)
    r.run.paused = True
    got += await anew(r, raw, 2)
    r.run.paused = False
    got += await anew(r, raw, 2)
    r.run.revoked_bindings.add("token")
    got += await anew(r, raw, 2)
    r.run.revoked_bindings.clear()
    r.run.decoys = {}
    got += await anew(r, raw, 2)
    r.run.revoked = True
    return got + await anew(r, raw, 2)


async def connections_to_one_that_ends(r: Rig) -> list[object]:
    async def ends(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.close()

    r.good.script = once(ends, 4)
    return await anew(r, head(r), 6)


async def settled(r: Rig, intents: int) -> None:
    """Each intent has its outcome."""
    async with asyncio.timeout(60):
        while len(r.records("outcome")) < intents or len(r.records("intent")) < intents:
            await asyncio.sleep(0.01)


SCENES = (
    *(plainly, without_body, with_a_length_of_none, two_by_turns, in_one_write, in_pieces, wrong_ones_between),
    *(rotated, revoked, another_secret_is_known, said_back, in_two_pieces, too_long, closing, gone, broken, unasked),
    *(leaving, lent, connections, connections_of_another_policy, connections_whose_target_is_closed),
    *(connections_that_change, connections_to_one_that_ends),
)
NOT_ALIKE = (
    "ts",
    "mono_ns",
    "prev",
    "hash",
    "ms",
    "boot",
    "ua_tag",
    "request_id",
    "intent_seq",
    "seq",
    "policy_sha256",
)


def told(r: Rig) -> list[object]:
    """The ledger's lines without what differs each time, the outcomes behind their intents."""
    lines = r.records("intent", "outcome", "deny", "alarm")
    prints = list(dict.fromkeys(line.get("cred_fp") for line in lines))
    order = {line["seq"]: number for number, line in enumerate(line for line in lines if line["ev"] == "intent")}
    found = []
    for line in lines:
        kept = {name: value for name, value in line.items() if name not in NOT_ALIKE and not name.endswith("port")}
        kept["cred_fp"] = prints.index(line.get("cred_fp"))
        kept["of"] = order.get(line.get("intent_seq"), -1)
        found.append(kept)
    return found


async def observed(scene: Callable[[Rig], Awaitable[list[object]]], tmp: Path, **more: Any) -> list[object]:
    async with rig(tmp, **more) as r:
        got = await scene(r)
        await settled(r, len(r.records("intent")))
        seen = [re.sub(rb"credgate[^\r]*|:\d+", b"", one.raw) for one in r.good.seen]
        run = r.run
        spent = (run.allowed, run.denied, run.turned_away, run.spent.requests, run.spent.bytes_out, run.spent.uses)
        lines = told(r)
    plain = re.sub(rb'cg-[0-9a-z-]+|"request_id": "[^"]*"|credgate-request-id: [^\r]*|:\d+', b"", repr(got).encode())
    return [plain, seen, spent, lines]


@pytest.mark.parametrize("scene", SCENES)
def test_it_leads_where_the_way_led(
    scene: Callable[[Rig], Awaitable[list[object]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = []
    went, go = [0], Records.went

    def counted(*args: Any) -> None:
        went[0] += 1
        go(*args)

    monkeypatch.setattr(Records, "went", counted)
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        if name == "without":
            assert went[0] or scene is two_by_turns
            monkeypatch.setattr(Beaten, "again", lambda *_: False)
            went[0] = 0
        ways.append(asyncio.run(observed(scene, tmp_path / name), loop_factory=new_loop))
    assert not went[0]
    assert ways[0] == ways[1]


def test_a_bound_is_exact(tmp_path: Path) -> None:
    policy = POLICY.replace("[binding.token]", "[binding.token]\nmax_uses = 5", 1)

    async def main() -> None:
        async with rig(tmp_path, policy=policy) as r:
            got = await asks(await r.tunnel(), head(r), 8)
            assert [one[0] for one in got if isinstance(one, tuple)] == [200] * 5 + [403] * 3
            assert len(r.good.seen) == 5
            assert r.reasons() == ["uses_exhausted"] * 3

    asyncio.run(main(), loop_factory=new_loop)


def test_a_target_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async def silent(_seen: Seen, _reader: object, _writer: object) -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        async with rig(tmp_path, timeouts=FAST) as r:
            r.good.script = once(silent, 4)
            got = await asks(await r.tunnel(), head(r), 4)
            assert [one[0] for one in got if isinstance(one, tuple)] == [200, 200, 200, 504]
            assert r.reasons() == ["upstream_timeout"]

    asyncio.run(main(), loop_factory=new_loop)


class Planted(Exception):
    """What a step raises."""


STEPS: dict[str, tuple[object, bool]] = {  # whose, and whether the target has the request by then
    "holds": (Track, False),
    "charge": (standing, False),
    "put": (Records, False),
    "_may_go": (Beaten, False),
    "_go": (Beaten, False),
    "answered": (Beaten, True),
    "went": (Records, True),
    "is_clean": (KnownValues, True),
}


@pytest.mark.parametrize("name", STEPS)
def test_raising_in_a_step_of_the_track(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection ends, nothing more is sent on either side, and the ledger says so."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert len(await asks(client, head(r), 3)) == 3
            seen, calls = len(r.good.seen), []

            def failing(*_args: object) -> None:
                calls.append(name)
                raise Planted

            whose, arrives = STEPS[name]
            with monkeypatch.context() as patched:
                patched.setattr(whose, name, failing)
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    client.writer.write(head(r))
                    assert await client.rest() == b""
            assert calls
            assert len(r.good.seen) == seen + arrives
            assert "internal" in r.reasons()
            assert len(r.records("intent")) == len(r.records("outcome"))
            other = await r.tunnel()  # and nobody else's
            assert [one[0] for one in await asks(other, head(r), 3) if isinstance(one, tuple)] == [200] * 3
        assert SECRET not in caplog.text

    asyncio.run(main(), loop_factory=new_loop)


def test_a_binding_that_is_revoked_ends_each_connection_that_used_it(tmp_path: Path) -> None:
    """One that never was anywhere but on the track too."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            first = await r.tunnel()
            await asks(first, head(r), 2)
            first.close()
            await settled(r, 2)
            second, unused = await r.tunnel(), await r.tunnel()
            assert [one[0] for one in await asks(second, head(r), 1) if isinstance(one, tuple)] == [200]
            assert r.gateway.cut(r.run.id, "revoked", "token") == 1
            assert await second.rest() == b""
            assert [one[0] for one in await asks(unused, head(r, "/no"), 1) if isinstance(one, tuple)] == [403]

    asyncio.run(main(), loop_factory=new_loop)


@pytest.mark.parametrize("where", ["put", "sync"])
def test_nothing_leaves_that_is_not_on_the_disk(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_named: object) -> int:
        raise LedgerError("ledger_unavailable", "can't write", "mend it")

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert len(await asks(client, head(r), 3)) == 3
            seen = len(r.good.seen)
            with monkeypatch.context() as patched:
                if where == "put":
                    patched.setattr(Ledger, "put", broken)
                else:
                    patched.setattr(Ledger, "has", lambda *_: False)
                    patched.setattr(Ledger, "durable", broken)
                answer = await client.ask(head(r))
                assert (answer.status, answer.code) == (403, "ledger_unavailable")
            assert len(r.good.seen) == seen

    asyncio.run(main(), loop_factory=new_loop)


def test_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second request on."""
    taken: list[bool] = []
    again = Beaten.again

    def watched(self: Beaten, data: bytes) -> bool:
        taken.append(again(self, data))
        return taken[-1]

    async def main() -> None:
        monkeypatch.setattr(Beaten, "again", watched)
        async with rig(tmp_path) as r:
            await asks(await r.tunnel(), head(r), 5)

    asyncio.run(main(), loop_factory=new_loop)
    assert taken[-4:] == [True] * 4
