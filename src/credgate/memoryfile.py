"""A file that is on no disk: Python's ssl takes certificates and keys from files alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_memory(data: bytes) -> Iterator[str]:
    """The path of an anonymous file, readable for as long as the context lasts."""
    number = os.memfd_create("credgate-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(number, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
