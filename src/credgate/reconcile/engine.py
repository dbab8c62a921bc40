"""One reconciliation from its inputs to its result."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from credgate.ledger.bundle import opened
from credgate.reconcile import scope
from credgate.reconcile.checking import accepted, checking
from credgate.reconcile.classify import classify
from credgate.reconcile.gateway import Seen
from credgate.reconcile.join import Skew, join
from credgate.reconcile.model import ReconcileError
from credgate.reconcile.reading import Source, expand
from credgate.reconcile.remote import at_engine
from credgate.reconcile.result import Part, Result, gather
from credgate.reconcile.store import Store, Taken, take_ledger
from credgate.reconcile.tables import Tables
from credgate.reconcile.targets import Target, load_mapping, target_of
from credgate.reconcile.times import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A --source: a format or a name of the mapping file, the hosts it is of, paths and globs."""

    name: str
    hosts: tuple[str, ...]
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. Times in microseconds, None: the ledger's begin, no end."""

    ledger: Path  # a directory, or a bundle
    sources: tuple[Given, ...]
    pubkey: bytes | None = None  # the key that must have signed
    noted: tuple[Path, ...] = ()  # files of checkpoints that the ledger must go on from
    mapping: Path | None = None
    since: int | None = None
    until: int | None = None
    allow_unverified: bool = False
    engine: str = ""  # URI of another one than the embedded DuckDB
    scratch: Path | None = None  # where the database lies while it is worked on


def reconcile[T](options: Options, report: Callable[[Store, Result], T]) -> T:
    """Read, join, classify; `report` is called while the tables are there. Raises ReconcileError, LedgerError."""
    targets = _targets(options)
    with (
        opened(options.ledger) as ledger,
        checking(ledger, options.pubkey, options.noted) as checked,
        tempfile.TemporaryDirectory(prefix="credgate-reconcile-", dir=options.scratch) as directory,
        Store(Path(directory)) as store,
    ):
        files = _read(store, options, targets)
        seen = Seen(report=accepted(checked(), ledger, allow_unverified=options.allow_unverified))
        take_ledger(store, ledger, seen)
        _outside(store, options)
        since = seen.first if options.since is None else options.since

        def stages(tables: Tables) -> tuple[list[Target], list[tuple[Skew, list[str]]]]:
            return _stages(tables, targets, seen, since, options.until)

        targets, found = at_engine(options.engine, store, stages) if options.engine else stages(store)
        parts = [
            Part(target=target, files=files[at], skew=skew, held=held)
            for at, (target, (skew, held)) in enumerate(zip(targets, found, strict=True))
        ]
        result = Result(
            seen=seen, parts=parts, since=since, until=options.until, parameters=_parameters(options, targets)
        )
        gather(store, result)
        return report(store, result)


def _stages(
    tables: Tables, targets: Sequence[Target], seen: Seen, since: int, until: int | None
) -> tuple[list[Target], list[tuple[Skew, list[str]]]]:
    """All that is relational, on whichever engine; gives targets with their hosts, clocks and credentials."""
    known = scope.hosts_of(tables, targets)
    scope.assign(tables, known)
    scope.first_look(tables, known, since, until)
    found = join(tables, known)
    classify(tables, known, [skew for skew, _ in found], seen, until)
    return known, found


def _targets(options: Options) -> list[Target]:
    mapping = load_mapping(options.mapping)
    merged: dict[str, Target] = {}
    for given in options.sources:
        target = target_of(given.name, given.hosts, mapping)
        before = merged.get(given.name)
        if before is not None and given.hosts:
            target = replace(target, hosts=tuple(dict.fromkeys((*before.hosts, *given.hosts))))
        merged[given.name] = target
    return list(merged.values())


def _read(store: Store, options: Options, targets: list[Target]) -> list[list[Source]]:
    """Read all exports; of two that are equal byte for byte the second one counts as doubled."""
    read: list[list[Source]] = []
    twice: list[int] = []
    number = 0
    with Taken(store) as taken:
        for src, target in enumerate(targets):
            patterns = [p for given in options.sources if given.name == target.name for p in given.patterns]
            files: list[Source] = []
            for path in expand(patterns):
                number += 1
                source = taken.file(src, target, path)
                if source.size and any(source.sha256 == other.sha256 for other in files):
                    twice.append(number)
                files.append(source)
            _readable(target, files)
            read.append(files)
    store.run("CREATE TABLE twice AS SELECT unnest(?::INTEGER[]) AS file", twice)
    return read


def _readable(target: Target, files: list[Source]) -> None:
    """Raise ReconcileError for a source of which nothing could be read: most likely it is of another format."""
    records = sum(file.records for file in files)
    reasons = sum((file.unreadable for file in files), start=type(files[0].unreadable)())
    if records and sum(reasons.values()) >= records:
        why = ", ".join(f"{count} times {why!r}" for why, count in sorted(reasons.items()))
        detail = f"{files[0].name}: none of {records} records could be read as {target.format}: {why}"
        raise ReconcileError("source_format", detail, "--source FORMAT=PATH with the log's own format", 2)


def _outside(store: Store, options: Options) -> None:
    """Leave out the requests before --from; those after --to are sorted out with the rest."""
    if options.since is not None:
        store.run("DELETE FROM gw WHERE t1 < ?", options.since)


def _parameters(options: Options, targets: list[Target]) -> dict[str, object]:
    return {
        "from": show(options.since) if options.since is not None else None,
        "to": show(options.until) if options.until is not None else None,
        "engine": options.engine.partition("://")[0] or "embedded",
        "allow_unverified": options.allow_unverified,
        "sources": [
            {
                "name": target.name,
                "format": target.format,
                "hosts": list(target.hosts),
                "stamp": target.stamp,
                "resolution_ms": target.resolution_ms,
                "delay_s": target.delay_s,
                "credential": target.credential,
                "key": list(target.key),
                "egress": list(target.egress),
                "credentials": dict(sorted(target.credentials.items())),
                "absent": [{"id": rule.id, "why": rule.why} for rule in target.absent],
            }
            for target in targets
        ],
    }
