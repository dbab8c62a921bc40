"""What hostile clients and targets do, and what is taken back meanwhile, at a worker: answers, what the target saw,
counts and lines of the ledger are those of one process.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from credgate.loops import new_loop
from tests.credgate.gateway_rig import Rig, Seen, rig
from tests.credgate.test_beaten import asks, head, once, settled, told
from tests.credgate.test_beaten_more import ACTS, ANSWERS, WAYS, Raw, meanwhile
from tests.credgate.test_workers import settle
from tests.credgate.test_workers_track import IDS, always_at_worker

MEANWHILE = (
    *("pause", "proof", "policy", "rotated", "cut", "cut of the binding", "cut of another"),
    *("another binding", "binding", "revoke"),  # for good
)


def act(r: Rig, name: str) -> None:
    """As those do it who may: what is taken back is said to the workers in the same moment."""
    ACTS[name](r)
    r.gateway.tell(r.run)


async def changing(r: Rig) -> list[object]:
    """Each act between an intent and its sending, and what comes then; what can be is taken back afterwards."""
    got: list[object] = []
    policy, generation, proof = r.run.policy, r.run.generation, r.run.proof
    for name in MEANWHILE:
        client = await r.tunnel()
        got += await asks(client, head(r), 3)
        await r.gateway.told(r.run)  # all that was said by then has been heard
        if name != "revoke":  # its binding is gone by then, and no intent is written
            with meanwhile(partial(act, r, name)):
                got += await asks(client, head(r), 1)
        else:
            act(r, name)
        await r.gateway.told(r.run)
        if name == "policy":
            await r.gateway.swapped(r.run, "policy replaced")
        got += [name, *await asks(client, head(r), 2)]
        client.close()
        await r.gateway.told(r.run)
        got.append((r.run.allowed, r.run.denied, r.run.spent.uses))
        r.run.paused, r.run.proof = False, proof
        if name == "policy":
            r.run.policy, r.run.generation = policy, generation + 2
            await r.gateway.swapped(r.run, "policy replaced")
        await r.gateway.told(r.run)
    return got


async def answering(r: Rig) -> list[object]:
    """Each odd answer, among usual ones."""
    got: list[object] = []
    for name, answer in ANSWERS.items():

        async def says(_seen: Seen, _reader: object, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
            writer.write(answer)

        r.good.script = once(says, 3)
        client = await r.tunnel()
        got += [name, *await asks(client, head(r), 5)]
        client.close()
    return got


async def ending(r: Rig) -> list[object]:
    """A target that ends its connection: before an answer, within its head, within its body, behind it."""
    got: list[object] = []
    usual = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok 0"
    for part in (0, 12, len(usual) - 2, len(usual)):

        async def ends(_seen: Seen, _reader: object, writer: asyncio.StreamWriter, part: int = part) -> None:
            writer.write(usual[:part])
            writer.close()

        for method in ("GET", "POST"):
            r.good.script = once(ends, 3)
            client = await r.tunnel()
            got += [(part, method), *await asks(client, head(r, method=method), 5)]
            client.close()
    return got


async def sending(r: Rig) -> list[object]:
    """What a client may do with its records, and at its end."""
    got: list[object] = []
    for sends in WAYS:
        one = await Raw.of(r)
        first = head(r)
        one.tls.write(first)
        one.flush()
        got.append(await one.answers(1))
        count = sends(one, first)
        one.flush()
        got += [sends.__name__, await one.answers(count)]
        one.client.close()
    return got


def plain(got: object) -> bytes:
    return re.sub(IDS.pattern, b"", repr(got).encode())


def marked(lines: list[object]) -> Iterator[str]:
    """A request that is cut off at the very moment is refused by a worker, and broken off by the daemon's own."""
    for line in lines:
        fields: dict[str, object] = dict(line)  # type: ignore[call-overload]  # what `told` makes
        if (
            fields["ev"] == "outcome"
            and "status" not in fields
            and "revoked" in (fields.get("detail"), fields.get("reason"))
        ):
            fields = {"ev": "outcome", "of": fields["of"]}
        yield repr(fields)


async def observed(tmp_path: Path, scene: Callable[[Rig], Awaitable[list[object]]], processes: int) -> list[object]:
    tmp_path.mkdir()
    async with rig(tmp_path, processes=processes) as r:
        if processes > 1:
            always_at_worker(r)
        got = await scene(r)
        await settled(r, len(r.records("intent")))
        if processes > 1:
            await settle(r)
        run = r.run
        spent = (run.allowed, run.denied, run.turned_away, run.spent.requests, run.spent.bytes_out, run.spent.uses)
        seen = [re.sub(rb"credgate[^\r]*|:\d+", b"", one.raw) for one in r.good.seen]
        return [*map(plain, got), *seen, spent, *sorted(marked(told(r)))]


@pytest.mark.parametrize("scene", [changing, answering, ending, sending])
def test_a_worker_comes_to_the_same(scene: Callable[[Rig], Awaitable[list[object]]], tmp_path: Path) -> None:
    one, other = (
        asyncio.run(observed(tmp_path / str(processes), scene, processes), loop_factory=new_loop)
        for processes in (1, 2)
    )
    for mine, theirs in zip(one, other, strict=True):
        assert mine == theirs
