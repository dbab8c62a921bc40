"""A subtree of the control groups for one uid, made by the code that root's set-up runs, and taken away again."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from jail.cgroups import Base, choose

CHECKOUT = Path(__file__).parent.parent
MOUNTS = Path("/sys/fs/cgroup")


def base_of(uid: int) -> Base | None:
    """What a run of this process's launcher would use."""
    own = Path("/proc/self/cgroup").read_text()
    return choose(uid, Path("/proc/self/mountinfo").read_text(), own, own)


def delegate(uid: int) -> str:
    """By root: "" or why this kernel does not let us."""
    code = f". scripts/lib/cgroup.sh; delegate_cgroups {uid} {uid}"
    done = subprocess.run(["bash", "-euc", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def groups(uid: int) -> list[Path]:
    """Directories of runs that are there for this uid."""
    return [path for path in MOUNTS.glob(f"**/credgate/{uid}/*") if path.is_dir() and path.name != "launchers"]


def withdraw(uid: int) -> None:
    """Remove it; an error where a run has left something behind."""
    for path in sorted(MOUNTS.glob(f"**/credgate/{uid}"), reverse=True):
        for below in path.iterdir():
            if below.is_dir():
                below.rmdir()
        path.rmdir()


@contextlib.contextmanager
def delegated(uid: int) -> Iterator[None]:
    """For as long as a test needs it."""
    assert delegate(uid) == ""
    try:
        yield
    finally:
        withdraw(uid)


def lack() -> str:
    """Why no run can be held by a control group here; by an ordinary user: whether root's set-up left one."""
    uid = os.geteuid()
    if uid != 0:
        return "" if base_of(uid) else "no control group is delegated to this user (scripts/setup by root does that)"
    why = delegate(65533)
    if not why:
        found = list(MOUNTS.glob("**/credgate/65533"))
        withdraw(65533)
        why = "" if len(found) >= 2 or (MOUNTS / "cgroup.controllers").exists() else "no memory and pids controllers"
    return why
