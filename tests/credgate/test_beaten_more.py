"""The beaten track under attack: what changes while a request waits for the disk, what answers may be, what a client
may send, and who else takes part. As in test_beaten, each scene is played with the track and without it.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from credgate.gateway.beaten import Beaten
from credgate.gateway.noting import OwnNotes
from credgate.ledger.flushing import Flushing
from credgate.ledger.record import LedgerError
from credgate.ledger.writer import Ledger
from credgate.loops import new_loop
from credgate.runs import Run
from tests.credgate.gateway_rig import POLICY, SECRET, Client, Rig, Seen, rig
from tests.credgate.test_beaten import OTHER, ROTATED, asks, head, observed, once, settled

type Scene = Callable[[Rig], Awaitable[list[object]]]


def played(scene: Scene, tmp: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> int:
    """Both ways come to the same; returns how many requests came to their end on the track."""
    ways, went, usual = [], [0], OwnNotes.went

    def counted(*args: Any) -> None:
        went[0] += 1
        usual(*args)

    for name in ("with", "without"):
        (tmp / name).mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(OwnNotes, "went", counted)
            if name == "without":
                beaten = went[0]
                patched.setattr(Beaten, "again", lambda *_: False)
            ways.append(asyncio.run(observed(scene, tmp / name, **more), loop_factory=new_loop))
    assert went[0] == beaten
    assert ways[0] == ways[1]
    return beaten


# -- while it waits for the disk ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def meanwhile(act: Callable[[], None]) -> Any:
    """Do something once, when the next sync has ended and nobody was told."""
    usual, left = Flushing.land, [act]

    def land(self: Flushing) -> None:
        while left:
            left.pop()()
        usual(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Flushing, "land", land)  # first of all that `Syncing._landed` does
        yield
    assert not left


def links(r: Rig) -> list[Any]:
    return list(r.gateway._hooks.pool._resting) + list(r.gateway._hooks.pool._idle)


def rebound(r: Rig) -> None:
    r.run.policy, r.run.generation = replace(r.run.policy, sha256="0" * 64), 1


def broken_ledger(r: Rig) -> None:
    r.extra["ledger"]._break("sync", OSError(5, "Input/output error"))


ACTS: dict[str, Callable[[Rig], object]] = {
    "pause": lambda r: setattr(r.run, "paused", True),
    "revoke": lambda r: setattr(r.run, "revoked", True),
    "binding": lambda r: r.run.revoked_bindings.add("token"),
    "another binding": lambda r: r.run.revoked_bindings.add("swap"),
    "proof": lambda r: setattr(r.run, "proof", ""),
    "generation": lambda r: setattr(r.run, "generation", 7),
    "policy": rebound,
    "rotated": lambda r: r.vault.values.update(token=ROTATED),
    "known": lambda r: r.gateway._hooks.judge.known.add("other", OTHER),
    "decoys": lambda r: setattr(r.run, "decoys", {}),
    "links": lambda r: [link.close() for link in links(r)],
    "reset": lambda r: [link.reset() for link in links(r)],
    "cut": lambda r: r.gateway.cut(r.run.id, "revoked"),
    "cut of the binding": lambda r: r.gateway.cut(r.run.id, "revoked", "token"),
    "cut of another": lambda r: r.gateway.cut(r.run.id, "revoked", "swap"),
}


@pytest.mark.parametrize("act", ACTS)
def test_what_changes_between_intent_and_sending(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(r: Rig) -> list[object]:
        client = await r.tunnel()
        got = await asks(client, head(r), 3)
        with meanwhile(lambda: (ACTS[act](r), None)[1]):
            got += await asks(client, head(r), 1)
        await settled(r, 4)
        return got + await asks(client, head(r), 2)

    assert played(scene, tmp_path, monkeypatch) >= 1


def unwritable(*_: object, **__: object) -> int:
    raise LedgerError("ledger_unavailable", "can't write", "mend it")


@pytest.mark.parametrize("where", ["put", "between"])
def test_a_ledger_that_breaks_says_so_as_ever(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the client, which gets a refusal with its reason and no broken connection; the target gets nothing."""

    async def scene(r: Rig) -> tuple[int, bytes, int]:
        client = await r.tunnel()
        assert len(await asks(client, head(r), 3)) == 3
        if where == "put":
            with monkeypatch.context() as patched:
                patched.setattr(Ledger, "put", unwritable)
                answer = await client.ask(head(r))
        else:
            with meanwhile(lambda: broken_ledger(r)):
                answer = await client.ask(head(r))
        assert b"ledger_unavailable" in answer.body
        return answer.status, answer.body.partition(b"request_id")[0], len(r.good.seen)

    async def main(tmp: Path) -> tuple[int, bytes, int]:
        found = (0, b"", 0)
        with contextlib.suppress(LedgerError):  # of the ledger's end
            async with rig(tmp) as r:
                found = await scene(r)
        return found

    ways = []
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        if name == "without":
            monkeypatch.setattr(Beaten, "again", lambda *_: False)
        ways.append(asyncio.run(main(tmp_path / name), loop_factory=new_loop))
    assert ways[0] == ways[1]
    assert ways[0][2] == 3


