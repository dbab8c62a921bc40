"""Unix sockets by a path of any length: sun_path has 108 bytes (unix(7)), the name of a work tree may have more."""

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def below(directory: str, name: str) -> "Iterator[str]":
    """A short path of `name` in `directory`, by a descriptor that is open meanwhile. Raises OSError."""
    where = os.open(os.fsencode(directory), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{where}/{name}"
    finally:
        os.close(where)
