"""Find the command on the host, and the trees that it needs to run in the jail (read-only).

Agents live under ~/.local, nvm, pipx and the like: what lies outside the system paths is bound by its install tree.
Nothing found here is executed on the host.

What a tree says that an agent may have written (a link, a `#!` line, a pyvenv.cfg) is a wish of the agent's. Followed
without a check it binds any directory of the user's: a planted `home = ~/.ssh/x` did (found by attack). So what such a
tree names outside itself counts only as a Python installation that is one, or as a program on the caller's own PATH.
"""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from credgate.errors import CredgateError
from jail.plan import under

NOT_EXECUTABLE, NOT_FOUND = 126, 127
MAX_DEPTH = 6  # of interpreters behind interpreters
MAX_LINKS = 40  # the kernel's own limit, MAXSYMLINKS
MAX_CONFIG = 64 << 10  # bytes of a pyvenv.cfg; it has five lines
# Never an install tree: kernel and service interfaces, configuration that holds passwords.
NO_PROGRAMS = ("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var")
# Directories of the home that hold credentials, at any depth below them.
CREDENTIALS = (
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".docker",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".mozilla",
    ".password-store",
    ".ssh",
)
HINT = "name its tree in the role's `tools`"


class CommandError(CredgateError):
    """The command can't be started: exit_status is 126 or 127."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """`exe`: absolute path that is exec'd. `trees`: real paths to bind. `links`: (path, target) to recreate.

    `path`: directories for the jail's PATH, in order, before the system's.
    """

    exe: str
    trees: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the search rests on. `system`: trees that are bound anyway. `tools`: real paths that the role names.

    `written`: trees that an agent writes or wrote, the work tree among them.
    """

    path: str  # the caller's PATH
    cwd: str
    home: str
    system: Sequence[str]
    written: Sequence[str] = ()
    tools: Sequence[str] = ()


def find_command(name: str, host: Host) -> Command:
    """Look `name` up as execvp(3) would with the caller's PATH and cwd. Raises CommandError (127, 126)."""
    exe = _search(name, host.path, host.cwd)
    walk = _Walk(host)
    walk.collect(exe, MAX_DEPTH)
    trees = tuple(dict.fromkeys(walk.trees))
    shown = [*host.system, *trees, *host.tools]
    outside = not _covered(exe, host.system)
    return Command(
        exe=exe,
        trees=tuple(tree for tree in trees if not _covered(tree, host.tools)),
        links=tuple(link for link in dict.fromkeys(walk.links) if not _covered(link[0], shown)),
        path=(str(Path(exe).parent),) if outside else (),
    )


def _search(name: str, path: str, cwd: str) -> str:
    folders = [""] if "/" in name else path.split(os.pathsep)
    present = ""
    for folder in folders:
        candidate = os.path.join(cwd, folder, name)  # noqa: PTH118 - pathlib: half a millisecond of each launch
        if _is_there(candidate):
            if os.access(candidate, os.X_OK):
                return os.path.normpath(candidate)
            present = present or candidate
    if present:
        raise CommandError("not_executable", f"{Path(present)}: not executable", "check its mode", NOT_EXECUTABLE)
    raise CommandError("not_found", f"{name}: command not found", "is it installed, and on PATH?", NOT_FOUND)


def _is_there(candidate: str) -> bool:
    """Whether a file is there, or may be: a directory that its user can't enter holds up no search (execvp(3))."""
    try:
        return stat.S_ISREG(os.stat(candidate).st_mode)  # noqa: PTH116
    except PermissionError:
        return True
    except (OSError, ValueError):  # no file, no directory, a loop of links
        return False


