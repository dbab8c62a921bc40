"""`credgate doctor`: what this host can enforce, and how to mend what it can't."""

import argparse
import json
import os
import platform
import pwd
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from credgate import apparmor, buildfront, buildmodules, compiled, filters
from credgate.backends import FORCED, Backend, BackendKind, choose_backend
from credgate.errors import CredgateError, print_error
from credgate.paths import PlaceError, Places, check_private_dir
from credgate.policyfile import PolicyMissing
from credgate.sourcecheck import check_sources
from credgate.text import escape
from jail import landlock
from jail.errors import JailError

_EXAMPLES = """examples:
  credgate doctor
  credgate doctor --json
  credgate doctor --policy policy.toml
  credgate doctor --filter
  credgate doctor --apparmor | sudo tee /etc/apparmor.d/credgate

exit codes: 0 runs can be confined here, 3 something that they need is missing
"""
_PROBE_SECONDS = 20
_CANNOT = 3
_NEEDED_PYTHON = (3, 12)
_SEALED = (
    "no desktop keyring works here; values are sealed in one file beside its key (or under a systemd credential). "
    "protects from: a copy of the file alone, a changed or swapped value. "
    "does not protect from: any process of yours outside a jail, root, a backup that holds both files"
)
_LABELS = {
    "userns": "user namespaces",
    "netns": "network namespaces, veth",
    "mounts": "mounts",
    "proc": "fresh /proc",
    "nftables": "nftables",
    "landlock": "landlock",
    "seccomp": "seccomp",
    "cgroups": "cgroups",
    "copies": "copies of a tree",
    "yama": "debugging inside",
}


class State(StrEnum):
    """lesser: a run works, with what the detail says in its place. missing: no run starts."""

    OK = "ok"
    LESSER = "lesser"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row. `mend` is "" where there is nothing to mend."""

    name: str
    state: State
    detail: str
    mend: str = ""


def main(argv: Sequence[str]) -> int:
    """Probe, print, and return 0 or 3."""
    parser = argparse.ArgumentParser(
        prog="credgate doctor",
        description="what this host can enforce",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--policy", metavar="FILE", help="whose sources are looked at; default: as for a run here")
    parser.add_argument(
        "--filter", "--seccomp", action="store_true", help="print the system-call filter of a jail and end"
    )
    parser.add_argument("--apparmor", action="store_true", help=f"print the profile for {apparmor.PLACE} and end")
    options = parser.parse_args(argv)
    if options.filter:
        return _print_filter()
    if options.apparmor:
        sys.stdout.write(apparmor.profile(apparmor.both(sys.executable, str(buildfront.COMMAND))))
        return 0
    try:
        places = Places.from_env(os.environ)
        probed = (_probed(name, places) for name in _LABELS)
        checks = [
            _python(),
            *probed,
            _front(),
            _modules(),
            *_sources(places, options.policy),
            _keyring(places),
            _state(places),
        ]
    except CredgateError as error:
        return print_error(error)
    status = _CANNOT if any(check.state is State.MISSING for check in checks) else 0
    if options.json:
        _print_json(checks, status)
    else:
        _print_table(checks, status)
    return status


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info >= _NEEDED_PYTHON:
        return Check(name="python", state=State.OK, detail=f"{found} at {sys.executable}")
    detail = f"{found}, expected 3.12 or newer"
    return Check(name="python", state=State.MISSING, detail=detail, mend="install Python 3.12")


def _probed(name: str, places: Places) -> Check:
    answer = _ask_child(name, places)
    detail, mend = str(answer["detail"]), str(answer["mend"])
    if answer["ok"] is True:
        return Check(name=_LABELS[name], state=State.OK, detail=detail)
    # Without a group pid 1 of a jail sums; without ptrace a role's allow_debug opens nothing; without overlays a role
    # with workdir = "copy" starts no run.
    state = State.LESSER if name in ("cgroups", "copies", "yama") else State.MISSING
    return Check(name=_LABELS[name], state=state, detail=detail, mend=mend)


def _ask_child(name: str, places: Places) -> Mapping[str, object]:
    """Run one probe in a child, by root as an ordinary user: that is who runs belong to."""
    user, group = _ordinary()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "credgate.hostprobes", name],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CREDGATE_PROBE_AT": str(places.copies)},
            cwd="/",
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"ok": False, "detail": f"no answer within {_PROBE_SECONDS} s", "mend": ""}
    except OSError as error:
        detail = f"uid {user} can't start {sys.executable}: {(error.strerror or str(error)).lower()}"
        return {"ok": False, "detail": detail, "mend": "put the interpreter where ordinary users can execute it"}
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        return {"ok": False, "detail": f"probe ended with {done.returncode}: {last}", "mend": "scripts/setup"}
    return answer if isinstance(answer, dict) else {"ok": False, "detail": "probe gave no answer", "mend": ""}


def _ordinary() -> tuple[int | None, int | None]:
    """Uid and gid to probe as: nobody's change for an ordinary caller; for root the sudo user, else nobody."""
    if os.geteuid() != 0:
        return None, None
    name = os.environ.get("SUDO_USER", "") or "nobody"
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise CredgateError("user_unknown", f"no user is called {name!r}", "run it as an ordinary user") from error
    if entry.pw_uid == 0:
        entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def _sources(places: Places, policy: str | None) -> list[Check]:
    """One row, or one for each secret that can't be had: a run starts, and its requests for that one are refused."""
    name = "secret sources"
    try:
        found = check_sources(places, os.environ, Path.cwd(), policy)
    except PolicyMissing as error:
        return [Check(name=name, state=State.OK, detail="no policy yet, so no secret", mend=error.hint)]
    except CredgateError as error:
        return [Check(name=name, state=State.LESSER, detail=error.detail, mend=error.hint)]
    faults = found.faults
    if faults:
        return [Check(name=name, state=State.LESSER, detail=fault.detail, mend=fault.mend) for fault in faults]
    counts = ", ".join(f"{count} {kind}" for kind, count in found.kinds.items()) or "no secret"
    return [Check(name=name, state=State.OK, detail=f"{counts} in {found.path}; no vault was asked")]


