"""What a verification says, for programs and for people."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from credgate.ledger.note import Note, vkey

SELF_ATTESTED = "self-attested: no witness"


class Status(IntEnum):
    """Exit codes of `log verify`."""

    SOUND = 0
    TAMPERED = 1
    TRUNCATED = 2
    INCOMPLETE = 3
    UNREADABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome. `seq` is the first bad place (the number that belongs there), `kind` a Fault or a word of docs.

    `size` and `root`: of the tree over all sound lines; `signed`: lines that checkpoints cover; `first`: the first line
    that is there; `pubkey`: the key in force at the end, base64; `trust`: why it is the right one.
    """

    status: Status
    records: int = 0  # the number of the last sound one
    first: int = 1
    last_sha256: str = ""
    root: bytes = b""
    origin: str = ""
    signed: int = 0
    checkpoints: int = 0
    pubkey: str = ""
    trust: str = ""
    kind: str = ""
    seq: int | None = None
    segment: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()
    witness: str = SELF_ATTESTED
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Checkpoints that somebody else kept: `who` for the report; `others`: some may be of other ledgers."""

    who: str
    notes: Sequence[Note]
    others: bool = False


def as_json(report: Report) -> Mapping[str, object]:
    """The report as `log verify --json` prints it."""
    return {
        "state": report.status.name.lower(),
        "exit": int(report.status),
        "records": report.records,
        "first_record": report.first,
        "last_sha256": report.last_sha256,
        "root": base64.b64encode(report.root).decode(),
        "origin": report.origin,
        "signed_records": report.signed,
        "checkpoints": report.checkpoints,
        "pubkey": report.pubkey,
        "vkey": vkey(report.origin, base64.b64decode(report.pubkey)) if report.pubkey and report.origin else "",
        "trust": report.trust,
        "kind": report.kind,
        "seq": report.seq,
        "segment": report.segment,
        "detail": report.detail,
        "witness": report.witness,
        "live": report.live,
        "notes": list(report.notes),
    }


def from_json(said: Mapping[str, Any]) -> Report:
    """The report that as_json printed. Raises KeyError, TypeError or ValueError for anything else."""
    return Report(
        status=Status(said["exit"]),
        records=int(said["records"]),
        first=int(said["first_record"]),
        last_sha256=str(said["last_sha256"]),
        root=base64.b64decode(said["root"], validate=True),
        origin=str(said["origin"]),
        signed=int(said["signed_records"]),
        checkpoints=int(said["checkpoints"]),
        pubkey=str(said["pubkey"]),
        trust=str(said["trust"]),
        kind=str(said["kind"]),
        seq=None if said["seq"] is None else int(said["seq"]),
        segment=str(said["segment"]),
        detail=str(said["detail"]),
        notes=tuple(str(note) for note in said["notes"]),
        witness=str(said["witness"]),
        live=said["live"] is True,
    )
