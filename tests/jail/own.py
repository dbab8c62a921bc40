"""Namespaces of a test's own, for code that runs in a forked child (tests.jail.forked)."""

import ctypes
import os
from pathlib import Path

PR_SET_DUMPABLE = 4


def user_namespace() -> None:
    """Map this process's uid and gid to themselves in a new user namespace."""
    # A child that has changed its uid is not dumpable, and its /proc/self then belongs to root.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text)


def enter(user: int, network: int) -> None:
    """Join a berth's namespaces, as a launcher does; never goes on in the ones it was started in."""
    before = Path("/proc/self/ns/net").readlink()
    os.setns(user, os.CLONE_NEWUSER)
    os.setns(network, os.CLONE_NEWNET)
    assert Path("/proc/self/ns/net").readlink() != before
