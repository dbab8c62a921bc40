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
        """Return once it is open."""
        await self._open.wait()


class GatedReader:
    """A StreamReader that doesn't read while a hook runs or an upstream connection is made.

    mitmproxy queues what arrives meanwhile, without bound: a client that sends 64 MB while the target does not answer
    would have them all in our memory.
    """

    def __init__(self, reader: asyncio.StreamReader, gate: Gate, broken: Callable[[], None]) -> None:
        """`broken` is called when reading fails, which mitmproxy takes for the end of a body without length."""
        self._reader = reader
        self._gate = gate
        self._broken = broken

    async def read(self, n: int) -> bytes:
        """As StreamReader.read."""
        await self._gate.wait()
        try:
            return await self._reader.read(n)
        except OSError:
            self._broken()
            raise
