"""Who takes a connection where several processes accept on one listener: here all of them on one loop."""

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from credgate.gateway import accepting
from credgate.gateway.accepting import FEW, Acceptor, Share, make_loads
from credgate.gateway.pipe import NOBODY, Pipe

NONE = None  # no process


@pytest.fixture
def loads() -> Iterator[int]:
    descriptor = make_loads()
    yield descriptor
    os.close(descriptor)


def sharing(descriptor: int, counts: tuple[int | None, ...]) -> list[Share]:
    shares = [Share(descriptor, slot) for slot in range(len(counts))]
    for share, count in zip(shares, counts, strict=True):
        if count is not None:
            share.enter()
            share.more(count)
    return shares


@pytest.mark.parametrize(
    ("counts", "takes"),
    [
        ((0,), {0}),
        ((500,), {0}),  # there is nobody else
        ((500, NONE, NONE), {0}),
        ((0, 0), {0}),
        ((FEW - 1, 0), {0}),
        ((FEW, 0), {1}),
        ((FEW, 500), {1}),  # the daemon has the ledger's work of all of these
        ((FEW, 3, 2), {2}),
        ((FEW, 2, 2), {1, 2}),
        ((FEW, NONE, 7), {2}),
        ((500, 3), {1}),
    ],
)
def test_whose_the_next_one_is(counts: tuple[int | None, ...], takes: set[int], loads: int) -> None:
    shares = sharing(loads, counts)
    there = [slot for slot, count in enumerate(counts) if count is not None]
    assert {slot for slot in there if not shares[slot].leaves} == takes


class Served:
    """Processes on one listener; `deaf` ones are there, and accept nothing."""

    def __init__(self, descriptor: int, count: int, deaf: frozenset[int] = frozenset()) -> None:
        self.shares = sharing(descriptor, (0,) * count)
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.acceptors = [
            Acceptor(self.sock.dup(), share, lambda share=share: self.taken(share))
            for slot, share in enumerate(self.shares)
            if slot not in deaf
        ]

    def taken(self, share: Share) -> Pipe:
        share.more(1)
        return Pipe(NOBODY)

    async def __aenter__(self) -> "Served":
        return self

    async def __aexit__(self, *_: object) -> None:
        for acceptor in self.acceptors:
            acceptor.close()
        self.sock.close()

    async def connect(self, count: int) -> list[int | None]:
        """How many each has once all of so many more are taken."""
        before = sum(filter(None, self.shares[0].loads()))
        clients = [socket.create_connection(self.sock.getsockname()) for _ in range(count)]
        async with asyncio.timeout(60):
            while sum(filter(None, self.shares[0].loads())) < before + count:
                await asyncio.sleep(0.001)
        for client in clients:
            client.close()
        return list(self.shares[0].loads()[: len(self.shares)])


@pytest.mark.parametrize(("count", "few", "least"), [(1, 16, 0), (2, FEW, 14), (3, FEW, 4)])
def test_the_first_are_the_daemons_and_the_others_share_the_rest(
    count: int, few: int, least: int, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two workers each has 7, but for a machine that is busy for 2 ms."""
    monkeypatch.setattr(accepting, "_WORKERS", 30.0)  # the same for 20 ms

    async def main() -> list[int | None]:
        async with Served(loads, count) as served:
            return await served.connect(16)

    daemon, *workers = asyncio.run(main())
    assert daemon == few
    assert [has for has in workers if has is None or has < least] == []


@pytest.mark.parametrize(("alone", "waits"), [(1000.0, 1), (0.0, 6)])
def test_where_no_worker_takes_any_the_daemon_soon_waits_for_none(
    alone: float, waits: int, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener may be none of theirs, or a worker is stuck. Without that memory each connection is left to them."""
    monkeypatch.setattr(accepting, "_ALONE", alone)
    left, usual = [0], Acceptor._wait

    def wait(self: Acceptor, seconds: float) -> None:
        left[0] += 1
        usual(self, seconds)

    monkeypatch.setattr(Acceptor, "_wait", wait)

    async def main() -> Any:
        async with Served(loads, 2, deaf=frozenset({1})) as served:
            return await served.connect(FEW + 6)

    assert asyncio.run(main()) == [FEW + 6, 0]
    assert left == [waits]


def test_a_connection_is_taken_though_others_come_and_go_elsewhere(loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that it is left to is busy with another listener's, and not at this one: it is left five times."""
    left, usual = [0], Acceptor._wait

    def wait(self: Acceptor, seconds: float) -> None:
        left[0] += 1
        assert left[0] < 100, "nobody takes it"
        worker.more(1)
        usual(self, seconds)

    monkeypatch.setattr(Acceptor, "_wait", wait)
    worker = Share(loads, 1)

    async def main() -> None:
        async with Served(loads, 2, deaf=frozenset({1})) as served:
            await served.connect(FEW)
            daemon, client = served.shares[0], socket.create_connection(served.sock.getsockname())
            async with asyncio.timeout(60):
                while daemon.loads()[0] == FEW and left[0] < 100:
                    await asyncio.sleep(0.001)
            client.close()
            assert daemon.loads()[0] == FEW + 1

    asyncio.run(main())
    assert left == [accepting._TIMES]


def test_where_no_worker_is_none_is_left_to_them(loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a listener of opaque TCP, and of a run with a bound on the bytes of bodies."""
    monkeypatch.setattr(Acceptor, "_wait", lambda *_: pytest.fail("left to a worker that is not there"))
    taken = list[int]()
    (share, _) = sharing(loads, (FEW, 0))

    def take() -> Pipe:
        taken.append(1)
        return Pipe(NOBODY)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            acceptor = Acceptor(sock, share, take, lambda: False)
            with socket.create_connection(sock.getsockname()):
                async with asyncio.timeout(60):
                    while not taken:
                        await asyncio.sleep(0.001)
            acceptor.close()

    asyncio.run(main())
    assert taken == [1]
