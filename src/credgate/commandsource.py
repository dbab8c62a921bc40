"""A secret's value from a program of the host: started as the daemon's user, without a shell, with little around it.

The program and its arguments stand in the policy, which no work tree can make say so. What the program prints to
stderr is nobody's, and what it prints to stdout is the value, so neither is in any message.
"""

import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from credgate.secretvalue import MAX_VALUE, SecretUnavailable
from jail.plan import under
from rules.sources import CommandTerms, Output, SecretRule

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
# What tools of passwords need to find their agent and their files; the rest is the policy's to name.
_ALWAYS = ("HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME")
_MAX_OUTPUT = 2 * MAX_VALUE
MAX_LIFETIME = 30 * 86400  # seconds
MARGIN = 60.0  # seconds before its end in which a value counts as over; a tenth of its life where that is less


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A value, and the seconds that it may be used for; 0: this once."""

    value: str = field(repr=False)
    seconds: float


def run_command(rule: SecretRule, env: Mapping[str, str], written: Sequence[str] = ()) -> Fetched:
    """Start the command and wait for it. `env` is the caller's; `written` are trees that an agent may have written.

    Raises SecretUnavailable: no such program, one that others could have written, no end in time, another status than
    0, or output that holds no value.
    """
    terms = rule.terms
    if not isinstance(terms, CommandTerms):
        raise TypeError(f"secret {rule.name!r}: not of a command")
    program = check_program(rule, terms, env, written)
    output = _output(rule, terms, [program, *terms.args], _environment(terms, env))
    try:
        text = output.decode("utf-8")
    except UnicodeDecodeError:
        raise _failed(rule, "command_invalid", "its output is not UTF-8 text") from None
    if terms.output is Output.TEXT:
        return Fetched(value=text.removesuffix("\n"), seconds=rule.keep)
    return _read_json(rule, text)


def check_program(rule: SecretRule, terms: CommandTerms, env: Mapping[str, str], written: Sequence[str]) -> str:
    """Return the whole path of the program. Raises SecretUnavailable where it is not to be trusted or not there."""
    path = terms.program
    if path.startswith("~/"):
        path = str(Path(env.get("HOME", "/nonexistent")) / path[2:])
    real = os.path.realpath(path)
    try:
        facts = os.stat(real)  # noqa: PTH116 - a name
    except OSError as error:
        raise _failed(rule, "command_missing", f"{path}: {(error.strerror or '').lower()}", "install it") from error
    tree = next((tree for tree in written if under(real, tree) or under(path, tree)), None)
    if tree is not None:
        raise _failed(rule, "command_refused", f"{path} lies in {tree}, which an agent may write", "move it out")
    if not stat.S_ISREG(facts.st_mode) or not os.access(real, os.X_OK):
        raise _failed(rule, "command_refused", f"{path} is no program", "name the program itself")
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
        raise _failed(rule, "command_refused", f"{path}: others than you and root can write it", f"chmod go-w {path}")
    return path


def _environment(terms: CommandTerms, env: Mapping[str, str]) -> dict[str, str]:
    named = {name: env[name] for name in (*_ALWAYS, *terms.env) if name in env}
    return {"PATH": _PATH, "LANG": "C.UTF-8", **named}


def _output(rule: SecretRule, terms: CommandTerms, argv: Sequence[str], env: Mapping[str, str]) -> bytes:
    try:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise _failed(rule, "command_failed", f"can't be started: {(error.strerror or '').lower()}") from error
    late = threading.Event()

    def stop() -> None:
        late.set()
        _kill(process)

    timer = threading.Timer(terms.timeout, stop)
    timer.start()
    try:
        with process:
            output = process.stdout.read(_MAX_OUTPUT + 1) if process.stdout is not None else b""
            if len(output) > _MAX_OUTPUT:
                _kill(process)
            status = process.wait()
    finally:
        timer.cancel()
    if late.is_set():
        raise _failed(rule, "command_timeout", f"no end within {terms.timeout} s", "run it by hand: does it ask?")
    if len(output) > _MAX_OUTPUT:
        raise _failed(rule, "command_invalid", f"its output has more than {_MAX_OUTPUT} bytes")
    if status != 0:
        raise _failed(rule, "command_failed", f"exit status {status}", "run it by hand: it says why")
    return output


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """All of its session: a child that keeps stdout open would be waited for."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _read_json(rule: SecretRule, text: str) -> Fetched:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # not "from error": its text holds the output
        raise _failed(rule, "command_invalid", 'output = "json", and its output is none') from None
    value = document.get("value") if isinstance(document, dict) else None
    if not isinstance(value, str):
        raise _failed(
            rule, "command_invalid", 'its output has no text "value"', 'print {"value": ..., "expires_in": 3600}'
        )
    return Fetched(value=value, seconds=_lifetime(rule, document))


def _lifetime(rule: SecretRule, document: Mapping[str, object]) -> float:
    """Seconds until shortly before the end. Without an end: as the policy says."""
    seconds, at = document.get("expires_in"), document.get("expires_at")
    if seconds is None and at is None:
        return rule.keep
    if isinstance(at, str):
        seconds = _until(rule, at)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _failed(rule, "command_invalid", "expires_in is no number of seconds, or expires_at no time")
    if seconds <= 0:
        raise _failed(rule, "command_expired", "the value is over already", "see the clock of this machine")
    return usable(min(float(seconds), MAX_LIFETIME))


def usable(lifetime: float) -> float:
    """Seconds of a lifetime in which a value is used: what takes long on its way must not come too late."""
    return lifetime - min(MARGIN, lifetime / 10)


def _until(rule: SecretRule, text: str) -> float:
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        raise _failed(rule, "command_invalid", "expires_at is no time of RFC 3339") from None
    if end.tzinfo is None:
        raise _failed(rule, "command_invalid", "expires_at has no zone", "add Z")
    return end.timestamp() - time.time()


def _failed(rule: SecretRule, code: str, why: str, hint: str = "") -> SecretUnavailable:
    return SecretUnavailable(code, f"secret {rule.name!r}: {rule.ref}: {why}", hint)
