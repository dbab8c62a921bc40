"""Notice a change of a jail's mount table: measured, a rename on the host detaches a mount inside, and poll tells."""

import asyncio
import os
import select

from credgate.peer import wake

MOST = 4 << 20  # bytes of a table; a few hundred a mount


class MountWatch:
    """Waits for the first change after it was made. Owns the descriptor of an opened /proc/PID/mountinfo.

    The file polls POLLERR and POLLPRI once its namespace's mounts differ from those at the last poll (proc(5)); it is
    always readable, so it hides behind an epoll that asks for POLLPRI alone. Each poll takes the news away, also the
    one that the kernel makes when the epoll is added to another (measured: asking it again said "nothing"): so what
    came before the wait is seen by the text, and a wake-up during the wait is a change without a second look.

    The text also names what is mounted, by its path in its file system: that path changes when somebody renames it on
    the host or puts another file in its place, as updates of programs do ("//deleted" then, measured). The mount stays.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._epoll = select.epoll()
        self._epoll.register(descriptor, select.EPOLLPRI)
        self._before = self._text()

    @classmethod
    def of(cls, pid: int) -> "MountWatch":
        """Open and watch the table of `pid`. Raises OSError."""
        return cls(os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC))

    def _text(self) -> bytes:
        parts, at = [], 0
        while at < MOST and (part := os.pread(self._file, 1 << 16, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def same(self) -> bool:
        """Whether the table is as it was when this was made, and what is mounted has its name still."""
        return self._text() == self._before

    async def changed(self) -> None:
        """Return when the table has changed."""
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._epoll.fileno(), wake, seen)
        try:
            text = self._text()
            if text == self._before or _mounts(text) == _mounts(self._before):
                await seen
        finally:
            loop.remove_reader(self._epoll.fileno())

    def close(self) -> None:
        """Close both descriptors."""
        self._epoll.close()
        os.close(self._file)


def _mounts(table: bytes) -> list[list[bytes]]:
    """Its lines without the fourth field of proc(5), the root of each mount."""
    return [[*words[:3], *words[4:]] for words in map(bytes.split, table.splitlines())]
