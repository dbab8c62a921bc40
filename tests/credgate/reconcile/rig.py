"""Small ledgers and exports, written out; and a reconciliation of them, with what it found as plain values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from credgate.reconcile.engine import Given, Options, reconcile
from credgate.reconcile.fabricate import BEGIN, Entry, write_ledger
from credgate.reconcile.output import as_json, schema, summarize
from credgate.reconcile.result import Result
from credgate.reconcile.rows import Row, findings, prepare
from credgate.reconcile.store import Store
from credgate.reconcile.times import show

SECOND = 1_000_000
_OF_OUTCOME = ("ids", "req_bytes", "req_sha256", "resp_bytes", "resp_sha256", "reason", "tunnels")


@dataclass(slots=True, kw_only=True)
class Case:
    """A ledger in the making. Times are seconds after its begin."""

    directory: Path
    entries: list[Entry] = field(default_factory=list)
    number: int = 0

    def call(
        self, at: float, *, host: str = "a.example", ms: int = 50, status: int | None = 200, **more: object
    ) -> None:
        """An allowed request and its outcome; status None: no outcome."""
        self.number += 1
        begin = BEGIN + int(at * SECOND)
        outcome = {name: more.pop(name) for name in _OF_OUTCOME if name in more}
        common = {"run": more.pop("run", "r-1"), "host": host, "port": 443, "scheme": "https", "verdict": "allow"}
        intent = {**common, "method": "GET", "path": "/", **more}
        self.entries.append((begin, "intent", self.number, intent))
        if status is not None:
            self.entries.append(
                (begin + ms * 1000, "outcome", self.number, {"status": status or None, "ms": ms, **outcome})
            )

    def deny(self, at: float, *, host: str = "a.example", method: str = "GET", path: str = "/", **more: object) -> None:
        """A refusal."""
        fields = {"run": "r-1", "host": host, "method": method, "path": path, "verdict": "deny", "reason": "no_rule"}
        self.entries.append((BEGIN + int(at * SECOND), "deny", 0, {**fields, **more}))

    def export(self, name: str, *records: str) -> None:
        """Write an export, one record a line."""
        (self.directory / name).write_text("".join(f"{record}\n" for record in records))

    def mapping(self, text: str) -> None:
        """Write the mapping file."""
        (self.directory / "mapping.toml").write_text(text)

    def run(self, *sources: str, until: float | None = 3600, **more: Any) -> "Said":
        """Write the ledger and reconcile `FORMAT=NAME` or `FORMAT@HOST=NAME` sources."""
        self.entries.sort(key=lambda entry: entry[0])
        ledger = self.directory / "ledger"
        write_ledger(ledger, [*self.entries, (self.entries[-1][0] + SECOND if self.entries else BEGIN, "final", 0, {})])
        mapping = self.directory / "mapping.toml"
        options = Options(
            ledger=ledger,
            sources=tuple(self._given(source) for source in sources),
            mapping=mapping if mapping.exists() else None,
            until=None if until is None else BEGIN + int(until * SECOND),
            **more,
        )
        return reconcile(options, said)

    def _given(self, source: str) -> Given:
        name, _, path = source.partition("=")
        name, _, hosts = name.partition("@")
        return Given(name=name, hosts=tuple(hosts.split(",")) if hosts else (), patterns=(str(self.directory / path),))


@dataclass(slots=True, kw_only=True)
class Said:
    """What was found: classes of requests by their order in the ledger, of records by theirs."""

    result: Result
    requests: list[str]
    records: list[str]
    notes: list[str]
    findings: Sequence[Row]


_SCHEMA = jsonschema.Draft202012Validator(json.loads(schema()))


def said(store: Store, result: Result) -> Said:
    """Read the tables. Whatever the case, its report follows the schema."""
    prepare(store, result)
    _SCHEMA.validate({**summarize(result), "findings": [as_json(row) for row in findings(store, result)]})
    requests = store.rows("SELECT class FROM gres ORDER BY g, src")
    records = store.rows("SELECT class, note FROM tres ORDER BY r")
    both = [(str(name), str(note)) for name, note in records]
    return Said(
        result=result,
        requests=[str(name) for (name,) in requests],
        records=[name for name, _ in both],
        notes=[note for _, note in both],
        findings=list(findings(store, result)),
    )


def web(at: float, path: str = "/", status: int = 200, size: int = 0, *, method: str = "GET", more: str = "") -> str:
    """A combined line; a log's second is cut."""
    from credgate.reconcile.fabricate import web_line

    line = web_line(BEGIN + int(at * SECOND), path, status, size)
    return line.replace('"GET ', f'"{method} ') + more


def tunnel(begin: float, end: float, *, host: str = "a.example", size: int = 9000) -> str:
    """A CONNECT in Squid's native log; times are seconds after the ledger's begin."""
    stamp = BEGIN // SECOND + end
    elapsed = round((end - begin) * 1000)
    return f"{stamp:.3f} {elapsed:6d} 192.0.2.1 TCP_TUNNEL/200 {size} CONNECT {host}:443 - HIER_DIRECT/x -"


def asked(*at: float) -> list[str]:
    """`tunnels` of an outcome: seconds after the ledger's begin."""
    return [f"{show(BEGIN + int(one * SECOND))[:-1]}000Z" for one in at]
