"""Messages with descriptors in an event loop."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from credgate.peer import Peer, accept
from jail import fdpass
from jail.errors import JailError

Act = Callable[[Peer, socket.socket], Awaitable[object]]


def within(act: Act) -> Any:
    """What `act` gives, with a peer and the other end of its socket; ends after a bounded time."""

    async def main() -> object:
        mine, theirs = fdpass.pair()
        peer = Peer(mine)
        try:
            async with asyncio.timeout(60):
                return await act(peer, theirs)
        finally:
            peer.close()
            theirs.close()

    return asyncio.run(main())


def test_it_waits_for_a_message() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        asyncio.get_running_loop().call_later(0.05, fdpass.send, theirs, {"a": 1})
        message = await peer.recv()
        return message and message.body

    assert within(act) == {"a": 1}


def test_descriptors_come_along() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        reader, writer = os.pipe()
        await peer.send({"op": "take"}, [writer])
        os.close(writer)
        got = fdpass.recv(theirs)
        assert got is not None
        os.write(got.fds[0], b"through")
        got.close()
        with os.fdopen(reader, "rb") as file:
            return file.read()

    assert within(act) == b"through"


def test_the_end() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        theirs.close()
        return await peer.recv()

    assert within(act) is None


def test_a_peer_that_dies_with_something_unread_has_ended_too() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        await peer.send({"op": "never read"})
        theirs.close()
        return await peer.recv()

    assert within(act) is None


@pytest.mark.parametrize("unread", [True, False])
def test_what_it_said_before_is_read_all_the_same(unread: bool) -> None:
    """As the exit of a jail's program whose last signal came too late to be read."""

    async def main() -> list[object]:
        mine, theirs = fdpass.pair()
        peer = Peer(mine)
        with theirs:
            if unread:
                await peer.send({"op": "signal"})
            fdpass.send(theirs, {"op": "exit", "status": 3})
            fdpass.send(theirs, {"op": "last"})
        got = []
        while (message := await asyncio.wait_for(peer.recv(), 60)) is not None:
            got.append(message.body["op"])
        peer.close()
        return got

    assert asyncio.run(main()) == ["exit", "last"]


def test_what_is_no_message_is_an_error() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        theirs.send(b"junk")
        return await peer.recv()

    with pytest.raises(JailError):
        within(act)


def test_a_full_queue_is_waited_for() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        theirs.setblocking(False)
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < 500:
                await peer.send({"fill": "x" * 1000})
                sent += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            await asyncio.sleep(0.1)
            stuck = sent
            got = 0
            while got < 500:
                try:
                    got += fdpass.recv(theirs) is not None
                except BlockingIOError:
                    await asyncio.sleep(0)
        return stuck, got

    stuck, got = within(act)
    assert (stuck < 500, got) == (True, 500)


def test_a_reader_that_is_cancelled_leaves_no_watch() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await peer.recv()
        return asyncio.get_running_loop().remove_reader(peer.sock)

    assert within(act) is False


def test_groups_are_those_of_whoever_connected(tmp_path: Path) -> None:
    async def act() -> object:
        mine, theirs = fdpass.pair()
        peer = Peer(mine)
        groups = peer.groups()
        peer.close()
        theirs.close()
        return groups

    assert asyncio.run(act()) == tuple(sorted(os.getgroups()))


def test_accept_waits() -> None:
    async def act() -> object:
        path = f"\0credgate-peer-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            listener.setblocking(False)
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            asyncio.get_running_loop().call_later(0.05, client.connect, path)
            async with asyncio.timeout(60):
                served = await accept(listener)
            _, uid, _ = fdpass.peer_credentials(served)
            served.close()
            client.close()
            return uid

    assert asyncio.run(act()) == os.geteuid()


def test_writers_that_find_the_queue_full_all_get_through() -> None:
    async def act(peer: Peer, theirs: socket.socket) -> object:
        theirs.setblocking(False)
        big = {"x": "y" * 40_000}
        async with asyncio.TaskGroup() as tasks:
            for number in range(30):
                tasks.create_task(peer.send({**big, "n": number}))
            got = []
            while len(got) < 30:
                await asyncio.sleep(0.001)
                try:
                    message = fdpass.recv(theirs)
                except BlockingIOError:
                    continue
                assert message is not None
                got.append(message.body["n"])
        return got

    assert within(act) == list(range(30))
