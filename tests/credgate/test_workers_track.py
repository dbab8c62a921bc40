"""Known requests of a worker: what comes of them is what comes of the daemon's own, whatever happens meanwhile."""

import asyncio
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from credgate.workers import messages as m
from credgate.workers.desk import Desk
from tests.credgate import test_beaten as track
from tests.credgate.gateway_rig import POLICY, Client, Rig, rig
from tests.credgate.test_workers import at_worker, killed, settle, two

SCENES = (
    *(track.plainly, track.without_body, track.with_a_length_of_none, track.two_by_turns, track.in_one_write),
    *(track.in_pieces, track.wrong_ones_between, track.rotated, track.said_back, track.in_two_pieces, track.too_long),
    *(track.closing, track.gone, track.broken, track.unasked),
)
IDS = re.compile(rb'cg-[0-9a-z-]+|"request_id": "[^"]*"|credgate-request-id: [^\r]*|:\d+')


def always_at_worker(r: Rig) -> None:
    usual = r.tunnel

    async def tunnel(**how: Any) -> Client:
        r.tunnel = partial(usual, **how)  # type: ignore[method-assign] # the scene's own
        try:
            return await at_worker(r)
        finally:
            r.tunnel = tunnel  # type: ignore[method-assign]

    r.tunnel = tunnel  # type: ignore[method-assign]


async def observed(tmp_path: Path, processes: int) -> list[object]:
    """All scenes, one behind the other: answers, what the target saw, what was spent, lines of the ledger."""
    tmp_path.mkdir()
    found: list[object] = []
    async with rig(tmp_path, processes=processes) as r:
        if processes > 1:
            always_at_worker(r)
        for scene in (*SCENES, track.revoked):
            if scene is track.revoked:  # the worker hears of nothing, and the daemon refuses what is judged by then
                found += sorted(map(repr, track.told(r)))
            got = await scene(r)
            await track.settled(r, len(r.records("intent")))
            if processes > 1:
                await settle(r)
            run, plain = (
                r.run,
                re.sub(
                    rb'cg-[0-9a-z-]+|"request_id": "[^"]*"|credgate-request-id: [^\r]*|:\d+', b"", repr(got).encode()
                ),
            )
            seen = [re.sub(rb"credgate[^\r]*|:\d+", b"", one.raw) for one in r.good.seen]
            spent = (run.allowed, run.denied, run.turned_away, run.spent.requests, run.spent.bytes_out, run.spent.uses)
            found.append((scene.__name__, plain, seen, spent))
    return found


def test_it_leads_where_the_daemons_own_does(tmp_path: Path) -> None:
    one, other = (asyncio.run(observed(tmp_path / str(processes), processes)) for processes in (1, 2))
    for mine, theirs in zip(one, other, strict=True):
        assert mine == theirs


def test_it_is_taken_and_a_bound_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a known request the daemon hears its kind, and of its end the numbers. What is refused is said in full."""
    said: Counter[str] = Counter()
    take = Desk.take

    def watched(self: Desk, message: Any, fds: list[int]) -> None:
        said[type(message).__name__] += 1
        if isinstance(message, m.Batch):
            said["claims"] += len(message.claims)
            said["ends"] += len(message.ends)
        take(self, message, fds)

    monkeypatch.setattr(Desk, "take", watched)

    async def body(r: Rig) -> None:
        client = await at_worker(r)
        got = await track.asks(client, track.head(r), 9)
        assert [one[0] for one in got if isinstance(one, tuple)] == [200] * 6 + [403] * 3
        await settle(r)
        assert len(r.good.seen) == 6
        # the first one names the kind, and so do the refused ones: they are asked anew, in full, and claimed again
        assert said["Claim"] == 1
        assert said["claims"] >= 5
        assert said["ends"] == 6
        assert r.run.spent.uses == {"token": 6}

    two(tmp_path, body, POLICY.replace("[binding.token]", "[binding.token]\nmax_uses = 6", 1))


def test_a_worker_that_dies_with_known_requests_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed once its claims are written and before it may send: each has its end, and nothing was sent."""

    async def body(r: Rig) -> None:
        some = [await at_worker(r) for _ in range(3)]
        for client in some:
            assert len(await track.asks(client, track.head(r), 2)) == 2
        await settle(r)
        ledger, waits, seen = r.extra["ledger"], list[Any](), len(r.good.seen)
        with monkeypatch.context() as patched:
            patched.setattr(ledger, "tell", waits.append)
            for client in some:
                client.writer.write(track.head(r))
            async with asyncio.timeout(60):
                while len(r.records("intent")) < seen + 3:
                    ledger.sync()  # what is written may be in memory until then
                    await asyncio.sleep(0.01)
            await killed(r)
        for told in waits:
            ledger.tell(told)
        for client in some:
            assert await client.rest() == b""
        assert [line.get("reason") for line in r.records("outcome")][-3:] == ["worker_died"] * 3
        assert len(r.good.seen) == seen
        assert (await (await at_worker(r)).ask(track.head(r))).status == 200

    two(tmp_path, body)


def test_a_value_set_anew_is_sent_at_once_on_the_track(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        client = await at_worker(r)
        for value in (track.ROTATED, track.OTHER, track.ROTATED):
            r.vault.values["token"] = value
            assert len(await track.asks(client, track.head(r), 3)) == 3
            assert [one.values(b"authorization") for one in r.good.seen[-3:]] == [[b"Bearer " + value.encode()]] * 3

    two(tmp_path, body)


def test_the_client_leaves_while_its_known_request_is_on_the_way_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(r: Rig) -> None:
        client = await at_worker(r)
        assert len(await track.asks(client, track.head(r), 2)) == 2
        await settle(r)
        ledger, waits = r.extra["ledger"], list[Any]()
        with monkeypatch.context() as patched:
            patched.setattr(ledger, "tell", waits.append)
            client.writer.write(track.head(r))
            async with asyncio.timeout(60):
                while not waits:
                    await asyncio.sleep(0.01)
            client.close()
            await asyncio.sleep(0.05)
        for told in waits:
            ledger.tell(told)
        await track.settled(r, 3)
        assert len(r.records("intent")) == 3

    two(tmp_path, body)
