"""`credgate prove`: build the jail, try what each guard forbids, inside and outside, and run nothing else in it."""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import secrets
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from credgate import controlclient, thinclient
from credgate.becomeuser import become_user
from credgate.errors import CredgateError, print_error
from credgate.paths import Places
from credgate.text import escape
from jail import fdpass, launcher
from jail.errors import JailError
from jail.syscalls import syscall

USAGE, CANNOT = 2, 3
ASKED_WRONG = ("policy_", "role_")  # codes of errors in what was asked for, not in this host
STANDARD = [0, 1, 2]
LEAKED = 60  # a descriptor that is inheritable, and that nobody named to pid 1
KEYCTL_JOIN_SESSION_KEYRING, SESSION_KEYRING = 1, -3
SHOWN, CLOSED, NOT_SHOWN = "shown", "closed by host", "not shown"
_EXAMPLES = """examples:
  credgate prove
  credgate prove --policy p.toml --role dev --json

exit codes: 0 every guard shown, or closed by the host itself; 1 a guard not shown; 2 policy or role at fault;
3 this host can't
"""


def main(argv: Sequence[str]) -> int:
    """Ask the daemon, start its two jails, print its rows."""
    options = _parser().parse_args(argv)
    if os.geteuid() == 0:
        become_user(options.user, list(argv), "prove")
    try:
        answer = _answer(options)
    except (CredgateError, JailError) as error:
        print_error(CredgateError(error.code, error.detail, error.hint))
        return USAGE if error.code.startswith(ASKED_WRONG) else CANNOT
    rows: list[dict[str, str]] = answer["guards"]
    document = {"guards": rows, "proof": answer["proof"], "host": answer["host"], "role": answer["role"]}
    if options.record:
        Path(options.record).write_text(json.dumps(document, indent=2) + "\n")
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        _print(document)
    return 1 if any(row["state"] == NOT_SHOWN for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate prove",
        description="Build the jail of a role, or of a built-in strictest one, and prove each guard: by read-back, by "
        "an attempt inside, by the same attempt outside.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", metavar="FILE", default="", help="the policy (with neither: the built-in role)")
    parser.add_argument("--role", metavar="NAME", default="", help="the role (default: the policy's)")
    parser.add_argument("--record", metavar="FILE", default="", help="write the JSON document there as well")
    parser.add_argument("--user", metavar="NAME", default="", help="for root: the ordinary user that runs belong to")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def _answer(options: argparse.Namespace) -> dict[str, Any]:
    """Have a child with a stand-in terminal do it: what the jails could inherit from it is there to be inherited."""
    wanted = {
        "policy": options.policy,
        "role": options.role,
        "cwd": str(Path.cwd()),
        "env": dict(os.environ),
        "canary": secrets.token_hex(16),
    }
    reader, writer = os.pipe()
    master, slave = pty.openpty()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.close(master)
        _child(wanted, slave, writer)
    os.close(writer)
    os.close(slave)
    with os.fdopen(reader, "rb") as file:
        text = file.read()
    os.close(master)
    os.waitpid(child, 0)
    if not text:
        raise CredgateError("prove_failed", "the process that starts the jails died", "this is a fault of credgate")
    answer: dict[str, Any] = json.loads(text)
    if answer.get("ev") != "proved":
        raise thinclient.refusal(answer)
    return answer


def _child(wanted: Mapping[str, object], slave: int, writer: int) -> None:
    """Carry the canary, start what the daemon asks for, hand its last word on. Never returns."""
    try:
        said: Mapping[str, object] = _converse(wanted, slave)
    except (CredgateError, JailError) as error:
        said = {"ev": "refused", "code": error.code, "detail": error.detail, "hint": error.hint}
    except Exception as error:  # noqa: BLE001 - outermost frame of this process
        said = {"ev": "refused", "code": "internal", "detail": f"{type(error).__name__}: {error}", "hint": ""}
    with os.fdopen(writer, "wb") as file:
        file.write(json.dumps(said).encode())
    os._exit(0)


def _converse(wanted: Mapping[str, object], slave: int) -> Mapping[str, object]:
    control = controlclient.connect_or_start(Places.from_env(os.environ))
    payload = os.memfd_create("request", os.MFD_CLOEXEC)
    os.write(payload, json.dumps(wanted).encode())
    fdpass.send(control, {"op": "prove.open"}, [payload])
    os.close(payload)
    _carry(str(wanted["canary"]), slave)
    started: list[launcher.Started] = []
    try:
        while (message := fdpass.recv(control)) is not None:
            match message.body.get("ev"):
                case "plan":
                    started.append(launcher.start(launcher.Handles(message.fds), STANDARD))
                case "proved" | "refused":
                    return message.body
                case _:
                    message.close()
    finally:
        for jail in started:
            jail.peer.close()  # pid 1 ends everything when this goes
            jail.wait()
    raise CredgateError("daemon_gone", "the daemon closed the connection", "see its log")


def _carry(canary: str, slave: int) -> None:
    """Have what a careless launcher has: a terminal, a key, a variable, an open file."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in STANDARD:
        os.dup2(slave, number, inheritable=True)
    os.environ["CREDGATE_CANARY"] = canary
    with contextlib.suppress(OSError):  # a kernel without keys: the control says so
        syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)
        data = canary.encode()
        syscall("add_key", b"user", f"credgate-{canary}".encode(), data, len(data), SESSION_KEYRING)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), LEAKED, inheritable=True)


def _print(document: Mapping[str, Any]) -> None:
    rows: list[dict[str, str]] = document["guards"]
    head = {"guard": "guard", "inside": "inside", "control": "control", "readback": "read-back", "state": "state"}
    widths = {key: max(len(row[key]) for row in [head, *rows]) for key in ("guard", "inside", "control")}
    for row in [head, *rows]:
        cells = "  ".join(escape(row[key]).ljust(width) for key, width in widths.items())
        print(f"{cells}  {row['state']}" + (f": {escape(row['why'])}" if row.get("why") else ""))
    counts = {state: sum(row["state"] == state for row in rows) for state in (SHOWN, CLOSED, NOT_SHOWN)}
    print(f"\n{len(rows)} guards of role {escape(document['role'])} on {document['host']}: ", end="")
    print(", ".join(f"{count} {state}" for state, count in counts.items()) + f"; proof {document['proof']}")
    sys.stdout.flush()
