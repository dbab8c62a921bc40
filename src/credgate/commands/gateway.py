"""`credgate gateway`: start, stop, ask the daemon of this user."""

import argparse
import json
import os
import sys
import time
from typing import Any

from credgate import controlclient
from credgate.errors import CredgateError, print_error
from credgate.paths import Places
from credgate.text import escape
from credgate.workers.settings import parse_processes

STOP_WAIT = 20.0  # seconds for the runs to end closed
USAGE = 2


def main(argv: list[str]) -> int:
    """Exit status: 0 done or running, 1 not running or not reloaded, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="credgate gateway",
        description="The daemon that holds the secrets; the first `credgate run` starts it by itself.",
        epilog="example: credgate gateway status --json",
    )
    parser.add_argument("action", choices=("start", "stop", "status", "reload"))
    parser.add_argument("--idle", type=float, default=controlclient.IDLE, metavar="SECONDS", help="start: leave after")
    parser.add_argument("--workers", default="", metavar="N", help='start: processes that accept, or "cores"')
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        if os.geteuid() == 0:
            raise CredgateError("root_needs_user", "the daemon is an ordinary user's", "run this as that user", USAGE)
        return _ACTIONS[options.action](Places.from_env(os.environ), options)
    except CredgateError as error:
        return print_error(error)


def _start(places: Places, options: argparse.Namespace) -> int:
    wanted = parse_processes(options.workers, "--workers") if options.workers else 0
    sock = controlclient.connect_or_start(places, options.idle, options.workers)
    status = controlclient.ask(sock, {"op": "status"})
    workers = status["workers"]
    if wanted and isinstance(workers, list) and len(workers) != wanted:
        detail = f"the gateway runs with {len(workers)} processes that accept, asked for {wanted}"
        raise CredgateError("workers_differ", detail, "`credgate gateway stop`, then start it again")
    return _show(status, options)


def _status(places: Places, options: argparse.Namespace) -> int:
    sock = controlclient.connect(places)
    if sock is None:
        return _not_running(options)
    return _show(controlclient.ask(sock, {"op": "status"}), options)


def _stop(places: Places, options: argparse.Namespace) -> int:
    sock = controlclient.connect(places)
    if sock is None:
        return _not_running(options)
    controlclient.ask(sock, {"op": "stop"})
    deadline = time.monotonic() + STOP_WAIT
    while not controlclient.gone(places):
        if time.monotonic() > deadline:
            raise CredgateError("stop_slow", f"the daemon is still there after {STOP_WAIT:.0f} s", "see its log")
        time.sleep(0.02)
    print("stopped", file=sys.stderr)
    return 0


def _reload(places: Places, options: argparse.Namespace) -> int:
    """Have every live run's policy read anew; 1 where one of them keeps the old one."""
    sock = controlclient.connect(places)
    if sock is None:
        return _not_running(options)
    answer = controlclient.ask(sock, {"op": "reload"})
    runs = answer["runs"] if isinstance(answer["runs"], list) else []
    if options.json:
        print(json.dumps({"runs": runs}))
    else:
        for row in runs:
            print(_reloaded(row), file=sys.stderr)
    return 1 if any("error" in row for row in runs) else 0


def _reloaded(row: dict[str, Any]) -> str:
    if "error" in row:
        hint = f"\nhint: {row['hint']}" if row["hint"] else ""
        return f"error: run {row['run']} keeps its policy: {row['error']}{hint}"
    if not row["changed"]:
        return f"{row['run']}: nothing changed"
    later = f"; at the next run only: {', '.join(row['later'])}" if row["later"] else ""
    return f"{row['run']}: policy {row['policy_sha256'][:12]} counts now{later}"


def _not_running(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"running": False}))
    else:
        print("not running", file=sys.stderr)
    return 1


def _show(status: dict[str, object], options: argparse.Namespace) -> int:
    runs = status["runs"]
    if options.json:
        kept = {key: status[key] for key in ("pid", "runs", "ledger", "workers", "workers_died")}
        print(json.dumps({"running": True, **kept}))
    else:
        count = len(runs) if isinstance(runs, list) else 0
        print(f"running, pid {status['pid']}, {count} live runs, ledger {escape(str(status['ledger']))}")
        _show_workers(status)
    return 0


def _show_workers(status: dict[str, object]) -> None:
    """The processes that accept, where there are others than the daemon."""
    workers = status["workers"]
    if not isinstance(workers, list) or len(workers) + int(str(status["workers_died"])) < 2:
        return
    for row in workers:
        more = f", {row['requests']} requests" if "requests" in row else ""
        print(f"accepts: pid {row['pid']}, {row['connections']} connections{more}, {row['cpu_s']} s of CPU")
    if status["workers_died"]:
        print(f"workers that died: {status['workers_died']}, see `credgate log show`")


_ACTIONS = {"start": _start, "stop": _stop, "status": _status, "reload": _reload}
