"""From what a work tree holds to what its jail must not change or see: islands, the pins that keep them in place, files
that are hidden, and directories that are made so that nobody else makes them.

A read-only mount stays where it is; what leads to it can be renamed and made anew (measured), so each directory between
the work tree and an island is a mount point too. Of a link the link itself is held, and what it leads to in the tree.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from credgate.errors import CredgateError
from credgate.text import cut, some
from credgate.treelook import TreeLook, relative
from credgate.treewalk import walk
from jail.plan import Hidden, Protection, under
from rules.gitconfig import led, parse
from rules.islands import GIT, ISLANDS, LINKED, PATTERNS, RESERVED
from rules.policy import Role
from rules.treenames import TreePattern

MOST = 2000  # mount points that islands, pins and hidden files of one run may take
CONFIG = 1 << 20  # bytes of a git configuration that are read
STEPS = 256  # names and links of one path, as the kernel bounds the latter to 40
DEPTH = 10  # of includes, as git has it
NOTHING = "\n"  # a configuration that says nothing
COMMONDIR = ".\n"  # gitrepository-layout(5): the git directory itself
REFUSED = 125
LONGEST = 300  # bytes of a name in the banner
_AT_ROOT = 64  # entries of one island directory that are looked at for second names


class ProtectError(CredgateError):
    """The work tree can't be protected as it must be; exit_status 125."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(code, detail, hint, REFUSED)


@dataclass(slots=True)
class _Found:
    """Gathered so far, each path once and in the order of finding."""

    tree: str
    islands: dict[str, None] = field(default_factory=dict)
    pins: dict[str, None] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)  # path: content of a file, "" for a directory

    def add(self, path: str) -> None:
        """Hold what is at `path`; where that passes a link, the link, and what it leads to in the tree."""
        current, todo = self.tree, list(Path(path).relative_to(self.tree).parts)
        for _ in range(STEPS):
            if not todo:
                return
            part = todo.pop(0)
            following = os.path.normpath(f"{current}/{part}")  # of "..": `current` passes no link
            if not under(following, self.tree):
                self._back_in(following, todo)
                return
            if os.path.islink(following):
                self.islands[following] = None
                target = os.readlink(following)
                if target.startswith("/"):
                    self._back_in(target, todo)
                    return
                todo = target.split("/") + todo
            elif os.path.lexists(following):
                if following != self.tree:
                    (self.pins if any(todo) else self.islands)[following] = None
                current = following
            else:
                return

    def _back_in(self, path: str, todo: list[str]) -> None:
        """A way that leads out of the tree may lead in again; of what is outside nothing can be changed by the jail."""
        real = os.path.realpath("/".join((path, *todo)))
        if under(real, self.tree) and real != self.tree and not os.path.islink(real):  # a loop is one
            self.add(real)

    def reserve(self, path: str, content: str = "") -> None:
        """Have a directory (or a file with this content) made at `path`, and hold it."""
        parent = os.path.dirname(path)
        while not os.path.lexists(parent):
            self.reserved.setdefault(parent, "")
            self.pins[parent] = None
            parent = os.path.dirname(parent)
        if os.path.islink(parent) or not os.path.isdir(parent):
            return  # a link is held where it is found; below a file nothing can be made
        self.add_pins(parent)
        self.reserved[path] = content
        self.islands[path] = None

    def hold(self, link: str) -> None:
        """Hold a link alone: what it leads to has to stay writable (a git directory)."""
        self.islands[link] = None
        self.add_pins(os.path.dirname(link))

    def add_pins(self, directory: str) -> None:
        """Hold every directory from the tree down to this one."""
        for each in [directory, *map(str, Path(directory).parents)]:
            if not under(each, self.tree) or each == self.tree:
                return
            self.pins[each] = None


def protection(look: TreeLook, role: Role, home: str, *, write: bool) -> Protection:
    """What the jail of this tree must hold fast and hide. Raises ProtectError beyond what can be mounted."""
    found = _Found(look.tree)
    if write:
        _islands(found, look, role, home)
    hidden = _hidden(look)
    _second_names(found, hidden)
    return _ordered(found, hidden, look.repositories)


