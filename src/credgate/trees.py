"""Which trees of the host runs share, write, or have written. Values and one small file of state."""

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from credgate.errors import CredgateError
from credgate.paths import Places, open_private, private_dir, read_private, write_private
from jail.plan import JailSpec, under

REFUSED = 125
MOST = 1000  # work trees that are remembered
LIMIT = 4 << 20


class TreeError(CredgateError):
    """A tree can't be lent to this run; exit_status 125."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(code, detail, hint, REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a live run sees: `shown` are its bound trees, `written` its work tree where it may write that."""

    identity: tuple[str, str]  # policy's sha256, role: runs of one identity have the same rights
    shown: tuple[str, ...]
    written: tuple[str, ...]


class Claims:
    """The trees of the live runs. `take` checks and enters in one step, without a wait in between: of two runs that
    start together the second one is refused.
    """

    def __init__(self) -> None:
        self._live: dict[str, Claim] = {}

    def take(self, run: str, spec: JailSpec, identity: tuple[str, str], lineage: Iterable[str] = ()) -> None:
        """Enter a run. `lineage`: runs above it, which lend it what it has. Raises TreeError.

        Two live runs of different rights don't share a tree that one may write: one could lend the other what it has.
        """
        written = (spec.workdir,) if spec.host_written else ()
        mine = Claim(identity=identity, shown=(spec.workdir, *(t.path for t in spec.trees)), written=written)
        for other, theirs in self._live.items():
            if other not in lineage and theirs.identity != identity and (tree := _shared(mine, theirs)):
                raise TreeError(
                    "tree_shared",
                    f"{tree}: run {other} has it too, with other rights, and one of them may write",
                    "wait for its end, or use another work tree",
                )
        self._live[run] = mine

    def drop(self, run: str) -> None:
        """A run has ended; unknown ones are no error."""
        self._live.pop(run, None)


def _shared(mine: Claim, theirs: Claim) -> str:
    for one, other in ((mine, theirs), (theirs, mine)):
        for tree in one.written:
            if any(under(tree, shown) or under(shown, tree) for shown in other.shown):
                return tree
    return ""


def written_before(places: Places) -> list[str]:
    """Work trees that some run could write, newest last. What they say of other trees is not believed."""
    try:
        body = json.loads(read_private(places.state / "written.json", LIMIT))
    except FileNotFoundError:
        return []
    return [tree for tree in body["trees"] if isinstance(tree, str)]


def note_written(places: Places, tree: str) -> None:
    """Remember a work tree that a run may write from now on, before it can. Raises PlaceError."""
    private_dir(places.state)
    # two runs that begin at once, or an `apply` beside one: neither may lose what the other notes
    with os.fdopen(open_private(places.state / "written.lock", os.O_WRONLY | os.O_CREAT), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = [other for other in written_before(places) if other != tree]
        write_private(places.state / "written.json", json.dumps({"trees": [*known, tree][-MOST:]}).encode())


def refuse_planted(path: str, written: Sequence[str]) -> None:
    """Refuse a path that passes a symlink lying in a tree that an agent may have written. Raises TreeError.

    Measured: with `docs` replaced by a link to ~/.ssh, the next run's `read = ["docs"]` showed the keys.
    """
    for part in (path, *map(str, Path(path).parents)):
        if Path(part).is_symlink() and any(under(part, tree) and part != tree for tree in written):
            real = os.path.realpath(part)
            raise TreeError(
                "planted_link", f"{part}: a link in a tree that an agent may write leads to {real}", "name that itself"
            )
