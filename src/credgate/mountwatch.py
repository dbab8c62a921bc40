"""Notice a change of a jail's mount table: measured, a rename on the host detaches a mount inside, and poll tells."""

import asyncio
import os
import select


class MountWatch:
    """Waits for the first change after it was made. Owns the descriptor of an opened /proc/PID/mountinfo.

    The file polls POLLERR and POLLPRI once its namespace's mounts differ from those at the last poll (proc(5)); it is
    always readable, so it hides behind an epoll that asks for POLLPRI alone.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._epoll = select.epoll()
        self._epoll.register(descriptor, select.EPOLLPRI)

    @classmethod
    def of(cls, pid: int) -> "MountWatch":
        """Open and watch the table of `pid`. Raises OSError."""
        return cls(os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC))

    async def changed(self) -> None:
        """Return when the table has changed."""
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[None] = loop.create_future()

        def look() -> None:
            if self._epoll.poll(0) and not seen.done():
                seen.set_result(None)

        loop.add_reader(self._epoll.fileno(), look)
        try:
            await seen
        finally:
            loop.remove_reader(self._epoll.fileno())

    def close(self) -> None:
        """Close both descriptors."""
        self._epoll.close()
        os.close(self._file)
