"""What a run changed in its private copy of an agent's own files: the copy's directory against the host's home.

A file of the host's that was there when the run began and has not been changed since is told by its change time, which
no call sets to anything but the present. Nothing is deleted on the host by what lies, or doesn't, in the copy.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import replace

from credgate.beneath import Beneath
from credgate.copychange import Change, Kind, ancestors
from credgate.copystore import Copy, Entry
from credgate.statenotes import StateNotes, read_entered
from credgate.treewalk import walk
from rules.agentstate import StateKind

TICK = 20_000_000  # ns; two ticks of the clock that files are stamped with (CONFIG_HZ is 100 or more)
CONFIG = "the host's agent, or another program, would follow it"


def before(copy: Copy, notes: StateNotes, tree: Beneath) -> dict[str, Entry]:
    """What the host had when the run began of the paths that the copy has, as far as it still has it unchanged."""
    below = len(str(copy.upper)) + 1
    found: dict[str, Entry] = {}
    for _, directories, others in walk([str(copy.upper)]):
        for entry in (*directories, *others):
            path = entry.path[below:]
            try:
                facts = tree.facts(path)
            except OSError:  # a link or another mount on the way: nothing can be put there, and `apply` says why
                continue
            if facts is not None and (stat.S_ISDIR(facts.st_mode) or facts.st_ctime_ns < notes.begin - TICK):
                found[path] = Entry.of(facts)
    return found


def of_interest(copy: Copy, notes: StateNotes, found: Iterable[Change]) -> list[Change]:
    """What may come back, and what waits for a word; without what the run found there and left as it was."""
    entered = read_entered(copy)
    kept, folders = [], []
    for change in found:
        if change.after is None or change.kind not in (Kind.ADDED, Kind.MODIFIED):
            continue
        if stat.S_ISDIR(change.after.mode):
            folders.append(change)
            continue
        kind = notes.rule.kind(change.path)
        if kind is StateKind.NEITHER or entered.get(change.path) == change.after or _is_seed(copy, notes, change):
            continue
        refused = change.refused or ("" if stat.S_ISREG(change.after.mode) else "no regular file")
        kept.append(replace(change, refused=refused, naming=CONFIG if kind is StateKind.CONFIG else ""))
    ways = {path for change in kept for path in ancestors(change.path)}
    free = {path for change in kept if not change.naming for path in ancestors(change.path)}
    needed = [folder for folder in folders if folder.path in ways]
    return [*kept, *(folder if folder.path in free else replace(folder, naming=CONFIG) for folder in needed)]


def _is_seed(copy: Copy, notes: StateNotes, change: Change) -> bool:
    """Whether it is what the profile wrote before the start."""
    text = notes.seeds.get(change.path)
    if text is None or change.after is None or change.after.size != len(text.encode()):
        return False
    with Beneath(str(copy.upper)) as upper:
        try:
            with os.fdopen(upper.regular(change.path), "rb") as file:
                return file.read() == text.encode()
        except OSError:
            return False
