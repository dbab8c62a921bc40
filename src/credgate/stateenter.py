"""The private copy of an agent's own files: made before the jail is, from what its profile lets in. Daemon side.

The jail never sees the host's directory: what it has there is a directory of ours, with copies in it.
"""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from credgate import room
from credgate.beneath import Beneath
from credgate.copystore import Copy, Entry, Meta, lock, remove
from credgate.errors import CredgateError
from credgate.paths import Places, private_dir, write_private
from credgate.statenotes import SUFFIX, StateNotes, write_entered
from jail.mounts import MAX_COPIED
from jail.plan import JailSpec, under
from rules.agents import Agent
from rules.agentstate import AgentState, StateKind, StateRule, entering
from rules.envnames import credential_value
from rules.policy import Role
from rules.scrub import Table

FILES, BYTES = 2000, 256 << 20  # of what enters; the newest first
NAMED_FILE = 4 << 20  # bytes of a file in a directory that the role names
PEEK = 64 << 10
_WALKED = 200_000  # entries of the host's directory that are looked at
_COARSE = 5  # CLOCK_REALTIME_COARSE, linux/time.h


class StateError(CredgateError):
    """The copy can't be made as the role asks; exit_status 125."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(code, detail, hint, 125)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of the home a role wants a copy of: directories, and single files beside them; relative paths."""

    directories: tuple[str, ...]
    files: tuple[str, ...]


def wanted(role: Role, home: str, shown: Sequence[str]) -> Wanted:
    """Judge what the role names. Raises StateError for what is not there, is a login, or is shown already."""
    agent = role.agent.private() if role.agent is not None and role.agent_state is AgentState.COPY else ()
    directories = list(agent)
    files: list[str] = []
    for name in role.state:
        path = os.path.normpath(home + name[1:])
        kind = _kind(role, name, path)
        (directories if kind else files).append(os.path.relpath(path, home))
    for relative in (*directories, *files):
        at = os.path.join(home, relative)  # noqa: PTH118 - surrogates
        tree = next((tree for tree in shown if under(at, tree) or under(tree, at)), "")
        if tree:
            hint = "take one of the two out of the role"
            raise StateError("state_covered", f"{at}: a copy would stand where the host's {tree} is bound", hint)
    beside = [name for name in files if not _within(name, directories)]
    return Wanted(directories=tuple(dict.fromkeys(directories)), files=tuple(beside))


def _within(name: str, directories: Sequence[str]) -> bool:
    return any(under(f"/{name}", f"/{directory}") for directory in directories)


def _kind(role: Role, name: str, path: str) -> bool:
    """True for a directory, False for a file that may be copied."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        raise StateError("state_missing", f"role {role.name}: {name}: not found", "take it out of state") from None
    if stat.S_ISDIR(facts.st_mode):
        return True
    rule = StateRule(data=(), named=(path.lstrip("/"),))
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_COPIED:
        raise StateError("state_refused", f"{path}: no directory, and no regular file of at most {MAX_COPIED} bytes")
    text = Path(path).read_text("utf-8", "replace")  # at most MAX_COPIED bytes
    if rule.kind(path.lstrip("/")) is StateKind.NEITHER or credential_value(text):
        hint = "bind what is in it as a secret; take the file out of state"
        raise StateError("state_credential", f"{path}: looks like a credential's file", hint)
    return False


def rule_for(role: Role, named: Sequence[str], cwd: str) -> StateRule:
    """What is what in the copy."""
    agent = role.agent if role.agent is not None and role.agent_state is AgentState.COPY else Agent(name="")
    return StateRule.of(agent.data, agent.config, agent.ignore, named, cwd)


def bound(places: Places, run: str, home: str, directories: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(host path, path inside) of each directory of the copy."""
    upper = f"{os.path.realpath(places.copies)}/{run}{SUFFIX}/upper"
    return tuple((f"{upper}/{relative}", f"{home}/{relative}") for relative in directories)


def take(places: Places, spec: JailSpec, role: Role, known: Table) -> tuple[Copy, int]:
    """Make the copy; return it with the lock that says that its run lives. Raises CredgateError, OSError; nothing is
    left then.
    """
    private_dir(places.copies)
    room.check(places.copies)
    folder = places.copies / f"{spec.run}{SUFFIX}"
    folder.mkdir(mode=0o700)
    held = lock(folder)
    try:
        directories = [os.path.relpath(inside, spec.home) for _, inside in spec.private]
        rule = rule_for(role, _named(role, directories), spec.cwd)
        copy = _begun(folder, spec, role, rule)
        entered = _Entering(copy, rule, spec, known).run(directories)
        write_entered(copy, entered)
    except BaseException:
        os.close(held)
        remove(folder)
        raise
    return copy, held


