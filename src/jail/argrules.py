"""Rules of the filter that look at one argument: what would starve pid 1, and what would make a file setuid.

A pid is what the jail's own pid namespace calls it, so pid 1 is the number 1 for everybody inside. Whoever slows it
down (SCHED_IDLE, nice 19, one busy CPU; measured: 50 s) holds up the memory limit, the deadline and the end of the run.
"""

import errno
from collections.abc import Iterator

type Compare = tuple[int, int, int]  # position of the argument, mask, value
type Rule = tuple[int, str, tuple[Compare, ...]]  # errno, call, what must hold together

LOW = 0xFFFFFFFF
PID1 = 1
# The target is an argument of its own. 0 is the caller, so that a program's own niceness and affinity are its own.
# setpgid: into pid 1's group. Their session is one, so the kernel would let them, and 0 would then mean pid 1 too.
_TARGETS = (
    ("sched_setscheduler", 0),
    ("sched_setparam", 0),
    ("sched_setattr", 0),
    ("sched_setaffinity", 0),
    ("prlimit64", 0),
    ("setpgid", 1),
)
# which, who: the value of `which` for one process, and those for a whole group or user, which have pid 1 in them.
_SCOPED = (("setpriority", 0, (1, 2)), ("ioprio_set", 1, (2, 3)))

SET_ID = (0o4000, 0o2000)  # S_ISUID, S_ISGID: whoever runs the file on the host would act as its owner
_MODES = (
    ("chmod", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("creat", 1),
    ("mkdir", 1),
    ("mkdirat", 2),
    ("mknod", 1),
    ("mknodat", 2),
)
# flags, mode: without O_CREAT or O_TMPFILE the mode's register holds whatever was there.
_OPENS = (("open", 1, 2), ("openat", 2, 3))
O_CREAT, O_TMPFILE = 0o100, 0o20000000  # the bits alone, the same on every architecture of ours


def low(position: int, value: int) -> Compare:
    """The argument's low 32 bits equal `value`."""
    return (position, LOW, value)


def spare_pid1() -> Iterator[Rule]:
    """Nobody changes priority, scheduling, affinity or limits of pid 1."""
    for call, position in _TARGETS:
        yield errno.EPERM, call, (low(position, PID1),)
    for call, process, wider in _SCOPED:
        yield errno.EPERM, call, (low(0, process), low(1, PID1))
        yield from ((errno.EPERM, call, (low(0, which),)) for which in wider)


def no_set_id() -> Iterator[Rule]:
    """Nobody gives a file a set-user-ID or set-group-ID bit. (openat2 has its mode in memory: CALLS refuses it.)"""
    for bit in SET_ID:
        for call, mode in _MODES:
            yield errno.EPERM, call, ((mode, bit, bit),)
        for call, flags, mode in _OPENS:
            for makes in (O_CREAT, O_TMPFILE):
                yield errno.EPERM, call, ((flags, makes, makes), (mode, bit, bit))
