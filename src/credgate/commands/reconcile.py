"""`credgate reconcile`: hold the ledger against the targets' own records."""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from credgate.errors import CredgateError, print_error
from credgate.ledger.record import LedgerError
from credgate.paths import Places
from credgate.text import escape

if TYPE_CHECKING:
    from credgate.reconcile.engine import Options
    from credgate.reconcile.result import Result
    from credgate.reconcile.rows import Row
    from credgate.reconcile.selftest import Outcome
    from credgate.reconcile.store import Store

_EXAMPLES = """examples:
  credgate reconcile --source cloudtrail='trail/*.json.gz' --report out/
  credgate reconcile --ledger /mnt/audit/ledger --source nginx@git.example.org=access.log
  credgate reconcile --ledger audit.tar --pubkey key.pem --checkpoint noted.txt --source cloudtrail=trail/
  credgate reconcile --source billing=calls.csv --mapping mapping.toml --from 2026-06-01T00:00:00Z
  credgate reconcile --self-test

exit codes: 0 clean, 1 warnings, 2 usage, 3 target-only, gateway-only or a coverage gap, 4 deny-but-seen
"""
_SHOWN = 5  # of a class on the terminal
_JSON = 1000  # with --json; report.json has all
_SOURCE = re.compile(r"([^=@]+)(?:@([^=]+))?=(.+)", re.DOTALL)


def main(argv: Sequence[str]) -> int:
    """Run and return the exit status: the worst class; argparse exits 2 by itself."""
    try:
        options = _parser().parse_args(argv)
        return _self_test(options) if options.self_test else _reconcile(options)
    except LedgerError as error:  # its exit codes are those of `log verify`, and mean something else here
        print_error(error)
        return 2
    except CredgateError as error:
        return print_error(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate reconcile",
        description="hold the ledger against the targets' own records",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ledger", type=Path, metavar="DIR|BUNDLE", help="ledger, or bundle of one (default: your own)"
    )
    key = "the key that must have signed the ledger: PEM file, C2SP vkey or base64"
    parser.add_argument("--pubkey", metavar="KEY", help=key)
    noted = "a checkpoint noted earlier, from which the ledger must go on; may be repeated"
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], metavar="FILE", help=noted)
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="FORMAT[@HOST,...]=PATH",
        help="an export: a format or a name of the mapping file, and a path, directory or glob; may be repeated",
    )
    parser.add_argument("--mapping", type=Path, metavar="FILE", help="what differs at your targets (TOML)")
    parser.add_argument("--from", dest="since", type=_time, metavar="TIME", help="leave out what is earlier (RFC 3339)")
    parser.add_argument("--to", dest="until", type=_time, metavar="TIME", help="leave out what is later (RFC 3339)")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write report.html, runs.html, report.json, records.csv there"
    )
    parser.add_argument("--engine", metavar="URI", help="join there, by Ibis, as pyspark://local[2]")
    parser.add_argument("--allow-unverified", action="store_true", help="go on with a ledger that does not verify")
    parser.add_argument("--self-test", action="store_true", help="find planted lies, and nothing in honest inputs")
    parser.add_argument("--json", action="store_true", help="the summary as JSON on stdout")
    return parser


def _time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected RFC 3339 as 2026-06-01T00:00:00Z") from None
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone, expected e.g. {text}Z")
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def _options(options: argparse.Namespace) -> "Options":
    # the database takes a tenth of a second to load: not for --help
    from credgate.ledger.keys import read_public
    from credgate.reconcile.engine import Given, Options
    from credgate.reconcile.targets import formats

    if not options.source:
        known = ", ".join(formats())
        raise CredgateError("no_source", "got no --source, expected FORMAT=PATH", f"formats: {known}", exit_status=2)
    sources = []
    for text in options.source:
        match = _SOURCE.fullmatch(text)
        if match is None:
            raise CredgateError("source", f"got --source {text!r}, expected FORMAT=PATH or FORMAT@HOST=PATH", "", 2)
        hosts = tuple(host.strip().casefold() for host in (match[2] or "").split(",") if host.strip())
        sources.append(Given(name=match[1], hosts=hosts, patterns=(match[3],)))
    return Options(
        ledger=options.ledger or Places.from_env(os.environ).ledger,
        pubkey=read_public(options.pubkey) if options.pubkey else None,
        noted=tuple(options.checkpoint),
        engine=_engine(options.engine),
        sources=tuple(sources),
        mapping=options.mapping,
        since=options.since,
        until=options.until,
        allow_unverified=options.allow_unverified,
    )


