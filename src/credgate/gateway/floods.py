"""Refusals without end: of those that are alike the first few are lines of their own, the others one line with a count.

Exact: the counts of all lines of a (host, method, path) add up to the refusals of it, a line without `count` being
one. Bounded: what doesn't fit into the table is written as a line of its own. The caller says what time it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from credgate.gateway.refusal import new_id

WINDOW = 10.0  # seconds
LINES = 16  # of one kind that are written in a window
KINDS = 4096  # of one run that are known at a time
MAX_TEXT = 1024  # characters of host, path and method together; a longer one is not kept

type Fields = Mapping[str, object]
type Kind = tuple[object, ...]

# What tells two lines apart beside their time and ids. Not the names of a query: a client can make them up without end.
_ALIKE = ("ev", "policy_sha256", "reason", "rule", "via", "http_version", "scheme", "host", "port", "method", "path")
_OF_ONE = ("request_id", "query_names", "sni")


@dataclass(slots=True, kw_only=True)
class _Counted:
    fields: Fields  # of the line that was counted first
    since: float
    written: int = 0
    held: int = 0
    id: str = ""  # under which the held ones of this window are


@dataclass(slots=True, kw_only=True)
class Floods:
    """What is being counted, by run."""

    _runs: dict[str, dict[Kind, _Counted]] = field(default_factory=dict)

    def hold(self, run: str, fields: Fields, now: float) -> str:
        """Count a line, and return the request id that stands for it; "": write it."""
        if sum(len(str(fields.get(name, ""))) for name in ("host", "path", "method")) > MAX_TEXT:
            return ""
        kinds = self._runs.setdefault(run, {})
        kind: Kind = tuple(fields.get(name) for name in _ALIKE)
        counted = kinds.get(kind)
        if counted is None:
            if len(kinds) < KINDS:
                kept = {name: value for name, value in fields.items() if name not in _OF_ONE}
                kinds[kind] = _Counted(fields=kept, since=now, written=1)
            return ""
        if not counted.held and now - counted.since >= WINDOW:
            counted.since, counted.written = now, 0
        if counted.written < LINES:
            counted.written += 1
            return ""
        counted.id = counted.id or new_id()
        counted.held += 1
        return counted.id

    def due(self, now: float) -> list[Fields]:
        """The lines with a count that are to be written now. A kind that rests is forgotten."""
        lines: list[Fields] = []
        for run, kinds in tuple(self._runs.items()):
            for kind, counted in tuple(kinds.items()):
                if now - counted.since < WINDOW:
                    continue
                if not counted.held:
                    del kinds[kind]
                    continue
                lines.append(_line(counted))
                counted.since, counted.held, counted.id = now, 0, ""  # `written` stays: a flood that goes on is counted
            if not kinds:
                del self._runs[run]
        return lines

    def end(self, run: str) -> list[Fields]:
        """All of one run that is not written yet; the run is forgotten."""
        return [_line(counted) for counted in self._runs.pop(run, {}).values() if counted.held]

    @property
    def empty(self) -> bool:
        """Whether nothing is known of any run."""
        return not self._runs


def _line(counted: _Counted) -> Fields:
    return {**counted.fields, "count": counted.held, "request_id": counted.id}
