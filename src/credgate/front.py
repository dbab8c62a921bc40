"""What the daemon and a front say to each other: `native/run.c`, a launcher that is no interpreter.

A front sends {"op": "run.front", "front": VERSION, "ttys": [], "warm": bool, "quiet": bool} with the descriptors of a
`run.open`, of which the first holds words that each end with NUL: cwd, policy, role, work tree, "1" for read-only; a
number and as many names of --env; a number and as many words of the command; the rest is the environment.

It is told one letter, a number, a line's end, and words for stderr: P planned, S nothing but words, R ready, X refused
with that exit status, E ended with it. What it can't do itself is told in JSON, which it leaves for Python to read.
"""

import io
from collections.abc import Iterator
from itertools import islice

from credgate import said
from credgate.errors import CredgateError, print_error
from credgate.thinclient import CANNOT, refusal
from jail import fdpass

VERSION = 1
MOST = 200 << 10  # bytes of a message, which has room for all that a jail can make long: BYTES of native/run.c
CUT = b"~cut\n"


def request(raw: bytes) -> fdpass.Json:
    """The body of a `run.open`, of a front's words. Raises CredgateError."""
    *words, last = raw.split(b"\0")
    try:
        if last:
            raise ValueError("the last word has no end")
        left = (word.decode(errors="surrogateescape") for word in words)
        cwd, policy, role, workdir, read_only = islice(left, 5)
        names, argv = _counted(left), _counted(left)
    except ValueError as error:
        raise CredgateError("bad_request", f"run.front: {error}", "", 2) from None
    return {
        "argv": argv,
        "cwd": cwd,
        "env": _environment(left),
        "policy": policy,
        "role": role,
        "workdir": workdir,
        "read_only": read_only == "1",
        "env_names": names,
    }


def _counted(left: Iterator[str]) -> list[str]:
    number = int(next(left, ""))
    found = list(islice(left, max(number, 0)))
    if len(found) != number:
        raise ValueError(f"got {len(found)} words, expected {number}")
    return found


def _environment(words: Iterator[str]) -> dict[str, str]:
    """As os.environ: of two variables of one name the first counts, what has no "=" is none."""
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            env.setdefault(name, value)
    return env


class Front:
    """The launcher of one run, as the daemon speaks to it. quiet: with neither banner nor summary."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._planned = self._ready = self._refused = False
        self._python = False  # has taken the front's place: it reads JSON
        self._lines: object = None  # about what was refused to the command

    @classmethod
    def of(cls, body: fdpass.Json) -> "Front":
        """Raises CredgateError `bad_request` for another version, which has Python start this run."""
        if body.get("front") != VERSION or body.get("ttys") != []:
            raise CredgateError("bad_request", f"got front {body.get('front')!r}, expected {VERSION}", "", 2)
        return cls(quiet=body.get("quiet") is True)

    def form(self, body: fdpass.Json, descriptors: int) -> bytes | None:
        """One message as a front reads it, b"" for nothing to be said; None where Python has to read it as it is.

        It reads whatever comes after that too: the front has left it its place.
        """
        worded = None if self._python else self._worded(body, descriptors)
        self._python = worded is None
        return worded

    def _worded(self, body: fdpass.Json, descriptors: int) -> bytes | None:
        match body.get("ev"):
            case "plan" if descriptors in (0, 2):
                self._planned = True
                return _message("P")
            case "ready":
                self._ready = True
                return _message("R", words="" if self._quiet else said.ready(body))
            case "alarm":
                return _message("S", words=said.alarm(body))
            case "refusals":
                self._lines = body.get("lines")
                return b""
            case "refused":
                return self._refusal(body)
            case "ended":
                return self._end(body)
        return None

    def _refusal(self, body: fdpass.Json) -> bytes:
        error, words, self._refused = refusal(body), io.StringIO(), True
        status = print_error(error, words)
        if not self._planned:  # as run.py: nothing of a command has been there that could have such a status
            status = max(status, CANNOT)
        return _message("X", status, words.getvalue())

    def _end(self, body: fdpass.Json) -> bytes:
        words = "" if self._refused else said.cut_short(str(body["reason"]))  # why it didn't start was said
        if self._ready and not self._quiet and not self._refused:
            words += said.summary(body, self._lines)
        return _message("E", int(str(body["status"])), words)


def _message(kind: str, number: int = 0, words: str = "") -> bytes:
    whole = f"{kind}{number}\n{words}".encode(errors="backslashreplace")
    return whole if len(whole) <= MOST else whole[: MOST - len(CUT)] + CUT