def _engine(uri: str | None) -> str:
    if uri and "://" not in uri:
        raise CredgateError("engine", f"got --engine {uri!r}, expected a URI", "--engine 'pyspark://local[2]'", 2)
    return uri or ""


def _reconcile(options: argparse.Namespace) -> int:
    asked = _options(options)
    from credgate.reconcile.engine import reconcile

    return reconcile(asked, lambda store, result: _report(store, result, options))


def _report(store: "Store", result: "Result", options: argparse.Namespace) -> int:
    from credgate.reconcile.classes import MEANINGS, Class
    from credgate.reconcile.output import as_json, write_report
    from credgate.reconcile.rows import findings

    summary = write_report(store, result, options.report)
    if options.json:
        shown = [as_json(row) for row in findings(store, result, _JSON + 1)]
        cut = len(shown) > _JSON
        _say(json.dumps({**summary, "findings": shown[:_JSON], "findings_cut": cut}, sort_keys=True))
        return int(result.severity)
    _summary(result)
    for class_, meaning in MEANINGS.items():
        # a gap has been said as a whole
        if meaning.severity and class_ is not Class.COVERAGE_GAP:
            _some(list(findings(store, result, _SHOWN + 1, str(class_))))
    if options.report:
        _say(f"report     {options.report / 'report.html'}, runs.html, report.json, records.csv")
    return int(result.severity)


def _some(rows: "list[Row]") -> None:
    """The first findings of one class."""
    for row in rows[:_SHOWN]:
        refs = [f"ledger {row.ours.seq}"] if row.ours else []
        refs += [f"{row.theirs.file} record {row.theirs.record}"] if row.theirs else []
        what = row.ours or row.theirs
        did = row.theirs.action if row.theirs and not row.ours else ""
        where = (
            " ".join(word for word in (what.time, did, what.method, f"{what.host}{what.path}") if word) if what else ""
        )
        _say(f"  {row.class_:15} {row.source}: {where} ({', '.join(refs)})\n  {'':15} {row.words}")
    if len(rows) > _SHOWN:
        _say(f"  {rows[0].class_:15} ... more of these in the report: --report DIR")


def _say(text: str) -> None:
    """Print text that logs may have part in: each line is made harmless."""
    sys.stdout.write("\n".join(escape(line) for line in text.split("\n")) + "\n")


def _summary(result: "Result") -> None:
    from credgate.reconcile import proof
    from credgate.reconcile.rows import worst_words

    report = result.seen.report
    _say(proof.words(report))
    _say(f"verdict    {worst_words(result.severity)} (exit {int(result.severity)})")
    _say(f"ledger     {report.records} records, {report.status.name.lower()}; key {report.pubkey or 'none'}")
    _say(f"checkable  {result.checkable} of {result.allowed} requests")
    if result.grouped:
        _say(f"           {result.grouped} of them only as one of several that look alike, or by a count")
    if result.unchecked:
        _say(f"           {result.unchecked} went to targets of which no export was given")
    for part in result.parts:
        lost = sum(sum(file.unreadable.values()) for file in part.files)
        _say(f"{part.target.name:10} requests: {_counts(part.gateway)}")
        _say(f"{'':10} records:  {_counts(part.records)}{f', {lost} unreadable' if lost else ''}")
        if pending := part.gateway.get("pending"):
            _say(
                f"{'':10} {pending} too new: the target may log them for {part.target.delay_s} s; reconcile them later"
            )
        if empty := [file.name for file in part.files if not file.records]:
            _say(f"{'':10} nothing in: {', '.join(empty)}")
    for item in result.findings:
        _say(f"  {item.class_:15} {item.source}: {item.words}")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _self_test(options: argparse.Namespace) -> int:
    from credgate.reconcile.selftest import self_test

    outcomes: list[Outcome] = []

    def said(outcome: "Outcome") -> None:
        outcomes.append(outcome)
        if not options.json:
            _say(f"{'found' if outcome.found else 'MISSED':7} {outcome.name:18} {outcome.told}: {outcome.words}")
            sys.stdout.flush()

    good = self_test(said)
    lies = [outcome for outcome in outcomes if outcome.name != "honest"]
    found, clean = sum(outcome.found for outcome in lies), all(o.found for o in outcomes if o.name == "honest")
    if options.json:
        cases = [{"name": o.name, "found": o.found, "told": o.told, "said": o.words} for o in outcomes]
        _say(json.dumps({"found": found, "lies": len(lies), "honest_clean": clean, "cases": cases}))
    else:
        _say(f"{found}/{len(lies)} lies found; honest inputs: {'nothing found' if clean else 'FALSE FINDINGS'}")
    return 0 if good else 1