def _islands(found: _Found, look: TreeLook, role: Role, home: str) -> None:
    for root in dict.fromkeys([look.tree, *look.repositories]):
        for path in _at_root(root):
            found.add(path)
    for directory in look.git:
        _git(found, directory)
    linked = (f"{directory}/{name}" for directory in look.linked for name in LINKED)
    # A .git that is no repository yet can be made one by whoever writes there; what it has by now is held.
    begun = (f"{root}/.git/{name}" for root in look.repositories for name in GIT)
    for path in (*linked, *begun, *look.readonly, *_led_to(look, home)):
        found.add(path)
    for path in look.links:
        found.hold(path) if os.path.isdir(path) else found.add(path)
    if os.access(look.tree, os.W_OK):
        _reserve(found, look.tree, role)


def _reserve(found: _Found, tree: str, role: Role) -> None:
    patterns = [TreePattern.parse(text) for text in role.readonly]
    wanted = [*RESERVED, *(p.path for p in patterns if p.literal and p.directory)]
    for path in (f"{tree.rstrip('/')}/{name}" for name in wanted):
        if not os.path.lexists(path):
            found.reserve(path)


def _at_root(root: str) -> Iterator[str]:
    for island in ISLANDS:
        path = f"{root.rstrip('/')}/{island.path}"
        if os.path.lexists(path):
            yield path
    with os.scandir(root) as listing:
        yield from (e.path for e in listing if any(e.name.endswith(suffix) for suffix, _ in PATTERNS))


def _git(found: _Found, directory: str) -> None:
    for name in GIT:
        found.add(f"{directory}/{name}")
    if not os.access(directory, os.W_OK):
        return
    missing = {"hooks": "", "commondir": COMMONDIR, "config": NOTHING}
    if any(key == "extensions.worktreeconfig" for key, _ in parse(_read(f"{directory}/config"))):
        missing["config.worktree"] = NOTHING
    for name, content in missing.items():
        if not os.path.lexists(f"{directory}/{name}"):
            found.reserve(f"{directory}/{name}", content)


def _led_to(look: TreeLook, home: str) -> Iterator[str]:
    """Paths in the tree that git configuration has git execute or read: hooks elsewhere, includes, drivers, aliases."""
    user = [f"{home}/.gitconfig", f"{home}/.config/git/config", "/etc/gitconfig"]
    roots = [root for root in look.repositories if os.path.lexists(f"{root}/.git")] or [look.tree]
    for config in user:
        for root in roots:
            yield from _from_config(look.tree, config, root, home, DEPTH)
    for directory in look.git:
        root = os.path.dirname(directory) if directory.endswith("/.git") else directory
        for name in ("config", "config.worktree"):
            yield from _from_config(look.tree, f"{directory}/{name}", root, home, DEPTH)


def _from_config(tree: str, config: str, root: str, home: str, depth: int) -> Iterator[str]:
    data = _read(config)
    if not data or depth == 0:
        return
    said = led(data)
    for value in said.includes:
        path = _placed(value, os.path.dirname(config), home)
        if under(path, tree):
            yield path
        yield from _from_config(tree, path, root, home, depth - 1)
    for value in (*said.hooks, *said.words):
        path = _placed(value, root, home)
        if under(path, tree) and path != tree and os.path.lexists(path):
            yield path


def _placed(value: str, base: str, home: str) -> str:
    spelled = home + value[1:] if value.startswith("~/") else value
    return os.path.normpath(os.path.join(base, spelled))


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):  # not there, not ours to read, or no path at all (NUL)
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(CONFIG) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _hidden(look: TreeLook) -> dict[str, bool]:
    """Files and directories to be covered, by path; of a link what it leads to in the tree."""
    covered: dict[str, bool] = {}
    for path, _ in look.hidden:
        real = os.path.realpath(path)
        if under(real, look.tree) and real != look.tree and os.path.lexists(real):
            covered[real] = os.path.isdir(real)
    return covered


