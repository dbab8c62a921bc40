"""The end of a daemon: who is told that a question lay unread finds the next daemon, and never this one again."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from credgate import daemon
from credgate.daemon import Daemon
from credgate.paths import Places
from credgate.peer import Peer, accept
from jail import fdpass


@pytest.fixture
def places() -> Iterator[Places]:
    with tempfile.TemporaryDirectory(prefix="cgd-", dir="/tmp") as home:  # a socket's path has 107 bytes
        found = Places.from_env({"HOME": home})
        found.control.parent.mkdir(parents=True)
        yield found


class Door:
    """A daemon with its listener and nothing else, and those who ask it."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.daemon = Daemon(places, cast("Any", None), 600.0)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(places.control))
        self.listener.listen()
        self.listener.setblocking(False)
        self.found: list[bool] = []

    def asks(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(self.places.control))
        sock.setblocking(False)
        return sock

    async def told(self, sock: socket.socket) -> None:
        """Whether this daemon is still found where one hears that it ends, without a turn of the loop between."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
            self.found.append(Path(self.places.control).exists())
            loop.remove_reader(sock)
            waiter.set_result(None)

        loop.add_reader(sock, readable)
        await waiter
        sock.close()

    async def serves(self) -> Peer:
        return Peer(await accept(self.listener))

    async def question(self, peer: Peer) -> fdpass.Received | None:
        try:
            return await self.daemon._question(peer)
        finally:
            peer.close()


async def _accepting(door: Door) -> None:
    await accept(door.listener)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_who_is_told_finds_this_one_no_more(places: Places, when: str) -> None:
    """Taken before the daemon knows that it ends, with nothing said by then; or behind, with a question unread."""

    async def main() -> None:
        door = Door(places)
        sock = door.asks()
        peer = await door.serves()
        accepting = asyncio.ensure_future(_accepting(door))
        telling = asyncio.ensure_future(door.told(sock))
        if when == "behind":
            door.daemon.stopping.set()
            fdpass.send(sock, {"op": "run.open"})
        serving = asyncio.ensure_future(door.question(peer))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not door.found
        await door.daemon._close_door(door.listener, accepting)
        await asyncio.wait([serving, telling], timeout=60)
        assert door.found == [False]

    asyncio.run(main())


def test_connections_that_ask_nothing_are_so_many_and_no_more(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is closed, and whoever asks is heard: descriptors are what every run's requests need too."""
    monkeypatch.setattr(daemon, "UNASKED", 5)

    async def main() -> None:
        door = Door(places)
        socks, serving = [], []
        for _ in range(8):
            socks.append(door.asks())
            serving.append(asyncio.ensure_future(door.question(await door.serves())))
            await asyncio.sleep(0)
        await asyncio.wait(serving[:3], timeout=60)
        assert [task.done() for task in serving] == [True] * 3 + [False] * 5
        assert [sock.recv(1) for sock in socks[:3]] == [b""] * 3
        for sock in socks[3:]:
            fdpass.send(sock, {"op": "status"})
        for heard in await asyncio.gather(*serving[3:]):
            assert heard is not None and heard.body == {"op": "status"}
        assert not door.daemon._unasked
        for sock in socks:
            sock.close()
        door.listener.close()

    asyncio.run(main())
