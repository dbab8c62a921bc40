"""What a jail takes over of its launcher, where the starter forks it: as a fork of the launcher's own would have it.

Standard library only.
"""

import os
import resource

from jail.errors import JailError
from jail.fdpass import Json
from jail.syscalls import syscall

IOPRIO_WHO_PROCESS = 1


def take_over(manner: Json) -> None:
    """Have umask, priorities, CPUs and limits of the launcher. Raises JailError."""
    try:
        os.umask(_number(manner["umask"]))
        os.setpriority(os.PRIO_PROCESS, 0, _number(manner["nice"]))
        os.sched_setscheduler(0, _number(manner["policy"]), os.sched_param(0))
        os.sched_setaffinity(0, _numbers(manner["cpus"]))
        if manner["ioprio"] is not None:
            syscall("ioprio_set", IOPRIO_WHO_PROCESS, 0, _number(manner["ioprio"]))
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123 - pathlib costs 14 ms
            file.write(b"%d" % _number(manner["oom_score_adj"]))
        for kind, bounds in enumerate(_pairs(manner["limits"])):
            resource.setrlimit(kind, bounds)
    except (OSError, ValueError, KeyError, TypeError) as error:
        number = error.errno or 0 if isinstance(error, OSError) else 0
        raise JailError("manner", f"what the launcher runs with can't be had: {error}", "", number) from None


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"got {value!r}, expected a number")
    return value


def _numbers(value: object) -> list[int]:
    if not isinstance(value, list):
        raise TypeError(f"got {value!r}, expected numbers")
    return [_number(each) for each in value]


def _pairs(value: object) -> list[tuple[int, int]]:
    if not isinstance(value, list):
        raise TypeError(f"got {value!r}, expected pairs")
    return [(soft, hard) for soft, hard in map(_numbers, value)]