def _is_link(path: str) -> bool:
    """As pathlib has it: what can't be looked at is an error, and no answer. Raises OSError."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False


def _covered(path: str, trees: Sequence[str]) -> bool:
    return any(under(path, tree) for tree in trees)


@dataclass(slots=True)
class _Walk:
    """From the command to its interpreter and on, gathering trees and links."""

    host: Host
    trees: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)

    def collect(self, exe: str, depth: int) -> None:
        """Add what `exe` needs: the chain of its symlinks, its install tree, its interpreter's."""
        real = self._follow(exe)
        for place in (exe, real):  # a virtualenv's python is a link out of it: the tree of the link is needed too
            self._add_virtualenv(place)
        if not _covered(real, self.host.system) and not _covered(real, self.trees):
            self._add(install_tree(real, self.host.home))
        interpreter = read_interpreter(real)
        if interpreter and depth > 0:
            self.collect(self._interpreter(real, interpreter), depth - 1)

    def _add(self, tree: str) -> None:
        real = os.path.realpath(tree)
        home = Path(self.host.home)
        forbidden = [*NO_PROGRAMS, *(str(home / name) for name in CREDENTIALS)]
        hidden = Path(real).parent == home and Path(real).name.startswith(".")
        holds = any(Path(name).is_relative_to(real) for name in forbidden)
        if hidden or holds or _covered(real, forbidden) or home.is_relative_to(real):
            raise CommandError("tree_refused", f"{real}: no program's own tree", HINT, NOT_EXECUTABLE)
        self.trees.append(real)

    def _follow(self, exe: str) -> str:
        """The real path. Each symlink on the way outside the system paths is recreated inside: argv[0] keeps its
        meaning there (a virtualenv is found by the unresolved path, a program of many names by its last part).
        """
        path, host = exe, self.host
        for _ in range(MAX_LINKS):
            link = next(filter(_is_link, reversed([path, *map(str, Path(path).parents)])), None)
            if link is None:
                return path
            target = os.path.normpath(Path(link).parent / Path(link).readlink())
            following = target + path[len(link) :]
            self._judge(link, os.path.realpath(following))
            if not _covered(link, host.system):
                self.links.append((link, target))
            path = following
        raise CommandError("not_found", f"{exe}: too many symbolic links", "", NOT_FOUND)

    def _judge(self, place: str, real: str) -> None:
        """Refuse what a written tree names outside itself, but for a Python that is part of an installation."""
        host = self.host
        by = next((tree for tree in host.written if _covered(place, [tree])), None)
        if by is None or _covered(real, [by, *host.system, *host.tools]) or python_prefix(real):
            return
        raise CommandError("tree_refused", f"{place}: leads out of {by}, to {real}", HINT, NOT_EXECUTABLE)

    def _add_virtualenv(self, place: str) -> None:
        environment = _virtualenv(place)
        if not environment or _covered(environment, self.host.system):
            return
        self._add(environment)
        programs = sorted(Path(_virtualenv_home(environment) or "/nonexistent").glob("python3*"))
        base = next(filter(None, (python_prefix(str(program)) for program in programs)), "")
        if base and not _covered(base, self.host.system):
            self._add(base)

    def _interpreter(self, script: str, named: tuple[str, bool]) -> str:
        name, by_path = named
        host = self.host
        if by_path:
            # Directories that an agent writes count only for what the agent's own tree asks for by its full name.
            kept = [d for d in host.path.split(os.pathsep) if d.startswith("/") and not _covered(d, host.written)]
            return _search(name, os.pathsep.join(kept), host.cwd)
        found = _search(name, host.path, host.cwd)
        self._judge(script, os.path.realpath(found))
        return found


def install_tree(real: str, home: str) -> str:
    """The tree that a program was installed as, from its real path.

    A virtualenv, a node prefix (PREFIX/lib/node_modules/...), PREFIX/bin beside PREFIX/lib; else the
    program's own directory, unless that is a directory of many programs (a bin), then the file alone. Of a prefix that
    much else lies in (the home, ~/.local), never the whole: of node's, its node_modules.
    """
    environment = _virtualenv(real)
    if environment:
        return environment
    for parent in Path(real).parents:
        if parent.name == "node_modules" and parent.parent.name == "lib":
            prefix = parent.parent.parent
            return str(parent if _shared(prefix, home) else prefix)
    folder = Path(real).parent
    prefix = folder.parent
    if folder.name == "bin" and not _shared(prefix, home) and (prefix / "lib").is_dir():
        return str(prefix)
    many = folder.name in ("bin", "sbin") or str(folder) == home
    return real if many else str(folder)


def _shared(prefix: Path, home: str) -> bool:
    """A prefix that many programs and other files share, or that the home lies in."""
    return prefix in (Path(home, ".local"), Path("/usr/local")) or Path(home).is_relative_to(prefix)


def python_prefix(program: str) -> str:
    """PREFIX of PREFIX/bin/pythonX where that is an installation: an interpreter beside its standard library; else "".

    A directory that only looks like one to a planted configuration has no lib/python3.X/os.py.
    """
    real = Path(os.path.realpath(program))
    prefix = real.parent.parent
    named = real.name.startswith("python") and real.parent.name == "bin"
    library = any((found / "os.py").is_file() for found in prefix.glob("lib/python3.*"))
    return str(prefix) if named and library and os.access(real, os.X_OK) and str(prefix) != "/" else ""


def _virtualenv(path: str) -> str:
    """The virtualenv that `path` lies in, by the rule of the interpreter itself (PEP 405): its cfg is one level up."""
    folder = Path(path).parent
    return next((str(p) for p in (folder, folder.parent) if (p / "pyvenv.cfg").is_file()), "")


def _virtualenv_home(environment: str) -> str:
    """`home =` of pyvenv.cfg: the directory of the interpreter that the virtualenv was made by; "" for none."""
    for line in _read(Path(environment, "pyvenv.cfg"), MAX_CONFIG).decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip().lower() == "home":
            return value.strip()
    return ""


def _read(path: str | Path, most: int) -> bytes:
    """The head of a regular file; b"" for anything else. A FIFO or a device must not hold the daemon up."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        return os.read(descriptor, most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def read_interpreter(real: str) -> tuple[str, bool] | None:
    """The program of a `#!` line, and whether it is looked up by PATH (`env NAME`); None for a binary.

    Raises CommandError for a line that can't be followed exactly: what `env` would do with other options is not ours.
    """
    try:
        head = _read(real, 256)
    except PermissionError:
        return None  # executable, not readable: no script then
    if not head.startswith(b"#!"):
        return None
    words = os.fsdecode(head[2:].split(b"\n", 1)[0]).split()
    if words and Path(words[0]).name != "env":
        return words[0], False
    rest = words[1:]
    if rest[:1] == ["-S"]:
        rest = rest[1:]
    rest = [word for number, word in enumerate(rest) if "=" not in word or any("=" not in w for w in rest[:number])]
    if not rest or rest[0].startswith("-") or any(mark in rest[0] for mark in "\\\"'$"):
        raise CommandError("not_executable", f"{real}: interpreter line {words}", "expected #! PROGRAM", NOT_EXECUTABLE)
    return rest[0], "/" not in rest[0]
