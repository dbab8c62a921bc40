"""Which policy files of work trees the user has read and accepted: path, hash and text, as direnv does."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from credgate import linediff
from credgate.errors import CredgateError
from credgate.paths import open_private, private_dir, read_private, write_private

MAX_STORE = 64 << 20
MAX_SHOWN = 6  # changed lines that stand in the message itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """One accepted file: hex digest of its bytes, and its text for a later diff."""

    sha256: str
    text: str


class PolicyUntrusted(CredgateError):
    """A policy of the work tree was never accepted, or has changed since. `diff` is unified, "" for a new file."""

    def __init__(self, detail: str, hint: str, diff: str = "") -> None:
        super().__init__("policy_untrusted", detail, hint)
        self.diff = diff


def trust(path: Path, data: bytes, state: Path) -> None:
    """Accept these bytes of `path` (absolute). Raises PlaceError, CredgateError where the store is broken."""
    private_dir(state)
    with _locked(state):
        entries = dict(_read(state))
        entries[_key(path)] = Trusted(sha256=sha256(data).hexdigest(), text=data.decode("utf-8", "replace"))
        _write(state, entries)


def check_trusted(path: Path, data: bytes, state: Path) -> None:
    """Raise PolicyUntrusted unless exactly these bytes of `path` were accepted."""
    entry = _read(state).get(_key(path))
    if entry is None:
        raise PolicyUntrusted(
            f"policy {path} lies in the work tree and is not trusted",
            f"read it, then: credgate policy trust {path}",
        )
    if entry.sha256 != sha256(data).hexdigest():
        diff = unified(entry.text, data.decode("utf-8", "replace"), path)
        raise PolicyUntrusted(
            f"policy {path} has changed since it was trusted: {_summary(diff)}",
            f"read the change (credgate policy trust --diff {path}), then: credgate policy trust {path}",
            diff,
        )


def is_listed(path: Path, state: Path) -> bool:
    """Whether some bytes of `path` were accepted once."""
    return _key(path) in _read(state)


def diff_against_trusted(path: Path, data: bytes, state: Path) -> str:
    """Return the unified diff from the accepted text (empty where there is none) to `data`."""
    entry = _read(state).get(_key(path))
    return unified(entry.text if entry else "", data.decode("utf-8", "replace"), path)


def unified(old: str, new: str, path: Path) -> str:
    """Return a unified diff of two texts, "" where they are equal."""
    lines = linediff.unified(old.splitlines(), new.splitlines(), f"{path} (trusted)", f"{path} (now)")
    return "".join(f"{line}\n" for line in lines)


def _summary(diff: str) -> str:
    changed = [line for line in diff.splitlines()[2:] if line.startswith(("+", "-"))]
    more = f" and {len(changed) - MAX_SHOWN} more lines" if len(changed) > MAX_SHOWN else ""
    return " | ".join(changed[:MAX_SHOWN]) + more


def _key(path: Path) -> str:
    return os.path.realpath(path)


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    fd = open_private(state / "trusted.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(state: Path) -> Mapping[str, Trusted]:
    path = state / "trusted.json"
    try:
        raw = json.loads(read_private(path, MAX_STORE))
        return {str(name): Trusted(sha256=str(e["sha256"]), text=str(e["text"])) for name, e in raw.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise CredgateError(
            "trust_broken", f"{path}: not a list of trusted policies", "move it away, trust anew"
        ) from fault


def _write(state: Path, entries: Mapping[str, Trusted]) -> None:
    document = {name: {"sha256": e.sha256, "text": e.text} for name, e in sorted(entries.items())}
    write_private(state / "trusted.json", json.dumps(document, indent=1).encode())
