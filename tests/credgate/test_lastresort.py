"""Killing a jail from outside: a pid 1 that gets no CPU, what is below it, and nothing else."""

import asyncio
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from credgate.lastresort import LastResort, kill_below, kill_jail
from jail.syscalls import prctl
from tests.jail import own
from tests.jail.forked import USERS, attempt

needs_userns = pytest.mark.needs("userns")
BUSY = 40
PR_SET_CHILD_SUBREAPER = 36


def starved() -> int:
    """A pid 1 of a namespace of its own, idle in the scheduler's eyes, with BUSY others on its one CPU; its pid."""
    reader, writer = os.pipe()
    cpu = {min(os.sched_getaffinity(0))}
    init = os.fork()
    if init == 0:
        os.sched_setaffinity(0, cpu)
        for _ in range(BUSY):
            if os.fork() == 0:
                os.setsid()
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    pass
                os._exit(0)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.write(writer, b"x")
        while True:  # it has had its share of the CPU: one that wakes up is let in at once
            pass
    os.read(reader, 1)
    time.sleep(0.5)
    return init


def seconds_to_die() -> object:
    own.user_namespace()
    os.unshare(os.CLONE_NEWPID)
    pid = starved()
    pidfd = os.pidfd_open(pid)
    began = time.monotonic()
    kill_jail(pid, os.dup(pidfd))
    return [bool(select.select([pidfd], [], [], 30)[0]), time.monotonic() - began]


@needs_userns
def test_a_starved_jail_dies_when_all_of_it_is_killed() -> None:
    outcome = attempt(seconds_to_die, uid=USERS[-1]).value
    assert isinstance(outcome, list)
    assert outcome[0]
    assert outcome[1] < 40  # before those that hold it back end by themselves; the looks alone go on for 2 s


@contextmanager
def family() -> Iterator[tuple[int, list[int]]]:
    """A process, and its child and grandchild."""
    reader, writer = os.pipe()
    top = os.fork()
    if top == 0:
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # as a pid 1 is for its namespace
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
            os.write(writer, b"%8d" % os.getpid())
        time.sleep(30)
        os._exit(0)
    try:
        yield top, [int(os.read(reader, 8)) for _ in range(2)]
    finally:
        os.kill(top, signal.SIGKILL)
        os.waitpid(top, 0)
        os.close(reader)
        os.close(writer)


def alive(pid: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([pidfd], [], [], 1)[0]
    finally:
        os.close(pidfd)


def test_only_what_is_below_is_killed() -> None:
    with family() as (one, below_one), family() as (other, below_other):
        pidfd = os.pidfd_open(one)
        assert kill_below(one, pidfd) == 2
        assert not any(alive(pid) for pid in below_one)
        assert alive(one)
        assert all(alive(pid) for pid in (other, *below_other))
        os.close(pidfd)
        for pid in below_other:
            os.kill(pid, signal.SIGKILL)


def test_nothing_is_killed_once_it_is_reaped() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    os.waitpid(child, 0)
    with family() as (top, below):
        with pytest.raises(ProcessLookupError):
            kill_below(top, pidfd)
        assert all(alive(pid) for pid in below)
        for pid in below:
            os.kill(pid, signal.SIGKILL)
    os.close(pidfd)


def test_armed_it_kills_and_disarmed_it_does_not() -> None:
    async def go(*, disarm: bool) -> bool:
        with family() as (top, below):
            pidfd = os.pidfd_open(top)
            last = LastResort("r1")
            last.arm(top, pidfd, 60)
            last.arm(top, pidfd, 0.2)
            last.arm(top, pidfd, 60)  # the earliest stands
            if disarm:
                await last.disarm()
            await asyncio.sleep(0.6)
            lives = alive(top)
            for pid in (pid for pid in below if alive(pid)):
                os.kill(pid, signal.SIGKILL)
            await last.disarm()
            os.close(pidfd)
            return lives

    assert asyncio.run(go(disarm=True))
    assert not asyncio.run(go(disarm=False))
