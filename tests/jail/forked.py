"""Try something in a forked child, as root and as an ordinary user, and learn what the kernel said."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jail.errors import JailError

NOBODY = 65534
# Root's jail and an ordinary user's differ in what capabilities let pass; a plain user can only test the second.
USERS = [0, NOBODY] if os.geteuid() == 0 else [os.geteuid()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`value`: what the attempt returned (by JSON); else the errno of its OSError, JailError's code, or a signal."""

    value: Any = None
    errno: int = 0
    code: str = ""
    signal: int = 0


def become(uid: int) -> None:
    if uid == os.geteuid():
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def attempt(
    action: Callable[[], object], *, guards: Callable[[], object] | None = None, uid: int | None = None
) -> Outcome:
    """Run `guards` and then `action` in a child of its own session; a fault of the test itself fails it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(writer, action, guards, uid)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Outcome(signal=os.WTERMSIG(status))
    told = json.loads(text)
    assert "fault" not in told, told["fault"]
    return Outcome(**told)


def _child(writer: int, action: Callable[[], object], guards: Callable[[], object] | None, uid: int | None) -> None:
    try:
        signal.alarm(20)
        os.setsid()
        told = json.dumps(_told(action, guards, uid))
        os.write(writer, told.encode())
    finally:
        os._exit(0)


def _told(action: Callable[[], object], guards: Callable[[], object] | None, uid: int | None) -> dict[str, object]:
    try:
        if uid is not None:
            become(uid)
        if guards is not None:
            guards()
        return {"value": action()}
    except OSError as error:
        return {"errno": error.errno}
    except JailError as error:
        return {"code": error.code, "errno": error.errno}
    except BaseException:
        return {"fault": traceback.format_exc()}


def run(argv: list[str], *, guards: Callable[[], object] | None = None, uid: int | None = None) -> tuple[int, str]:
    """Exec `argv` in such a child; returns its exit status (negative: signal) and its output."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(30)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            if uid is not None:
                become(uid)
            if guards is not None:
                guards()
            os.execvpe(argv[0], argv, {"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text
