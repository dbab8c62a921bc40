"""A strict reader for TOML tables that collects every fault instead of stopping at the first.

Each reading method records a Problem and returns a harmless value of the right type when something is wrong; the
values made after a fault are never seen, because the load raises at its end when the report holds anything.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rules.problems import PolicyError, Problem

NOT_YET = "not yet: this version does not build that"
MAX_ITEMS = 20_000
MAX_PROBLEMS = 200  # nobody reads more, and looking for the nearest word takes its time
_COMPARED = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def is_name(text: str) -> bool:
    """Tell whether `text` may name a secret, endpoint, rule, binding or role.

    No dot: "ENDPOINT.RULE" in the ledger must have one reading.
    """
    return _NAME.fullmatch(text) is not None


def closest(word: str, known: Iterable[str]) -> str:
    """Return a did-you-mean hint: the nearest known word, or the list of them."""
    words = sorted(known)
    if len(words) > _COMPARED:  # to compare with 20,000 takes half a second
        words = [other for other in words if other[:2] == word[:2]][:_COMPARED]
        otherwise = ""
    else:
        otherwise = f"one of: {', '.join(words)}" if words else ""
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else otherwise


def kind_of(value: object) -> str:
    """Name a TOML value's type in the words of the TOML specification."""
    match value:
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a float"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def show(value: object) -> str:
    """Quote a value for a message, capped."""
    text = ascii(value) if not isinstance(value, str) else '"' + ascii(value)[1:-1] + '"'
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(slots=True)
class Report:
    """The faults found so far, in the order of finding. `ends`: whether the last that is kept is an end of the load."""

    problems: list[Problem] = field(default_factory=list)
    ends: bool = False

    def add(self, where: str, message: str, hint: str = "") -> None:
        """Record one fault. Beyond MAX_PROBLEMS none is kept: the policy is refused already.

        Raises PolicyError with all of them where that `ends` it: what is left to find would only be looked for, and of
        20,000 wrong names each is held against as many right ones.
        """
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(where=where, message=message, hint=hint))
        if self.ends and len(self.problems) >= MAX_PROBLEMS:
            raise PolicyError(self.problems)


def join(where: str, key: str) -> str:
    """Return the dotted place of `key` inside `where`, quoted as TOML would quote it."""
    part = key if _BARE_KEY.fullmatch(key) else show(key)
    return f"{where}.{part}" if where else part


