"""One change of a copy, as a value."""

from dataclasses import dataclass
from enum import StrEnum

from credgate.copystore import Entry


class Kind(StrEnum):
    """What was done to a path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    MODE = "mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One relative path. `before` and `after`: mode and size; `target`: of a link that it becomes.

    naming: why it is taken over only where it is named itself. refused: why it never is. conflict: what of the host's
    stands against it. "" for none of them.
    """

    path: str
    kind: Kind
    before: Entry | None = None
    after: Entry | None = None
    target: str = ""
    naming: str = ""
    refused: str = ""
    conflict: str = ""


def ancestors(path: str) -> list[str]:
    """The directories on the way to a relative path, outer ones first."""
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts))]
