"""Find the command on the host, and the trees that it needs to run in the jail (read-only).

Agents live under ~/.local, nvm, pipx and the like: what lies outside the system paths is bound by its install tree.
Nothing found here is executed on the host.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from credgate.errors import CredgateError

NOT_EXECUTABLE, NOT_FOUND = 126, 127
MAX_DEPTH = 6  # of interpreters behind interpreters


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


def find_command(name: str, env: Mapping[str, str], cwd: str, system: Sequence[str], home: str) -> Command:
    """Look `name` up as execvp(3) would with the caller's PATH and cwd. Raises CommandError (127, 126)."""
    exe = _search(name, env.get("PATH", os.defpath), cwd)
    trees: list[str] = []
    links: list[tuple[str, str]] = []
    _collect(exe, env.get("PATH", os.defpath), cwd, system, home, trees, links, MAX_DEPTH)
    outside = not _covered(exe, system)
    return Command(
        exe=exe,
        trees=tuple(dict.fromkeys(trees)),
        links=tuple(link for link in dict.fromkeys(links) if not _covered(link[0], trees)),
        path=tuple(dict.fromkeys([str(Path(exe).parent)] if outside else [])),
    )


def _search(name: str, path: str, cwd: str) -> str:
    candidates = [Path(cwd, name)] if "/" in name else [Path(cwd, d or ".", name) for d in path.split(os.pathsep)]
    present = [c for c in candidates if c.is_file()]
    for candidate in present:
        if os.access(candidate, os.X_OK):
            return os.path.normpath(candidate)
    if present:
        raise CommandError("not_executable", f"{present[0]}: not executable", "check its mode", NOT_EXECUTABLE)
    raise CommandError("not_found", f"{name}: command not found", "is it installed, and on PATH?", NOT_FOUND)


def _covered(path: str, trees: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(tree) for tree in trees)


def _collect(
    exe: str,
    path: str,
    cwd: str,
    system: Sequence[str],
    home: str,
    trees: list[str],
    links: list[tuple[str, str]],
    depth: int,
) -> None:
    """Add what `exe` needs: the chain of its symlinks, its install tree, its interpreter's."""
    real = _follow(exe, system, links)
    for place in (exe, real):  # a virtualenv's python is a link out of it: the tree of the link is needed as well
        environment = _virtualenv(place)
        if environment:
            trees.append(os.path.realpath(environment))
            trees.extend(_virtualenv_base(environment, system))
    if not _covered(real, system):
        trees.append(install_tree(real, home))
    interpreter = _interpreter(real)
    if interpreter and depth > 0:
        found = _search(interpreter, path, cwd)
        _collect(found, path, cwd, system, home, trees, links, depth - 1)


def _follow(exe: str, system: Sequence[str], links: list[tuple[str, str]]) -> str:
    """The real path. Each symlink on the way outside the system paths is recreated inside: argv[0] keeps its meaning
    there (a virtualenv is found by the unresolved path, a program of many names by its last part).
    """
    path = exe
    for _ in range(40):  # the kernel's own limit, MAXSYMLINKS
        link = next((p for p in reversed([path, *map(str, Path(path).parents)]) if Path(p).is_symlink()), None)
        if link is None:
            return path
        target = os.path.normpath(Path(link).parent / Path(link).readlink())
        if not _covered(link, system):
            links.append((link, target))
        path = target + path[len(link) :]
    raise CommandError("not_found", f"{exe}: too many symbolic links", "", NOT_FOUND)


def install_tree(real: str, home: str) -> str:
    """The tree that a program was installed as, from its real path.

    A virtualenv, a node prefix (PREFIX/lib/node_modules/...), PREFIX/bin beside PREFIX/lib; else the
    program's own directory, unless that is a directory of many programs (a bin), then the file alone. Of a prefix that
    much else lies in (the home, ~/.local), never the whole: of node's, its node_modules.
    """
    parts = Path(real)
    environment = _virtualenv(real)
    if environment:
        return environment
    for parent in parts.parents:
        if parent.name == "node_modules" and parent.parent.name == "lib":
            prefix = parent.parent.parent
            return str(parent if _shared(prefix, home) else prefix)
    folder = parts.parent
    prefix = folder.parent
    if folder.name == "bin" and not _shared(prefix, home) and (prefix / "lib").is_dir():
        return str(prefix)
    many = folder.name in ("bin", "sbin") or str(folder) == home
    return real if many else str(folder)


def _shared(prefix: Path, home: str) -> bool:
    """A prefix that many programs and other files share, or that the home lies in."""
    return prefix in (Path(home, ".local"), Path("/usr/local")) or Path(home).is_relative_to(prefix)


def _virtualenv(path: str) -> str:
    """The virtualenv that `path` lies in, "" for none."""
    return next((str(parent) for parent in Path(path).parents if (parent / "pyvenv.cfg").is_file()), "")


def _virtualenv_base(environment: str, system: Sequence[str]) -> list[str]:
    """The installation that a virtualenv's interpreter belongs to (`home =` in pyvenv.cfg)."""
    text = Path(environment, "pyvenv.cfg").read_text(errors="replace")
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            base = os.path.realpath(Path(value.strip()).parent)
            return [] if _covered(base, system) or base == "/" else [base]
    return []


def _interpreter(real: str) -> str:
    """The program of a `#!` line, `env NAME` looked through; "" for a binary. Raises CommandError when unreadable."""
    try:
        with open(real, "rb") as file:  # noqa: PTH123 - same for str and surrogates
            head = file.read(256)
    except PermissionError:
        return ""  # executable, not readable: no script then
    if not head.startswith(b"#!"):
        return ""
    words = os.fsdecode(head[2:].split(b"\n", 1)[0]).split()
    if not words:
        raise CommandError("not_executable", f"{real}: empty interpreter line", "", NOT_EXECUTABLE)
    if Path(words[0]).name != "env":
        return words[0]
    rest = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
    return rest[0] if rest else words[0]
