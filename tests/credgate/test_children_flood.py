"""A program in a jail that never stops asking: the daemon's loop has its turn all the same."""

import asyncio
import contextlib
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from credgate import children as module
from credgate.children import Children
from credgate.peer import Peer
from jail import fdpass

MANY = 100


async def turns_of(work: asyncio.Task[Any], done: list[int]) -> list[int]:
    """What was done at the loop's first turns beside `work`."""
    seen = []
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append(len(done))
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return seen


def parent_of(listener: socket.socket) -> Any:
    return SimpleNamespace(listener=listener, run=SimpleNamespace(id="r"))


def test_connections_without_end_leave_the_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    async def accept(_: socket.socket) -> socket.socket:
        """There is always one more, as while a jail connects without pause."""
        assert len(taken) < MANY, "the loop had no turn"
        mine, theirs = fdpass.pair()
        theirs.close()
        taken.append(mine.fileno())
        return mine

    monkeypatch.setattr(module, "accept", accept)

    async def run() -> None:
        listener, other = fdpass.pair()
        children = Children(parent_of(listener), {})
        async with asyncio.TaskGroup() as tasks:
            work = asyncio.create_task(children._accept(tasks))  # private: the whole of it needs a live run
            seen = await turns_of(work, taken)
        listener.close()
        other.close()
        assert max(seen) <= 4

    asyncio.run(run())


@pytest.mark.parametrize("number", [15, 9, [15], 15.0, True, "15", None])
def test_messages_without_end_leave_the_loop_its_turns(number: object) -> None:
    passed: list[int] = []
    ended: list[str] = []

    async def signal(got: int) -> None:
        passed.append(got)

    async def end(reason: str) -> None:
        ended.append(reason)

    async def run() -> None:
        mine, theirs = fdpass.pair()
        for _ in range(MANY):
            fdpass.send(theirs, {"op": "signal", "number": number})
        child: Any = SimpleNamespace(signal=signal, end=end)
        children = Children(parent_of(mine), {})
        read: list[int] = []
        peer = Peer(mine)
        real = peer.recv

        async def recv() -> fdpass.Received | None:
            read.append(1)
            return await real()

        peer.recv = recv  # type: ignore[method-assign]  # counted
        work = asyncio.create_task(children._client(peer, child))
        assert max(await turns_of(work, read)) <= 4
        assert set(passed) == ({15} if number == 15 and type(number) is int else set())
        assert not ended
        theirs.close()
        peer.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) <= before
