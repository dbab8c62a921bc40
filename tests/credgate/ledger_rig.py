"""Ledgers for tests: made, rewritten without the key, and checked by the verifier in shell."""

import hashlib
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from credgate.ledger.record import canonical
from credgate.ledger.settings import Settings
from credgate.ledger.writer import Ledger

SHELL = Path(__file__).parents[2] / "docs/verify-ledger.sh"
SMALL = Settings(max_bytes=900, every_lines=2)


def make(directory: Path, lines: int = 3, host: str = "h", settings: Settings = SMALL) -> None:
    """A closed ledger; with SMALL two to four lines a segment."""
    with Ledger.open(directory, settings=settings) as ledger:
        for n in range(lines):
            ledger.append("deny", host=f"{host}{n}")


def records(directory: Path) -> list[dict[str, object]]:
    return [
        json.loads(line) for path in sorted(directory.glob("seg-*.jsonl")) for line in path.read_bytes().splitlines()
    ]


def rechain(lines: Iterable[dict[str, object]]) -> bytes:
    """Records as a chain without a fault: all that somebody without the key can do."""
    out, prev = b"", "0" * 64
    for seq, record in enumerate(lines, start=1):
        body = {**{k: v for k, v in record.items() if k != "hash"}, "seq": seq, "prev": prev}
        line = canonical({**body, "hash": hashlib.sha256(canonical(body)).hexdigest()}) + b"\n"
        prev = hashlib.sha256(line).hexdigest()
        out += line
    return out


def by_shell(directory: Path, key: Path | None = None) -> int:
    done = subprocess.run(
        ["bash", str(SHELL), str(directory), str(key or directory / "pubkey.pem")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.returncode


def no_kernel(_done: int) -> None:
    """In place of `SystemCalls.later`: each sync is an fdatasync, of a thread."""
