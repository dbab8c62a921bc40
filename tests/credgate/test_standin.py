"""When the starter may stand in for a launcher: for nothing that a fork of the launcher would have had otherwise."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from credgate.errors import CredgateError
from credgate.standin import Borrowed, Manner, differs
from jail import fdpass

OWN = Manner.of(os.getpid())
PLAIN = replace(OWN, status=OWN.status | {"NoNewPrivs": "0"}, limits=((100, 200),) * 16)


def with_status(**values: str) -> Manner:
    return replace(PLAIN, status=PLAIN.status | values)


def test_the_same_manner_fits() -> None:
    assert differs(PLAIN, PLAIN) == ""


@pytest.mark.parametrize(
    ("launcher", "why"),
    [
        (with_status(Groups="4 27"), "Groups"),
        (with_status(Uid="1 1 1 1"), "Uid"),
        (with_status(Seccomp="2"), "Seccomp"),
        (with_status(Seccomp_filters="7"), "Seccomp_filters"),
        (with_status(CapBnd="0"), "CapBnd"),
        (with_status(NoNewPrivs="1"), "NoNewPrivs"),
        (replace(PLAIN, outer=("/", "mnt:[1]")), "namespaces"),
        (replace(PLAIN, policy=os.SCHED_FIFO), "priority"),
        (replace(PLAIN, nice=PLAIN.nice - 1), "priority"),
        (replace(PLAIN, ioprio=1 << 13), "priority"),
        (replace(PLAIN, oom_score_adj=PLAIN.oom_score_adj - 1), "oom_score_adj"),
        (replace(PLAIN, limits=((100, 201), *PLAIN.limits[1:])), "limits"),
        (replace(PLAIN, limits=((100, resource.RLIM_INFINITY), *PLAIN.limits[1:])), "limits"),
    ],
)
def test_more_or_other_rights_do_not(launcher: Manner, why: str) -> None:
    assert differs(launcher, PLAIN).startswith(why)


@pytest.mark.parametrize(
    "launcher",
    [
        replace(PLAIN, nice=PLAIN.nice + 1),
        replace(PLAIN, policy=os.SCHED_IDLE),
        replace(PLAIN, cpus=frozenset({0})),
        replace(PLAIN, oom_score_adj=1000),
        replace(PLAIN, limits=((1, 2),) * 16),
        with_status(Umask="0077"),
    ],
)
def test_less_is_taken_over(launcher: Manner) -> None:
    assert differs(launcher, PLAIN) == ""
    told = launcher.taken_over(PLAIN)
    assert told["nice"] == launcher.nice and told["cpus"] == sorted(launcher.cpus)
    assert told["umask"] == int(launcher.status["Umask"], 8)


def test_no_new_privs_on_both_sides_may_be_two_sandboxes() -> None:
    sealed = with_status(NoNewPrivs="1")
    assert differs(sealed, sealed) == "NoNewPrivs"


def test_a_process_is_read_by_the_kernels_word() -> None:
    limit = resource.getrlimit(resource.RLIMIT_STACK)[1]
    lower = 1 << 20 if limit == resource.RLIM_INFINITY else limit // 2
    script = f"import os, resource; os.nice(2); os.umask(0o31); resource.setrlimit(3, ({lower}, {lower}))"
    argv = [sys.executable, "-I", "-c", f"{script}; print('up', flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        seen = Manner.of(process.pid)
        process.communicate("\n")
    assert (seen.nice, seen.status["Umask"], seen.limits[3]) == (OWN.nice + 2, "0031", (lower, lower))


def message(count: int, ttys: object) -> fdpass.Received:
    return fdpass.Received({"ttys": ttys}, [os.open(os.devnull, os.O_RDONLY) for _ in range(count)], (-1, -1, -1))


@pytest.mark.parametrize(("count", "ttys"), [(0, []), (2, []), (5, []), (7, []), (6, "01"), (6, [3]), (6, [0, -1])])
def test_another_offer_is_refused(count: int, ttys: object) -> None:
    got = message(count, ttys)
    with pytest.raises(CredgateError):
        Borrowed.take(got)
    got.close()


def closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("take", [Borrowed.take])
def test_what_was_lent_is_closed_and_the_request_is_not(take: Callable[[fdpass.Received], Borrowed]) -> None:
    got = message(6, [0, 2])
    request, *lent = list(got.fds)
    borrowed = take(got)
    assert got.fds == [request] and borrowed.ttys == (0, 2) and not any(map(closed, lent))
    borrowed.close()
    borrowed.close()
    assert all(map(closed, lent)) and not closed(request)
    got.close()
