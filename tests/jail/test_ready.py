"""Waiting for a descriptor, whatever its number."""

import os
import resource
import select
import time
from collections.abc import Iterator

import pytest

from jail.ready import readable

HIGH = 1500


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its reading end has a number that select(2) doesn't know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    reading, writing = os.pipe()
    os.dup2(reading, HIGH)
    os.close(reading)
    yield HIGH, writing
    os.close(HIGH)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_high_one(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with pytest.raises(ValueError, match="out of range"):  # the control
        select.select([reading], [], [], 0)
    assert not readable(reading, 0)
    os.write(writing, b"x")
    assert readable(reading, 0)
    assert os.read(reading, 1) == b"x"
    os.close(writing)
    assert readable(reading, None)  # its end


def test_it_waits_no_less_than_it_is_told() -> None:
    reading, writing = os.pipe()
    began = time.monotonic()
    assert not readable(reading, 0.0301)
    assert time.monotonic() - began >= 0.0301
    for descriptor in (reading, writing):
        os.close(descriptor)
