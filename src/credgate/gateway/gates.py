"""Reading that can be stopped: what could not go on yet stays in the socket."""

import asyncio
from collections.abc import Callable


class Gate:
    """Lets readers pass while nobody holds it."""

    def __init__(self) -> None:
        self._holders = 0
        self._full = False
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Close it until release."""
        self._holders += 1
        self._open.clear()

    def release(self) -> None:
        """Undo one hold."""
        self._holders -= 1
        if not self._holders:
            self._open.set()

    def hold_while(self, full: bool) -> None:
        """Hold or release for a reason of which there is one."""
        if full != self._full:
            self._full = full
            if full:
                self.hold()
            else:
                self.release()

    async def wait(self) -> None:
        """Return once it is open: who is woken finds it closed again where somebody held it in the same turn."""
        while self._holders:
            await self._open.wait()


# Bytes that are looked at in one turn of the loop, where nobody knows what they are: a target's answers are large more
# often than not, and a client's messages by WebSocket are short.
OF_TARGET, OF_CLIENT = 16 << 10, 4 << 10


def of_target(data: bytes) -> int:
    """How much of what was read is for this turn of the loop."""
    return min(len(data), OF_TARGET)


def of_client(data: bytes) -> int:
    """The same of what came from a client."""
    return min(len(data), OF_CLIENT)


class GatedReader:
    """A StreamReader that doesn't read while a hook runs or an upstream connection is made.

    mitmproxy queues what arrives meanwhile, without bound: a client that sends 64 MB while the target does not answer
    would have them all in our memory.

    Of what it has read it gives a part at a time, and the other connections their turn between: a StreamReader that has
    something gives way to nobody, and empty SETTINGS of HTTP/2 kept the loop for 1.8 s by that (measured).
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        gate: Gate,
        broken: Callable[[], None],
        cut: Callable[[bytes], int] = of_target,
    ) -> None:
        """`broken` is called when reading fails, which mitmproxy takes for the end of a body without length.

        `cut` says how much of some bytes is one part.
        """
        self._reader = reader
        self._gate = gate
        self._broken = broken
        self._cut = cut
        self._rest = b""

    async def read(self, n: int) -> bytes:
        """As StreamReader.read."""
        if self._rest:
            await asyncio.sleep(0)
        await self._gate.wait()
        try:
            data = self._rest or await self._reader.read(n)
            size = self._cut(data)
            self._rest = data[size:]
            return data[:size]
        except OSError:
            self._broken()
            raise
