"""What of a copy is taken over only where it is named itself: what the host would execute unasked, what is held or
hidden in a work tree, and links that lead out of it. Pure, by paths alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import dirname, join, normpath

from rules.executed import When, by_name
from rules.hiding import Hiding, Kind
from rules.treenames import TreePattern

__all__ = ["Naming"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """One role's rule, from the texts of its `readonly`, `hide` and `show`."""

    hiding: Hiding
    readonly: tuple[TreePattern, ...]

    @classmethod
    def of(cls, readonly: Sequence[str], hide: Sequence[str], show: Sequence[str]) -> "Naming":
        """From texts that were checked when the policy was loaded."""
        return cls(hiding=Hiding.of(hide, show), readonly=tuple(map(TreePattern.parse, readonly)))

    def why(self, path: str, target: str = "", *, directory: bool = False) -> str:
        """Why this relative path must be named; "" where it need not be. target: of a link."""
        executed = by_name(path, directory=directory)
        if executed is not None and executed.when is When.UNASKED:
            return f"executed by the host unasked: {executed.who}"
        folder, _, name = path.rpartition("/")
        ways = [path[:end] for end, char in enumerate(path) if char == "/"]
        if any(map(self.hiding.directory, [*ways, path])) or self.hiding.file(folder, name) in (
            Kind.HIDDEN,
            Kind.UNLESS_PUBLIC,
        ):
            return "named like a secret"
        if any(_means(pattern, path) for pattern in self.readonly):
            return "held by the role's readonly"
        return "a link that leads out of the work tree" if target and _leads_out(path, target) else ""


def _means(pattern: TreePattern, path: str) -> bool:
    """Whether the pattern means the path or a directory on its way. In any case of letters: see `samenames`."""
    return re.fullmatch(f"(?:{pattern.regex()})(?:/.*)?", path, re.DOTALL | re.IGNORECASE) is not None


def _leads_out(path: str, target: str) -> bool:
    """By the text of the link. Another link on its way may lead elsewhere in the tree, and is judged too: up from there
    it could be out, so ".." behind a name is taken for that.
    """
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = next((n for n, name in enumerate(names) if name != ".."), len(names))
    outside = normpath(join(dirname(path), target)).split("/")[0] == ".."
    return target.startswith("/") or outside or ".." in names[up:]