def _second_names(found: _Found, hidden: dict[str, bool]) -> None:
    """Other names (hard links) in the tree of what is held or hidden: through them it could be changed or read."""
    singles = dict(_several(_files(found.islands)))
    veiled = dict(_several(path for path, directory in hidden.items() if not directory))
    if not singles and not veiled:
        return
    inodes = {number for _, number in (*singles, *veiled)}
    for directory, _, others in walk([found.tree]):
        for entry in others:
            if entry.inode() in inodes and entry.is_file(follow_symlinks=False):
                facts = entry.stat(follow_symlinks=False)
                key = (facts.st_dev, facts.st_ino)
                if key in veiled:
                    hidden[entry.path] = False
                elif key in singles and not any(under(directory, island) for island in found.islands):
                    found.add(entry.path)


def _files(islands: Iterable[str]) -> Iterator[str]:
    for path in islands:
        if os.path.isdir(path) and not os.path.islink(path):
            with os.scandir(path) as listing:
                yield from (entry.path for entry, _ in zip(listing, range(_AT_ROOT), strict=False))
        else:
            yield path


def _several(paths: Iterable[str]) -> Iterator[tuple[tuple[int, int], str]]:
    for path in paths:
        try:
            facts = os.lstat(path)
        except FileNotFoundError:  # one that is still to be made
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
            yield (facts.st_dev, facts.st_ino), path


def _ordered(found: _Found, hidden: Mapping[str, bool], repositories: Iterable[str]) -> Protection:
    """Each path once, outer ones first; what lies in an island is held with it."""
    solid = {p for p in found.islands if p in found.reserved or _is_directory(p)}
    islands = [p for p in found.islands if not _within(p, solid)]
    pins = [p for p in found.pins if p not in found.islands and not _within(p, solid)]
    folders = {path for path, directory in hidden.items() if directory}
    covered = [_cover(p, directory) for p, directory in hidden.items() if not _within(p, folders)]
    total = len(islands) + len(pins) + len(covered)
    if total > MOST:
        raise ProtectError(
            "tree_too_many",
            f"{found.tree}: {total} places to protect or hide, at most {MOST}",
            "choose a narrower work tree, or --read-only",
        )
    return Protection(
        pins=tuple(sorted(pins, key=_depth)),
        islands=tuple(sorted(islands, key=_depth)),
        hidden=tuple(sorted(covered, key=lambda h: _depth(h.path))),
        reserved=tuple(sorted(found.reserved.items(), key=lambda item: _depth(item[0]))),
        ignore=tuple(_ignored(covered, {found.tree, *repositories})),
    )


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _cover(path: str, directory: bool) -> Hidden:
    facts = os.lstat(path)
    return Hidden(path=path, directory=directory, size=facts.st_size, mtime=facts.st_mtime_ns)


def _ignored(hidden: Iterable[Hidden], roots: set[str]) -> Iterator[str]:
    """What git passes over in `git add -A`: it could not read it. Each as seen from its repository's root."""
    for each in hidden:
        parts = each.path.split("/")
        root = next((r for n in range(len(parts) - 1, 0, -1) if (r := "/".join(parts[:n])) in roots), "")
        line = re.sub(r"([*?\[\]\\ !#])", r"\\\1", each.path[len(root) :])
        if line.isprintable():  # neither a newline nor what is not UTF-8: git then says that it can't read it
            yield line


def _within(path: str, trees: "set[str]") -> bool:
    """Whether the path lies below one of these, by its own ancestors: there may be many trees."""
    parts = path.split("/")
    return any("/".join(parts[:number]) in trees for number in range(1, len(parts)))


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def named(look: TreeLook, protected: Protection) -> tuple[list[str], list[str]]:
    """For people: relative paths of what is hidden, and of what is named like a secret and stays visible."""
    hidden = [relative(look.tree, h.path) + ("/" if h.directory else "") for h in protected.hidden]
    return hidden, [relative(look.tree, path) for path in look.told]


def banner(look: TreeLook, protected: Protection) -> str:
    """What of the work tree is hidden, and what looks like a secret and is not; "" for neither."""
    hidden, told = ([cut(name, LONGEST) for name in names] for names in named(look, protected))
    said = f"hidden: {some(hidden)}, " if hidden else ""
    return said + (f"perhaps secret and not hidden: {some(told)}, " if told else "")