class Table:
    """One TOML table with the keys that it may hold. Unknown and not yet built keys are recorded at once."""

    __slots__ = ("_raw", "report", "where")

    def __init__(
        self, raw: Mapping[str, object], where: str, report: Report, *, known: frozenset[str], later: frozenset[str]
    ) -> None:
        self._raw = raw
        self.where = where
        self.report = report
        for key in raw:
            if len(report.problems) >= MAX_PROBLEMS:
                break
            if key in later:
                report.add(join(where, key), NOT_YET, "take the key out")
            elif key not in known:
                report.add(join(where, key), "unknown key", closest(key, known | later))

    def has(self, key: str) -> bool:
        """Tell whether the key was written."""
        return key in self._raw

    def at(self, key: str) -> str:
        """Return the dotted place of a key, for messages."""
        return join(self.where, key)

    def fault(self, key: str, message: str, hint: str = "") -> None:
        """Record a fault of one key."""
        self.report.add(self.at(key), message, hint)

    def _typed[T](self, key: str, kind: type[T], name: str, default: T, *, required: bool) -> T:
        if key not in self._raw:
            if required:
                self.fault(key, f"missing, expected {name}", f"add: {key} = ...")
            return default
        value = self._raw[key]
        # bool is a subclass of int in Python; TOML keeps them apart
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        self.fault(key, f"got {kind_of(value)} ({show(value)}), expected {name}")
        return default

    def text(self, key: str, default: str = "", *, required: bool = False) -> str:
        """Read a string without control characters; empty is a fault where the key is written."""
        value = self._typed(key, str, "a string", default, required=required)
        if key in self._raw and isinstance(self._raw[key], str):
            return value if self._clean(self.at(key), value) else default
        return value

    def multiline(self, key: str) -> str:
        """Read a string that may hold anything."""
        return self._typed(key, str, "a string", "", required=False)

    def _clean(self, where: str, value: str) -> bool:
        if not value:
            self.report.add(where, "got an empty string, expected text")
        elif not value.isprintable():
            self.report.add(where, f"got {show(value)}, expected text without control or invisible characters")
        else:
            return True
        return False

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a boolean."""
        return self._typed(key, bool, "true or false", default, required=False)

    def off(self, key: str) -> None:
        """Read a boolean whose `true` is not built yet."""
        if self.flag(key, default=False):
            self.fault(key, NOT_YET, f"write {key} = false, or take the key out")

    def number(self, key: str, default: int, *, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
        """Read an integer within bounds, both included."""
        value = self._typed(key, int, "an integer", default, required=False)
        if key in self._raw and not low <= value <= high:
            self.fault(key, f"got {value}, expected {low} to {high}")
            return default
        return value

    def texts(self, key: str, *, required: bool = False, empty: bool = True) -> tuple[str, ...]:
        """Read an array of strings, each once; `empty` tells whether it may hold nothing."""
        values = self._typed(key, list, "an array of strings", [], required=required)
        if key in self._raw and not empty and values == [] and isinstance(self._raw[key], list):
            self.fault(key, "got an empty list, expected at least one entry")
        if len(values) > MAX_ITEMS:
            self.fault(key, f"got {len(values)} entries, expected at most {MAX_ITEMS}")
            return ()
        return tuple(self._items(key, values))

    def _items(self, key: str, values: list[object]) -> list[str]:
        out: dict[str, None] = {}
        for i, value in enumerate(values):
            where = f"{self.at(key)}[{i}]"
            if not isinstance(value, str):
                self.report.add(where, f"got {kind_of(value)} ({show(value)}), expected a string")
            elif value in out:
                self.report.add(where, f"{show(value)} stands there twice", "take one out")
            elif self._clean(where, value):
                out[value] = None
        return list(out)

    def words(self, key: str) -> tuple[str, ...]:
        """Read an array of strings that may stand there twice: arguments."""
        values = self._typed(key, list, "an array of strings", [], required=False)
        found = [value for value in values if isinstance(value, str)]
        if len(found) < len(values) or len(values) > MAX_ITEMS or any("\0" in value for value in found):
            self.fault(key, f"expected at most {MAX_ITEMS} strings without NUL")
            return ()
        return tuple(found)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Read an array of integers."""
        values = self._typed(key, list, "an array of integers", [], required=False)
        if len(values) > MAX_ITEMS:
            self.fault(key, f"got {len(values)} entries, expected at most {MAX_ITEMS}")
            return ()
        found: list[int] = []
        for i, value in enumerate(values):
            if isinstance(value, int) and not isinstance(value, bool):
                found.append(value)
            else:
                where = f"{self.at(key)}[{i}]"
                self.report.add(where, f"got {kind_of(value)} ({show(value)}), expected an integer")
        return tuple(found)

    def mapping(self, key: str) -> "tuple[tuple[str, object], ...]":
        """Read a table whose keys are the user's own, at most MAX_ITEMS."""
        raw = self._typed(key, dict, "a table", {}, required=False)
        if len(raw) > MAX_ITEMS:
            self.fault(key, f"got {len(raw)} entries, expected at most {MAX_ITEMS}")
            return ()
        return tuple(raw.items())

    def choice[E: StrEnum](self, key: str, kind: type[E], default: E, *, but: Iterable[E] = ()) -> E:
        """Read a word of an enum; `but` lists members that this place doesn't take."""
        word = self.text(key, default.value)
        allowed = [m.value for m in kind if m not in set(but)]
        if word not in allowed:
            expected = " or ".join(show(a) for a in allowed)
            self.fault(key, f"got {show(word)}, expected {expected}", closest(word, allowed))
            return default
        return kind(word)

    def table(self, key: str, *, known: Iterable[str], later: Iterable[str] = ()) -> "Table":
        """Read a sub-table; an empty one where it is missing."""
        raw = self._typed(key, dict, "a table", {}, required=False)
        return Table(raw, self.at(key), self.report, known=frozenset(known), later=frozenset(later))

    def named(self, key: str, *, known: Iterable[str], later: Iterable[str] = ()) -> "dict[str, Table]":
        """Read a table of tables, `[key.NAME]`, in the file's order."""
        out: dict[str, Table] = {}
        for name, raw in self._typed(key, dict, f"tables [{key}.NAME]", {}, required=False).items():
            where = join(self.at(key), name)
            if not is_name(name):
                self.report.add(where, f"got the name {show(name)}, expected letters, digits, - and _ (at most 64)")
            elif not isinstance(raw, dict):
                self.report.add(where, f"got {kind_of(raw)}, expected a table", f"write [{where}]")
            else:
                out[name] = Table(raw, where, self.report, known=frozenset(known), later=frozenset(later))
        return out

    def tables(self, key: str, *, known: Iterable[str], later: Iterable[str] = ()) -> "list[Table]":
        """Read an array of tables, `[[key]]`."""
        out: list[Table] = []
        raws = self._typed(key, list, "an array of tables", [], required=False)
        if len(raws) > MAX_ITEMS:
            self.fault(key, f"got {len(raws)} entries, expected at most {MAX_ITEMS}")
            return out
        for i, raw in enumerate(raws):
            where = f"{self.at(key)}[{i}]"
            if isinstance(raw, dict):
                out.append(Table(raw, where, self.report, known=frozenset(known), later=frozenset(later)))
            else:
                self.report.add(where, f"got {kind_of(raw)}, expected a table", f"write [[{self.at(key)}]]")
        return out
