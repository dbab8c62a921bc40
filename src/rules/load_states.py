"""What a profile says of an agent's own files, and a role of which of them its jail has, into values."""

from rules.agentstate import PROJECT, Data, Merge
from rules.tables import Table, show
from rules.treenames import TreePattern, TreePatternError

__all__ = ["STATE_KEYS", "load_data", "load_patterns"]

STATE_KEYS = ("data", "config", "ignore")
_DATA_KEYS = ("path", "merge", "enter", "holds")


def load_data(table: Table) -> tuple[Data, ...]:
    """The entries of `data`."""
    found = []
    for entry in table.tables("data", known=_DATA_KEYS):
        path = entry.text("path", required=True)
        _check(entry, "path", path.replace(PROJECT, "project"))
        merge, enter = entry.choice("merge", Merge, Merge.EXTEND), entry.flag("enter", default=False)
        if merge is Merge.APPEND and enter:
            entry.fault("enter", "what enters is a part of the file that would be appended", 'write merge = "extend"')
        found.append(Data(path=path, merge=merge, enter=enter, holds=entry.text("holds")))
    return tuple(found)


def load_patterns(table: Table, key: str) -> tuple[str, ...]:
    """Patterns below the home."""
    texts = table.texts(key)
    for text in texts:
        _check(table, key, text)
    return texts


def _check(table: Table, key: str, text: str) -> None:
    """A name anywhere in the home would be more than an agent's own."""
    if not text:
        return
    try:
        pattern = TreePattern.parse(text)
    except TreePatternError as fault:
        table.fault(key, fault.detail, 'as in ".tool/sessions/**", below the home')
        return
    if not pattern.anchored or pattern.parts[0].strip("*?") != pattern.parts[0]:
        table.fault(key, f"got {show(text)}, expected a path below the home", 'as in ".tool/sessions/**"')
