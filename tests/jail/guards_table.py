"""The tables of docs/guards.md from the list of guards. `python -m tests.jail.guards_table` writes the file anew."""

import re
from pathlib import Path

from jail.guards import GUARDS, Guard, Where
from jail.probes import files, kernel, limits, neighbour, network, processes, sockets, terminal

PAGE = Path(__file__).parents[2] / "docs/guards.md"
PARTS = {
    "Files": files,
    "Processes and what is inherited": processes,
    "The kernel's own interfaces": kernel,
    "Sockets": sockets,
    "The network": network,
    "The terminal": terminal,
    "Limits": limits,
    "Another jail": neighbour,
}
HEAD = (
    "| guard | mechanism | attempt | refused by | control | closed by host | read-back |\n|---|---|---|---|---|---|---|"
)


def sentence(text: str) -> str:
    """The first sentence of a docstring, its lines joined."""
    joined = re.sub(r"\s+", " ", text).strip()
    return re.split(r"(?<=[.:;]) ", joined)[0].rstrip(".:;").replace("|", "\\|")


def row(guard: Guard, attempt: object) -> str:
    name = f"`{guard.id}`{'' if guard.per_run else ' ¹'}{' ²' if guard.unless else ''}{' ³' if guard.copy else ''}"
    cells = (
        name,
        guard.mechanism,
        sentence(attempt.__doc__ or ""),
        ", ".join(sorted(guard.refused)),
        "in the lab" if guard.where is Where.LAB else "as the user",
        ", ".join(sorted(guard.closed)) or "-",
        ", ".join(guard.readback) or "-",
    )
    return "| " + " | ".join(cells) + " |"


def tables() -> str:
    """A section for each theme, in the order of the list."""
    sections = []
    for title, module in PARTS.items():
        rows = [row(guard, module.ATTEMPTS[guard.id]) for guard in GUARDS if guard.id in module.ATTEMPTS]
        sections.append("\n".join([f"### {title}", HEAD, *rows]))
    return "\n\n".join(sections) + "\n"


def split(page: str) -> tuple[str, str, str]:
    """What stands before the tables, the tables, what stands after them."""
    begin, end = page.index("### Files"), page.index("## What is not in the list")
    return page[:begin], page[begin:end].rstrip() + "\n", page[end:]


if __name__ == "__main__":
    before, _, after = split(PAGE.read_text())
    PAGE.write_text(before + tables() + "\n" + after)
