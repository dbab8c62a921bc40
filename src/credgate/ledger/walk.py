"""How far a verification has come, and how it stops. Shared by verify.py and attest.py."""

from dataclasses import dataclass, field
from pathlib import Path

from credgate.ledger.chain import Head
from credgate.ledger.files import NotRegularError, open_plain
from credgate.ledger.note import Note
from credgate.ledger.report import SELF_ATTESTED, Status
from credgate.ledger.tree import Tree

SETTLE = 0.05  # seconds in which a live writer ends the line that it has begun


@dataclass(slots=True)
class Walk:
    """What is known so far of the ledger in a directory."""

    directory: Path
    head: Head = field(default_factory=Head)
    tree: Tree = field(default_factory=Tree)
    first: int = 1
    origin: str = ""
    key: bytes | None = None
    chain: list[bytes] = field(default_factory=list)  # all keys so far
    notes: list[Note] = field(default_factory=list)  # of the segment at hand, not yet met
    last: Note | None = None
    met: int = 0  # checkpoints held against the tree
    wanted: dict[int, bytes] = field(default_factory=dict)  # kept checkpoints' sizes -> our root there
    leaves: list[bytes] | None = None
    torn: dict[str, tuple[int, str]] = field(default_factory=dict)  # file -> seq and digest of its record
    pruned: int = 0  # the last segment that was removed, as the ledger says
    told: dict[str, tuple[int, str, str]] = field(default_factory=dict)  # witness -> seq, reason, detail
    last_ev: str = ""
    tail: str = ""  # what is wrong with the end of the last segment
    old_notes: list[Note] = field(default_factory=list)  # of segments that were removed
    live: bool = False
    trust: str = ""
    witness: str = SELF_ATTESTED


class Stop(Exception):
    """The outcome, where it isn't that all is sound. `seq`: the bad place, where it isn't the next line."""

    def __init__(self, status: Status, kind: str, detail: str, segment: str = "", *, seq: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.segment, self.seq = status, kind, detail, segment, seq


def open_file(path: Path) -> int:
    """Open a file of the ledger. Raises Stop for what is no file; OSError comes through."""
    try:
        return open_plain(path)
    except NotRegularError as error:
        raise Stop(Status.UNREADABLE, "", f"{path} is not a regular file", path.name) from error
