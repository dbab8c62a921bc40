"""The data of an agent comes back, into the user's own directories, by its profile's rule; none of the host's is lost.
Daemon side, when the jail is dead; what lies in the copy is hostile.

Only regular files, no link followed on either side, sizes bounded, and no file that holds a secret's value.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace

from credgate.beneath import Beneath
from credgate.copyapply import put, tried
from credgate.copychange import Change, ancestors
from credgate.copylook import changes, in_passing, opened_tree
from credgate.copystore import Copy
from credgate.statenotes import StateNotes, notes_of
from credgate.text import cut, some
from rules.agentstate import Merge
from rules.scrub import Table

FILES, FILE, BYTES = 10_000, 64 << 20, 1 << 30  # of one run
_NAMES, _TOLD, _LONGEST = 6, 50, 300
OTHER = "the host's is not what the run went on from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """Of one run: paths that came back, those that did not with why, and configuration that waits for a word."""

    run: str
    taken: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    waiting: tuple[str, ...] = ()
    unseen: bool = False  # it could not be looked through; the daemon's log says why

    def sentences(self) -> list[str]:
        """For the summary; nothing of what simply came back."""
        said = [f"not taken back: ~/{_name(path)}: {why}" for path, why in self.left[:_NAMES]]
        if len(self.left) > _NAMES:
            said.append(f"not taken back: {len(self.left) - _NAMES} more")
        if self.waiting:
            named = some([f"~/{_name(path)}" for path in self.waiting[:_NAMES]], len(self.waiting))
            said.append(f"changed in the jail, and the host would follow it, so it was not taken: {named}")
        if self.unseen:
            said.append("the agent's own files could not be looked through, and nothing of them was taken")
        if self.left or self.waiting or self.unseen:
            said.append(f"kept: credgate diff {self.run}, apply {self.run} PATH..., discard {self.run}")
        return said

    def to_json(self) -> dict[str, object]:
        """As the exit line holds it."""
        left = [{"path": _name(path), "why": why} for path, why in self.left[:_TOLD]]
        return {"back": len(self.taken), "left": left, "waiting": [_name(path) for path in self.waiting[:_TOLD]]}

    def fields(self) -> dict[str, object]:
        """What the ledger's run.end holds of it."""
        return {"state_back": len(self.taken), "state_kept": len(self.left) + len(self.waiting)}


def _name(path: str) -> str:
    """The jail chose it, and all of them go into one message."""
    return cut(path, _LONGEST)


def bring_back(copy: Copy, known: Table) -> Back:
    """Take the data back. What was taken is no longer in the copy. Raises CredgateError, OSError."""
    notes = notes_of(copy)
    if notes is None:
        raise RuntimeError("not a copy of an agent's files")
    taken: list[str] = []
    left: list[tuple[str, str]] = []
    waiting: list[str] = []
    size = 0
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as tree:
        for change in _files(copy):
            if change.naming:
                waiting.append(change.path)
                continue
            size += 0 if change.after is None else change.after.size
            over = f"more than {FILES} files or {BYTES >> 20} MiB" if len(taken) >= FILES or size > BYTES else ""
            why = change.refused or over or _returned(_Return(upper, tree, notes, known), change)
            if why:
                left.append((change.path, why))
            else:
                taken.append(change.path)
                _drop(upper, change.path)
    return Back(run=copy.meta.run, taken=tuple(taken), left=tuple(left), waiting=tuple(waiting))


def _files(copy: Copy) -> Iterator[Change]:
    for change in changes(copy, in_passing()):
        if change.after is None or not stat.S_ISDIR(change.after.mode):
            yield change


@dataclass(frozen=True, slots=True)
class _Return:
    upper: Beneath
    tree: Beneath
    notes: StateNotes
    known: Table


def _returned(way: _Return, change: Change) -> str:
    """Why one file did not come back; "" where it did."""
    entry = way.notes.rule.entry(change.path)
    try:
        if entry is None or change.after is None:
            return "no data of the agent's"
        if change.after.size > FILE:
            return f"over {FILE >> 20} MiB"
        with os.fdopen(way.upper.regular(change.path), "rb") as file:
            data = file.read(FILE)
        if names := way.known.found(data):
            return f"holds the value of the secret {', '.join(sorted(names))}"
        _ways(way.tree, change.path)
        return _merged(way, change, data, entry.merge)
    except FileExistsError:
        return OTHER
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            return "a link or another mount stands on the way"
        return (error.strerror or str(error)).lower()


def _merged(way: _Return, change: Change, data: bytes, merge: Merge) -> str:
    facts = way.tree.facts(change.path)
    if facts is None:
        return tried(put, way.upper, way.tree, _as_new(change))
    if not stat.S_ISREG(facts.st_mode):
        return "no regular file on the host"
    match merge:
        case Merge.APPEND:
            return _append(way.tree, change.path, data, whole=False)
        case Merge.EXTEND:
            return _append(way.tree, change.path, data, whole=True)
        case Merge.REPLACE:
            if change.before is None or change.conflict:
                return OTHER
            return tried(put, way.upper, way.tree, replace(_as_new(change), before=change.before))


def _append(tree: Beneath, path: str, data: bytes, *, whole: bool) -> str:
    """Add lines to the host's file. `whole`: the data begins with all that the host has."""
    descriptor = tree.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        has = file.read(FILE + 1) or b""
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or len(has) > FILE:
            return "the host's is larger than what is compared" if len(has) > FILE else "no regular file on the host"
        if whole and not data.startswith(has):
            return "" if has.startswith(data) else OTHER
        tail = data[len(has) :] if whole else data
        if not whole and has and not has.endswith(b"\n"):
            tail = b"\n" + tail
        while tail:
            tail = tail[os.write(descriptor, tail) :]
    return ""


def _as_new(change: Change) -> Change:
    """As a file that the host does not have, of its owner's alone to write, and no program."""
    if change.after is None:
        raise RuntimeError("nothing is in the copy")
    after = replace(change.after, mode=stat.S_IFREG | (change.after.mode & 0o644))
    return Change(path=change.path, kind=change.kind, after=after)


def _ways(tree: Beneath, path: str) -> None:
    """The directories on the way, made for the owner alone where they are missing."""
    for folder in ancestors(path):
        if tree.facts(folder) is None:
            with tree.parent(folder) as (descriptor, name):
                os.mkdir(name, 0o700, dir_fd=descriptor)


def _drop(upper: Beneath, path: str) -> None:
    with upper.parent(path) as (folder, name):
        os.unlink(name, dir_fd=folder)
