"""A start by root: become the ordinary user that a run belongs to, and begin anew. Standard library only."""

import os
import pwd
import sys
from pathlib import Path

from credgate import start
from credgate.errors import CredgateError

CANNOT = 125


def become_user(name: str, argv: list[str], command: str) -> None:
    """Root starts nothing itself: drop to the named user (or SUDO_UID) with no groups left, and begin anew."""
    entry = _ordinary(name)
    _enter_delegated(entry.pw_uid)
    os.setgroups([])  # before any setns: after it the kernel refuses (measured)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("SUDO_", "XDG_", "DBUS_"))}
    env = {**keep, "HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    again = [sys.executable, "-I", "-S", start.__file__, command, *_without_user(argv)]
    try:
        os.execve(sys.executable, again, env)
    except OSError as error:
        raise CredgateError(
            "interpreter_closed",
            f"{sys.executable}: {entry.pw_name} can't execute it: {error.strerror}",
            "run scripts/setup as root: it places an interpreter where ordinary users can run it",
            CANNOT,
        ) from None


def _enter_delegated(uid: int) -> None:
    """On cgroup v2 a process moves only below a group of the mover's own: so begin in the one that set-up made.

    See scripts/lib/cgroup.sh.
    """
    path = Path(f"/sys/fs/cgroup/credgate/{uid}/launchers/cgroup.procs")
    if path.exists():
        try:
            path.write_text("0", encoding="ascii")
        except OSError as error:
            hint = "run scripts/setup as root again"
            raise CredgateError("cgroup_closed", f"{path}: {error.strerror}", hint, CANNOT) from None


def _ordinary(name: str) -> pwd.struct_passwd:
    hint = "credgate run --user NAME -- CMD, or start it with sudo"
    try:
        if name:
            entry = pwd.getpwnam(name)
        elif os.environ.get("SUDO_UID", "").isdigit():
            entry = pwd.getpwuid(int(os.environ["SUDO_UID"]))
        else:
            raise CredgateError("root_needs_user", "started by root without --user", hint, CANNOT)
    except KeyError:
        raise CredgateError("no_such_user", f"no user {name or os.environ['SUDO_UID']!r}", hint, CANNOT) from None
    if entry.pw_uid == 0:
        raise CredgateError("root_needs_user", f"got {entry.pw_name}, expected a user other than root", hint, CANNOT)
    return entry


def _without_user(argv: list[str]) -> list[str]:
    """The arguments again, without --user: the flag is for root alone, and the second start is not root's."""
    kept: list[str] = []
    skip = False
    for number, word in enumerate(argv):
        if word == "--" or (not word.startswith("-") and not skip and not _takes_value(argv[number - 1 : number])):
            return [*kept, *argv[number:]]
        if skip or word == "--user":
            skip = not skip
        elif not word.startswith("--user="):
            kept.append(word)
    return kept


def _takes_value(before: list[str]) -> bool:
    return bool(before) and before[0] in (
        "--policy",
        "--role",
        "--workdir",
        "--env",
        "--user",
        "--status-fd",
        "--record",
    )
