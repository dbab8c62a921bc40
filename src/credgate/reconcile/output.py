"""The report's files: JSON, CSV, HTML and its schema. Same inputs, same bytes: no clock, no path of this machine."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path

from credgate.reconcile import proof
from credgate.reconcile.classes import MEANINGS, severity
from credgate.reconcile.html import page
from credgate.reconcile.model import ReconcileError
from credgate.reconcile.result import FORM, Finding, Part, Result
from credgate.reconcile.rows import Row, findings, prepare, worst_words, write_csv
from credgate.reconcile.runs import Content, runs_page
from credgate.reconcile.store import Store
from credgate.reconcile.times import show

SCHEMA = "report.schema.json"


def write_report(store: Store, result: Result, directory: Path | None) -> dict[str, object]:
    """Write the files, if there is a directory to write to; returns the summary."""
    prepare(store, result)
    summary = summarize(result)
    if directory is None:
        return summary
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_json(store, result, summary, directory / "report.json")
        write_csv(store, (directory / "records.csv").resolve())
        (directory / "report.html").write_text(page(store, result, summary), "utf-8")
        about = f"{summary['tool']}, report form {summary['schema']}."
        shared = runs_page(result.shared, result.contents, result.digests, about)
        (directory / "runs.html").write_text(shared, "utf-8")
        (directory / SCHEMA).write_text(schema(), "utf-8")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ReconcileError("report", f"can't write the report to {directory}: {why}", "--report DIR", 2) from error
    return summary


def schema() -> str:
    """The schema of report.json."""
    return resources.files("credgate.reconcile").joinpath(SCHEMA).read_text("utf-8")


def summarize(result: Result) -> dict[str, object]:
    """All but the findings of single records."""
    report = result.seen.report
    return {
        "schema": FORM,
        "tool": f"credgate {_version()}",
        "verdict": {
            "exit": int(result.severity),
            "severity": result.severity.name.lower(),
            "words": worst_words(result.severity),
            "verified": proof.signature(report) is not proof.Signature.NONE,
        },
        "ledger": _ledger(result),
        "completeness": {
            "requests": result.allowed,
            "checkable": result.checkable,
            "in_groups": result.grouped,
            "without_export": result.unchecked,
            "tunnels": result.seen.tunnels,
        },
        "sources": [_source(part) for part in result.parts],
        "source_findings": [_source_finding(item) for item in result.findings],
        "shared_targets": [{"host": item.host, "runs": item.runs, "requests": item.requests} for item in result.shared],
        "shared_contents": [_content(item) for item in result.contents],
        "classes": {
            str(name): {"severity": int(meaning.severity), "words": meaning.words} for name, meaning in MEANINGS.items()
        },
        "parameters": dict(result.parameters),
    }


def _ledger(result: Result) -> dict[str, object]:
    report = result.seen.report
    return {
        "state": report.status.name.lower(),
        "proof": proof.words(report),
        "signature": str(proof.signature(report)),
        "attested": proof.attested(report),
        "pubkey": report.pubkey,
        "signed_records": report.signed,
        "records": report.records,
        "last_sha256": report.last_sha256,
        "witness": report.witness,
        "notes": list(report.notes),
        "first": show(result.seen.first) if result.seen.records else None,
        "last": show(result.seen.last) if result.seen.records else None,
        "allowed": result.seen.allowed,
        "denied": result.seen.denied,
        "tunnels": result.seen.tunnels,
        "policy_sha256": sorted(result.seen.policies),
    }


def _source_finding(item: Finding) -> dict[str, object]:
    return {
        "source": item.source,
        "class": str(item.class_),
        "severity": int(severity(item.class_)),
        "count": item.count,
        "words": item.words,
    }


def _content(item: Content) -> dict[str, object]:
    return {
        "sha256": item.sha256,
        "bytes": item.size,
        "runs": item.runs,
        "sent": item.sent,
        "received": item.received,
        "hosts": list(item.hosts),
        "passed_on": item.passed,
    }


def _version() -> str:
    try:
        return metadata.version("credgate")
    except metadata.PackageNotFoundError:
        return "unknown"


def _source(part: Part) -> dict[str, object]:
    skew = part.skew
    return {
        "name": part.target.name,
        "format": part.target.format,
        "title": part.target.title,
        "files": [
            {
                "name": file.name,
                "sha256": file.sha256,
                "bytes": file.size,
                "records": file.records,
                "unreadable": dict(sorted(file.unreadable.items())),
            }
            for file in part.files
        ],
        "clock": {
            "median_us": skew.median,
            "mad_us": skew.mad,
            "samples": skew.samples,
            "by": skew.by,
            "window_us": skew.window,
        },
        "credentials": part.held,
        "requests": part.gateway,
        "records": part.records,
    }


def _write_json(store: Store, result: Result, summary: dict[str, object], path: Path) -> None:
    """The summary with its findings, written as they are read: there may be many."""
    text = json.dumps(summary, indent=1, sort_keys=True, ensure_ascii=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(text[:-2] + ',\n "findings": [')
        for at, item in enumerate(_findings(store, result)):
            file.write(("," if at else "") + "\n  " + json.dumps(item, sort_keys=True, ensure_ascii=True))
        file.write("\n ]\n}\n")


def _findings(store: Store, result: Result) -> Iterator[dict[str, object]]:
    for row in findings(store, result):
        yield as_json(row)


def as_json(row: Row) -> dict[str, object]:
    """A finding as report.json holds it."""
    return {
        "class": row.class_,
        "severity": int(severity(row.class_)),
        "source": row.source,
        "join": row.join,
        "words": row.words,
        "ledger": asdict(row.ours) if row.ours else None,
        "target": asdict(row.theirs) if row.theirs else None,
    }