def _keyring(places: Places) -> Check:
    backend = choose_backend(places, os.environ)
    ignored = os.environ.get(FORCED, "")
    note = f"; {FORCED}={ignored} is not followed" if ignored else ""
    return _keyring_check(backend, note)


def _keyring_check(backend: Backend, note: str) -> Check:
    match backend.kind:
        case BackendKind.SEALED:
            detail, state = f"{backend.name}: {_SEALED}{note}", State.LESSER
            mend = "log in to a desktop with a secret service, or give the gateway's unit a credential credgate-key"
        case BackendKind.DESKTOP | BackendKind.OTHER:
            detail, state, mend = f"{backend.name} ({backend.kind}){note}", State.OK, ""
    return Check(name="keyring", state=state, detail=detail, mend=mend)


def _front() -> Check:
    if buildfront.is_current():
        return Check(name="launcher", state=State.OK, detail=f"{buildfront.COMMAND}: starts no interpreter")
    detail = "a run starts a Python interpreter, which costs 15 ms of CPU, and 4 MB while it lasts"
    mend = "scripts/setup with a C compiler installed, or python -I -m credgate.buildfront by that Python's owner"
    return Check(name="launcher", state=State.LESSER, detail=detail, mend=mend)


def _modules() -> Check:
    missing = buildmodules.missing()
    if compiled.names() and not missing:
        return Check(name="compiled modules", state=State.OK, detail=f"{buildmodules.PLACE}: as their sources are")
    lacks = f"no current {', '.join(missing)}" if missing else f"no sources in {compiled.SOURCES}"
    detail = f"{lacks}: Python does it in their place, each request takes more CPU"
    mend = "scripts/setup with a C compiler and Python's headers, or python -I -m credgate.buildmodules by its owner"
    return Check(name="compiled modules", state=State.LESSER, detail=detail, mend=mend)


def _state(places: Places) -> Check:
    for path in (places.state, places.ledger, places.run, places.ca, places.sealed):
        try:
            check_private_dir(path)
        except PlaceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue
            return Check(name="state files", state=State.MISSING, detail=error.detail, mend=error.hint)
    try:
        socket = places.control
    except PlaceError as error:
        return Check(name="state files", state=State.MISSING, detail=error.detail, mend=error.hint)
    return Check(name="state files", state=State.OK, detail=f"{places.state} is yours alone; socket {socket}")


def _print_filter() -> int:
    """The readable form of the filter that a role without switches gets."""
    made = filters.shown()
    if not made:
        hint = "`credgate doctor` says which, and how to get it"
        return print_error(CredgateError("no_filter", "libseccomp or a call of it is missing", hint, _CANNOT))
    sys.stdout.write(f"# sha256 {made['default']['sha256']}\n{made['default']['pfc']}")
    return 0


def _landlock_rights() -> dict[str, object] | None:
    """What this kernel's Landlock governs, and what a jail knows of but this kernel doesn't; None without Landlock."""
    try:
        version = landlock.abi()
    except JailError:
        return None
    return {"abi": version, **landlock.rights(version), "missing": landlock.missing(version)}


def _print_json(checks: Sequence[Check], status: int) -> None:
    host = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "uid": os.geteuid(),
        "probed_as": _ordinary()[0],
    }
    checked = [asdict(check) for check in checks]
    document = {
        "checks": checked,
        "host": host,
        "landlock": _landlock_rights(),
        "seccomp": filters.shown(),
        "exit": status,
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _print_table(checks: Sequence[Check], status: int) -> None:
    sys.stdout.write(f"host: Linux {platform.release()} {platform.machine()}\n")
    for check in checks:
        sys.stdout.write(f"{check.name:24}  {check.state:7}  {escape(check.detail)}\n")
        if check.mend and check.state is not State.OK:
            sys.stdout.write(f"{'':24}  {'':7}  mend: {escape(check.mend)}\n")
    sys.stdout.write(_verdict(checks))


def _verdict(checks: Sequence[Check]) -> str:
    """The last lines: whether a run starts here, and what to do first where it doesn't."""
    missing = [check for check in checks if check.state is State.MISSING]
    if not missing:
        return "runs can be confined here; `credgate prove` shows each guard of a jail\n"
    # Most causes make several rows fail: one mend is said once, in the order in which a run needs them.
    mends = dict.fromkeys(check.mend for check in missing if check.mend)
    steps = "".join(f"  {number}. {escape(mend)}\n" for number, mend in enumerate(mends, 1))
    return f"no run starts here before this is mended:\n{steps}then: credgate doctor\n"
