"""Whether a descriptor has something to read. Standard library only.

By poll(2): select(2) knows no descriptor above 1023 (its FD_SETSIZE), and a daemon with a hundred jails has more.
"""

import select

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def readable(descriptor: "FileDescriptorLike", seconds: float | None) -> bool:
    """Wait until it can be read, or has ended; False once `seconds` are over. None: for as long as it takes."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    # rounded up: who waits until a moment would else ask again and again in its last millisecond
    return bool(poll.poll(None if seconds is None else int(max(seconds, 0.0) * 1000 + 0.999)))
