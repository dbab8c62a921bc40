"""`credgate log`: show and follow the ledger; what proves, exports and keeps it is in logproof.py."""

import argparse
import io
import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from credgate.commands.logrows import HEADER, row
from credgate.errors import CredgateError, print_error
from credgate.ledger.bundle import opened
from credgate.ledger.read import Damaged, Filter, Record, follow_records, read_records
from credgate.paint import paint_for
from credgate.paths import Places

_EXAMPLES = """examples:
  credgate log show --run r-1a2b --verdict deny
  credgate log show --since 2h --json
  credgate log tail --verdict deny
  credgate log verify --ledger /mnt/audit/ledger --pubkey key.pem --since noted.txt
  credgate log checkpoint > noted.txt
  credgate log export --format csv --since 7d -o week.csv
  credgate log export --bundle ledger.tar
  credgate log prune --keep 12 --gzip

exit codes of verify: 0 sound, 1 tampered, 2 truncated, 3 incomplete, 4 unreadable
"""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"(\d{1,6})([smhd])", re.ASCII)


def main(argv: Sequence[str]) -> int:
    """Run one of the subcommands and return the exit status; argparse exits 2 by itself."""
    options = _parser().parse_args(argv)
    try:
        return _run(options)
    except CredgateError as error:
        return print_error(error)


def _run(options: argparse.Namespace) -> int:
    try:
        with opened(options.ledger or Places.from_env(os.environ).ledger) as directory:
            match options.command:
                case "tail":
                    return _tail(directory, options)
                case "show":
                    return _show(directory, options)
                case _:
                    from credgate.commands import logproof  # noqa: PLC0415  it loads what signs

                    return logproof.run(directory, options, filter_of(options))
    except BrokenPipeError:
        # `log show | head`: the reader has what it wants; stdout would fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate log",
        description="show, follow, verify, sign, export and keep the ledger",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--ledger", type=Path, metavar="PLACE", help="ledger directory or bundle (default: your own)")
    common.add_argument("--json", action="store_true", help="JSON on stdout (tail: one record a line)")
    filters = argparse.ArgumentParser(add_help=False)
    filters.add_argument("--run", default="", metavar="ID", help="only this run")
    filters.add_argument("--host", default="", help="only this host")
    filters.add_argument("--verdict", default="", choices=("allow", "deny", "approve"), help="only this verdict")
    filters.add_argument("--since", type=_since, metavar="TIME", help="RFC 3339, or an age: 90s 15m 2h 7d")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("show", parents=[common, filters], help="print the records")
    tail = commands.add_parser("tail", parents=[common, filters], help="print the last records, then each new one")
    tail.add_argument("-n", type=int, default=10, metavar="N", help="how many of the last records (default 10)")
    _add_proving(commands, common, filters)
    return parser


def _add_proving(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    common: argparse.ArgumentParser,
    filters: argparse.ArgumentParser,
) -> None:
    check = commands.add_parser("verify", parents=[common], help="check chain, tree, signatures and witnesses")
    check.add_argument("--pubkey", metavar="KEY", help="the key that must have signed: PEM file, C2SP vkey or base64")
    check.add_argument("--checkpoint", type=Path, action="append", default=[], metavar="NOTE", help="a kept checkpoint")
    check.add_argument(
        "--since", type=Path, metavar="NOTE", help="an earlier one: prove that the ledger goes on from it"
    )
    note = commands.add_parser("checkpoint", parents=[common], help="print a signed checkpoint of the ledger as it is")
    note.add_argument("--pubkey", metavar="KEY", help="the key that must have signed so far")
    out = commands.add_parser("export", parents=[common, filters], help="records as JSONL, CSV or OCSF, or a bundle")
    out.add_argument("--pubkey", metavar="KEY", help="the key that must have signed")
    out.add_argument("--format", choices=("jsonl", "csv", "ocsf"), default="jsonl", help="default jsonl")
    out.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")
    out.add_argument("--bundle", type=Path, metavar="FILE", help="ledger, public key and checkpoints as one tar")
    commands.add_parser("rotate-key", parents=[common], help="sign with a new key from here on (gateway stopped)")
    prune = commands.add_parser("prune", parents=[common], help="remove old segments as wholes (gateway stopped)")
    prune.add_argument("--keep", type=int, required=True, metavar="N", help="how many segments stay")
    prune.add_argument("--gzip", action="store_true", help="pack those that stay, but for the last")


def _since(text: str) -> str:
    age = _AGE.fullmatch(text)
    if age:
        moment = datetime.fromtimestamp(time.time(), UTC) - timedelta(seconds=int(age[1]) * _UNITS[age[2]])
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected 2025-01-31T12:00:00Z or an age like 2h") from None
        if moment.tzinfo is None:
            raise argparse.ArgumentTypeError(f"{text!r} has no time zone, expected e.g. {text}Z")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def filter_of(options: argparse.Namespace) -> Filter:
    """What the options ask to see; commands without filters see all."""
    if not hasattr(options, "run"):
        return Filter()
    return Filter(run=options.run, host=options.host, verdict=options.verdict, since=options.since or "")


def _show(directory: Path, options: argparse.Namespace) -> int:
    items = read_records(directory, filter_of(options))
    damaged = _show_json(items) if options.json else _show_table(items)
    if damaged:
        sys.stderr.write("error: the ledger has damaged lines\nhint: credgate log verify\n")
    return 1 if damaged else 0


def _show_json(items: Iterator[Record | Damaged]) -> bool:
    """One document, written as it is read: a ledger needn't fit into memory."""
    damaged = False
    start = '{"records":['
    for item in items:
        if isinstance(item, Damaged):
            damaged = True
            continue
        sys.stdout.write(f"{start}\n{_compact(item)}")
        start = ","
    sys.stdout.write("\n]}\n" if start == "," else '{"records":[]}\n')
    sys.stdout.flush()
    return damaged


def _show_table(items: Iterator[Record | Damaged]) -> bool:
    damaged, paint = False, paint_for(sys.stdout)
    sys.stdout.write(f"{HEADER}\n")
    for item in items:
        damaged = damaged or isinstance(item, Damaged)
        sys.stdout.write(f"{row(item, paint)}\n")
    sys.stdout.flush()
    return damaged


def _tail(directory: Path, options: argparse.Namespace) -> int:
    paint = paint_for(sys.stdout)
    try:
        if not options.json:
            _say(HEADER)
        for item in follow_records(directory, filter_of(options), last=max(0, options.n), go_on=_is_read):
            if not options.json:
                _say(row(item, paint))
            elif not isinstance(item, Damaged):
                _say(_compact(item))
    except KeyboardInterrupt:
        return 0
    return 0


def _is_read() -> bool:
    """Whether somebody could read on: a pipe without a reader and a terminal that hung up say so (poll(2))."""
    try:
        ends = select.poll()
        ends.register(sys.stdout.fileno(), 0)
        return not ends.poll(0)
    except io.UnsupportedOperation:  # no descriptor: a test's own stream
        return True


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _compact(record: Record) -> str:
    return json.dumps(record, sort_keys=True, separators=(",", ":"))
