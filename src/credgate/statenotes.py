"""What is noted of a private copy of an agent's own files when its run begins; read back by who reviews it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from credgate.copystore import Copy, CopyError, Entry
from credgate.paths import read_private
from rules.agentstate import Data, Merge, StateRule

SUFFIX = ".state"  # of the copy's name, behind the run's
_MOST = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNotes:
    """begin: ns of the clock that files are stamped with. seeds: relative path and text of what the profile writes."""

    rule: StateRule
    begin: int
    seeds: Mapping[str, str]

    def dump(self) -> dict[str, Any]:
        """As the copy's `meta` holds it."""
        return {"rule": asdict(self.rule), "begin": self.begin, "seeds": dict(self.seeds)}

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "StateNotes":
        """Raises KeyError, TypeError, ValueError."""
        rule = body["rule"]
        data = tuple(Data(**{**entry, "merge": Merge(entry["merge"])}) for entry in rule["data"])
        lists = {name: tuple(rule[name]) for name in ("config", "ignore", "named")}
        return cls(rule=StateRule(data=data, **lists), begin=int(body["begin"]), seeds=dict(body["seeds"]))


def notes_of(copy: Copy) -> StateNotes | None:
    """Of a copy of an agent's files; None for one of a work tree. Raises CopyError."""
    if copy.meta.state is None:
        return None
    try:
        return StateNotes.parse(copy.meta.state)
    except (KeyError, TypeError, ValueError) as error:
        raise CopyError("copy_broken", f"{copy.folder}/meta: {error}", "throw it away: credgate discard") from None


def write_entered(copy: Copy, entered: Mapping[str, Entry]) -> None:
    """Note what the copy held when the run began. Raises PlaceError, OSError."""
    file = os.open(copy.folder / "entered", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="ascii") as out:
        json.dump({path: list(asdict(entry).values()) for path, entry in entered.items()}, out)


def read_entered(copy: Copy) -> dict[str, Entry]:
    """The same again; empty where the run never got so far. Raises PlaceError, CopyError."""
    try:
        body = json.loads(read_private(copy.folder / "entered", _MOST))
        return {path: Entry(**dict(zip(Entry.__slots__, values, strict=True))) for path, values in body.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise CopyError("copy_broken", f"{copy.folder}/entered: {error}", "throw it away: credgate discard") from None