def _named(role: Role, directories: Sequence[str]) -> list[str]:
    """What the role itself names in the copy's directories: all of it enters, and nothing of it is data."""
    agent = role.agent.private() if role.agent is not None and role.agent_state is AgentState.COPY else ()
    names = [os.path.normpath(name.removeprefix("~/")) for name in role.state]
    return [name for name in names if name not in agent and _within(name, directories)]


def _begun(folder: Path, spec: JailSpec, role: Role, rule: StateRule) -> Copy:
    facts = os.stat(spec.home)  # noqa: PTH116 - surrogates
    (folder / "upper").mkdir(mode=0o700)
    seeds = {os.path.relpath(path, spec.home): text for path, text in spec.files}
    notes = StateNotes(rule=rule, begin=time.clock_gettime_ns(_COARSE), seeds=seeds)
    meta = Meta(
        run=spec.run,
        tree=os.path.realpath(spec.home),
        device=facts.st_dev,
        inode=facts.st_ino,
        role=role.name,
        readonly=(),
        hide=(),
        show=(),
        reserved={},
        state=notes.dump(),
    )
    write_private(folder / "meta", meta.dump())
    return Copy(folder=folder, meta=meta)


class _Entering:
    """Copies what enters; a link of the host's is followed nowhere."""

    def __init__(self, copy: Copy, rule: StateRule, spec: JailSpec, known: Table) -> None:
        self.copy, self.rule, self.known = copy, rule, known
        self.seeds = frozenset(os.path.relpath(path, spec.home) for path, _ in spec.files)
        self.quoted = spec.cwd.replace("\\", "\\\\").replace('"', '\\"')
        self.entered: dict[str, Entry] = {}

    def run(self, directories: Sequence[str]) -> dict[str, Entry]:
        with Beneath(self.copy.meta.tree) as tree:
            found: list[tuple[int, int, str]] = []
            for relative in directories:
                (self.copy.upper / relative).mkdir(mode=0o700, parents=True, exist_ok=True)
                for root in self.rule.roots(relative):
                    found += _files(tree, root)
            found += [one for name in self.rule.named for one in _single(tree, name)]
            size = 0
            for mtime, length, path in sorted(found, reverse=True):
                if len(self.entered) >= FILES or not self._may(path):
                    continue
                if size + length <= BYTES and self._copy(tree, path, mtime):
                    size += length
        return self.entered

    def _may(self, path: str) -> bool:
        if path in self.seeds:
            return False
        named = self.rule.kind(path) is StateKind.CONFIG and _within(path, self.rule.named)
        return named or entering(self.rule, path) is not None

    def _copy(self, tree: Beneath, path: str, mtime: int) -> bool:
        """False where it stays outside: it holds a secret, is no file of this project, or can't be read."""
        try:
            with os.fdopen(tree.regular(path), "rb") as source:
                data = source.read(BYTES + 1)
        except OSError:  # gone meanwhile, or closed to this user: no more than not there
            return False
        if len(data) > BYTES or not self._passes(path, data):
            return False
        target = self.copy.upper / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as made:
            made.write(data)
        os.utime(target, ns=(mtime, mtime))
        self.entered[path] = Entry.of(target.lstat())
        return True

    def _passes(self, path: str, data: bytes) -> bool:
        if self.known.found(data):
            return False
        entry = entering(self.rule, path)
        if entry is None:  # of a directory that the role names: nobody knows what is in it
            return len(data) <= NAMED_FILE and not credential_value(data.decode("utf-8", "replace"))
        return entry.holds.replace("{cwd}", self.quoted).encode("utf-8", "surrogateescape") in data[:PEEK]


def _single(tree: Beneath, path: str) -> Iterator[tuple[int, int, str]]:
    """Likewise, of a path that is a file itself."""
    try:
        facts = tree.facts(path)
    except OSError:
        return
    if facts is not None and stat.S_ISREG(facts.st_mode):
        yield facts.st_mtime_ns, facts.st_size, path


def _files(tree: Beneath, relative: str) -> Iterator[tuple[int, int, str]]:
    """(modification time in ns, size, path) of the regular files below a directory of the home."""
    todo, left = [relative], _WALKED
    while todo:
        folder = todo.pop()
        try:
            descriptor = tree.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # not there, a link, or closed: nothing of it enters
            continue
        try:
            with os.scandir(descriptor) as listing:
                for entry in listing:
                    left -= 1
                    path = f"{folder}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        yield facts.st_mtime_ns, facts.st_size, path
        finally:
            os.close(descriptor)
        if left < 0:
            hint = 'narrow the role\'s state, or write agent_state = "fresh"'
            raise StateError("state_too_large", f"~/{relative}: more than {_WALKED} entries", hint)