def test_a_policy_that_changes_behind_the_intent_leaves_the_old_ones_connection(tmp_path: Path) -> None:
    """A reload leaves no connection that the new policy did not make."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert len(await asks(client, head(r), 3)) == 3
            before = r.good.connections
            with meanwhile(lambda: rebound(r)):
                assert [one[0] for one in await asks(client, head(r), 1) if isinstance(one, tuple)] == [200]
            assert r.good.connections == before + 1

    asyncio.run(main(), loop_factory=new_loop)


def test_a_step_that_fails_behind_the_disk_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is not only closed: the listener has forgotten it, else its run would never end."""

    def failing(*_: object) -> bool:
        raise ZeroDivisionError

    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            assert len(await asks(client, head(r), 3)) == 3
            with monkeypatch.context() as patched:
                patched.setattr(Beaten, "_may_go", failing)
                client.writer.write(head(r))
                assert await client.rest() == b""
                client.close()
                async with asyncio.timeout(60):
                    while any(one.handlers for one in r.gateway._instances["run-1"]):
                        await asyncio.sleep(0.01)

    asyncio.run(main(), loop_factory=new_loop)


# -- answers -----------------------------------------------------------------------------------------------------------

USUAL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Request-Id: target-1\r\nSet-Cookie: a=b\r\nAlt-Svc: h3\r\n\r\nok 0"
ANSWERS: dict[str, bytes] = {
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + USUAL,
    "interim behind": USUAL + b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "204": b"HTTP/1.1 204 No Content\r\nX-Request-Id: a1\r\n\r\n",
    "304": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
    "401": b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno",
    "403": b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno",
    "206": b"HTTP/1.1 206 Part\r\nContent-Length: 2\r\n\r\nno",
    "longer": USUAL.replace(b": 4", b": 9") + b" more",
    "empty": USUAL.replace(b": 4", b": 0").replace(b"ok 0", b""),
    "two lengths": USUAL.replace(b"Content-Length: 4\r\n", b"Content-Length: 4\r\nContent-Length: 4\r\n"),
    "signed length": USUAL.replace(b": 4", b": +4"),
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nok 0\r\n0\r\n\r\n",
    "both": USUAL.replace(b"Alt-Svc: h3", b"Transfer-Encoding: chunked"),
    "coded": USUAL.replace(b"Alt-Svc: h3", b"Content-Encoding: gzip"),
    "cookie": USUAL.replace(b"a=b", b"c=" + SECRET.encode()),
    "id": USUAL.replace(b"target-1", SECRET.encode()),
    "phrase": USUAL.replace(b"OK", b"Fine"),
    "1.0": USUAL.replace(b"/1.1", b"/1.0"),
    "keep-alive": USUAL.replace(b"Alt-Svc: h3", b"Keep-Alive: timeout=1"),
    "another verdict": USUAL.replace(b"Alt-Svc: h3", b"Credgate-Verdict: allow"),
    "obs-fold": USUAL.replace(b"Alt-Svc: h3", b"Alt-Svc: h3\r\n b"),
    "nul": USUAL.replace(b"h3", b"h\x003"),
    "bare lf": USUAL.replace(b"Alt-Svc: h3\r\n", b"Alt-Svc: h3\n"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("each", [False, True])
def test_answers_that_are_other_ones(name: str, each: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One among the usual ones, or all of them."""

    async def says(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWERS[name])

    async def scene(r: Rig) -> list[object]:
        r.good.script = says if each else once(says, 4)
        return await asks(await r.tunnel(), head(r), 7)

    played(scene, tmp_path, monkeypatch)


def test_an_answer_that_is_there_before_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the very head of the last one."""

    async def twice(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(USUAL)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(USUAL)

    async def scene(r: Rig) -> list[object]:
        r.good.script = once(twice, 4)
        client = await r.tunnel()
        got = await asks(client, head(r), 4)
        async with asyncio.timeout(60):
            while r.good.open:
                await asyncio.sleep(0.01)
        return got + await asks(client, head(r), 2)

    assert played(scene, tmp_path, monkeypatch) >= 2


# -- who else takes part -----------------------------------------------------------------------------------------------


def test_a_run_above_has_its_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(r: Rig) -> list[object]:
        run = r.run
        above = Run(id="run-0", policy=run.policy, role=run.role, gateway_ip="127.0.0.98", proxy_port=1, proof="p")
        above.adopt(run)
        client = await r.tunnel()
        got = await asks(client, head(r), 3)
        above.paused = True
        got += await asks(client, head(r), 1)
        above.paused = False
        with meanwhile(lambda: setattr(above, "paused", True)):
            got += await asks(client, head(r), 1)
        above.paused = False
        got += await asks(client, head(r), 2)
        above.revoked_bindings.add("token")
        got += await asks(client, head(r), 1)
        return [*got, above.spent.requests, above.spent.bytes_out, above.allowed]

    assert played(scene, tmp_path, monkeypatch) >= 3


def test_bounds_of_a_role_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(r: Rig) -> list[object]:
        return await asks(await r.tunnel(), head(r), 20)

    role, binding = "[role.dev]", "[binding.token]"
    bounds = (
        (role, "budget = {{ requests = 5 }}"),
        (role, 'budget = {{ bytes_out = "1KiB" }}'),
        (binding, 'rate = "6/h"'),
    )
    for number, (table, bound) in enumerate(bounds):
        (tmp_path / str(number)).mkdir()
        policy = POLICY.replace(table, f"{table}\n{bound}", 1)
        assert played(scene, tmp_path / str(number), monkeypatch, policy=policy)


def test_a_connection_whose_last_client_was_behind_is_read_again(tmp_path: Path) -> None:
    """It was the last one's to read no more of; whoever has it next waits for an answer."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            first = await r.tunnel()
            await asks(first, head(r), 2)
            (link,) = links(r)
            link.pause(True)  # as its lane does, whose client takes nothing, behind the answer
            second = await r.tunnel()
            async with asyncio.timeout(20):
                assert (await second.ask(head(r))).status == 200
            assert r.good.connections == 1

    asyncio.run(main(), loop_factory=new_loop)


LOOKED_UP = POLICY.replace('["127.0.0.1"]\nca = "{ca}"\nalpn', '["127.0.0.0/8"]\nca = "{ca}"\nalpn', 1)


def test_the_outcome_has_the_address_that_it_went_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent once more, to the host's other address."""
    here = (ip_address("127.0.0.1"), ip_address("127.0.0.2"))

    async def scene(r: Rig) -> list[object]:
        r.names["api.good.test"] = here
        other = await asyncio.start_server(r.good._serve, "127.0.0.2", r.good.port, ssl=r.good._tls)

        async def ends(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
            r.good._raw_server.close()
            writer.close()

        try:
            r.good.script = once(ends, 4)
            got = await asks(await r.tunnel(), head(r), 6)
            await settled(r, 7)
        finally:
            other.close()
        assert [line["pin"] for line in r.records("outcome")] == ["127.0.0.1"] * 4 + ["127.0.0.2"] * 3
        return got

    assert played(scene, tmp_path, monkeypatch, policy=LOOKED_UP) >= 3


# -- what a client sends -----------------------------------------------------------------------------------------------


class Raw:
    """A client's TLS in a tunnel, by hand."""

    def __init__(self, client: Client, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.client, self.tls, self.incoming, self.outgoing = client, tls, incoming, outgoing

    @classmethod
    async def of(cls, r: Rig) -> "Raw":
        client = await r.tunnel(sni=None)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        made = cls(client, r.trust().wrap_bio(incoming, outgoing, server_hostname="api.good.test"), incoming, outgoing)
        while True:
            try:
                made.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await made.more()
        made.flush()
        return made

    def flush(self) -> None:
        self.client.writer.write(self.outgoing.read())

    async def more(self) -> bool:
        self.flush()
        async with asyncio.timeout(60):
            data = await self.client.reader.read(65536)
        self.incoming.write(data)
        return bool(data)

    async def answers(self, count: int) -> bytes:
        """What came until so many usual answers did, or the end."""
        got = b""
        while got.count(b"ok 0") < count:
            try:
                more = self.tls.read(65536)
                if not more:
                    break
                got += more
            except ssl.SSLWantReadError:
                if not await self.more():
                    break
            except (ssl.SSLError, ConnectionError):
                break
        return got


def in_tiny_records(one: Raw, raw: bytes) -> int:
    for at in range(len(raw)):
        one.tls.write(raw[at : at + 1])
    return 1


def with_half_of_the_next(one: Raw, raw: bytes) -> int:
    one.tls.write(raw + raw[:30])
    one.flush()
    one.tls.write(raw[30:])
    return 2


def in_two_records(one: Raw, raw: bytes) -> int:
    one.tls.write(raw)
    one.tls.write(raw)
    return 2


def with_its_end(one: Raw, raw: bytes) -> int:
    one.tls.write(raw)
    with contextlib.suppress(ssl.SSLWantReadError):
        one.tls.unwrap()
    return 1


def behind_an_empty_line(one: Raw, raw: bytes) -> int:
    one.tls.write(b"\r\n" + raw)
    return 1


def with_a_broken_record(one: Raw, raw: bytes) -> int:
    one.tls.write(raw)
    one.outgoing.write(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    return 1


def with_trailing_bytes(one: Raw, raw: bytes) -> int:
    one.tls.write(raw + b"x y z\r\n\r\n")
    return 1


WAYS = (
    *(in_tiny_records, with_half_of_the_next, in_two_records, with_its_end, behind_an_empty_line),
    *(with_a_broken_record, with_trailing_bytes),
)


@pytest.mark.parametrize("way", WAYS)
def test_how_a_request_comes(way: Callable[[Raw, bytes], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(r: Rig) -> list[object]:
        one, got = await Raw.of(r), list[object]()
        for _ in range(3):
            one.tls.write(head(r))
            got.append(await one.answers(1))
        expected = way(one, head(r))
        got.append(await one.answers(expected))
        one.tls.write(head(r)) if way in (in_tiny_records, in_two_records, behind_an_empty_line) else None
        one.flush()
        got.append(await one.answers(1) if way in (in_tiny_records, in_two_records, behind_an_empty_line) else b"")
        one.client.close()
        async with asyncio.timeout(60):
            while any(each.handlers for each in r.gateway._instances["run-1"]):
                await asyncio.sleep(0.01)
        return got

    assert played(scene, tmp_path, monkeypatch) >= 1
