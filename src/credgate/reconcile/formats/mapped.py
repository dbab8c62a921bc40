"""Any JSON or CSV, by a mapping file that says where each thing is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from credgate.reconcile.formats.tokens import whole
from credgate.reconcile.model import (
    UNKNOWN,
    Event,
    Unreadable,
    clean,
    path_of,
    raw,
    same_id,
    status_of,
    success,
    tag_of,
)
from credgate.reconcile.times import moment

FIELDS = (
    "time", "id", "request_id", "client_id", "method", "path", "host", "status", "bytes", "action", "service",
    "credential", "ip", "agent", "duration_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Where each field is: for JSON dotted keys, for CSV column names. Of several the first that is there counts;
    for ids all do. `zone` is that of times that name none.
    """

    paths: Mapping[str, tuple[str, ...]]
    zone: tzinfo | None
    kind: str

    def parse(self, record: object) -> tuple[Event, ...]:
        """One record. The time is needed, and a record that is a table."""
        if not isinstance(record, Mapping):
            raise Unreadable("not a table")
        start = moment(self._raw(record, "time"), zone=self.zone)
        status = status_of(whole(self._text(record, "status"), 0))
        path, host = self._text(record, "path", 4096), self._text(record, "host")
        if not host and "://" in path:
            host = path.partition("://")[2].partition("/")[0]
        return (
            Event(
                t=start,
                t_end=start + whole(self._text(record, "duration_ms").partition(".")[0], 0) * 1000,
                primary=clean(self._text(record, "id")),
                service=clean(self._text(record, "service")) or "http",
                host=clean(host).casefold().partition(":")[0],
                method=clean(self._text(record, "method")).upper(),
                path=path_of(path) if path else "",
                action=clean(self._text(record, "action")),
                status=status,
                ok=success(status),
                size=whole(self._text(record, "bytes"), UNKNOWN),
                ip=clean(self._text(record, "ip")),
                tag=tag_of(self._text(record, "agent", 4096)),
                cred=clean(self._text(record, "credential")),
                ids=self._all(record, "request_id"),
                given=self._all(record, "client_id"),
            ),
        )

    def _raw(self, record: Mapping[str, object], name: str) -> object:
        for path in self.paths.get(name, ()):
            # a column's name may hold a dot, and so may a key
            value = record[path] if path in record else raw(record, *path.split("."))
            if value not in (None, "", "-"):
                return value
        return None

    def _text(self, record: Mapping[str, object], name: str, cap: int = 512) -> str:
        value = self._raw(record, name)
        return str(value)[:cap] if isinstance(value, (str, int)) and not isinstance(value, bool) else ""

    def _all(self, record: Mapping[str, object], name: str) -> tuple[str, ...]:
        found = []
        for path in self.paths.get(name, ()):
            value = record[path] if path in record else raw(record, *path.split("."))
            if isinstance(value, (str, int)) and value not in ("", "-"):
                found.append(same_id(str(value)))
        return tuple(found)
