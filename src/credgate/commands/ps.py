"""`credgate ps`: the live runs of this user."""

import argparse
import json
import os
from typing import Any

from credgate import controlclient
from credgate.copystore import listed
from credgate.errors import CredgateError, print_error
from credgate.evidence import ATTEMPTS
from credgate.paths import Places
from credgate.text import escape


def main(argv: list[str]) -> int:
    """Print a line a run, with what the kernel counted of it so far; nothing where no daemon runs."""
    parser = argparse.ArgumentParser(
        prog="credgate ps", description="The live runs.", epilog="example: credgate ps --json"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        runs = _runs()
        kept = [copy.meta for copy in listed(Places.from_env(os.environ))]
    except CredgateError as error:
        return print_error(error)
    if options.json:
        copies = [{"run": m.run, "workdir": m.tree, "role": m.role} for m in kept if m.state is None]
        states = [{"run": m.run, "home": m.tree, "role": m.role} for m in kept if m.state is not None]
        print(json.dumps({"runs": runs, "copies": copies, "states": states}))
        return 0
    print(f"{'RUN':<14} {'ROLE':<12} {'ALLOW':>6} {'DENY':>6} {'OFF ROUTE':>9} {'REFUSED':>7}  WORK TREE")
    for run in runs:
        print(_line(run))
    live = {run["run"] for run in runs}
    for meta in kept:
        if meta.run not in live:
            what = f"its copy of {escape(meta.tree)}" if meta.state is None else "what it changed of its agent's files"
            print(f"{meta.run}: ended, {what} is kept: credgate diff, apply or discard it")
    return 0


def _line(run: dict[str, Any]) -> str:
    """OFF ROUTE: attempts without a route. REFUSED: packets that the gate namespace's firewall turned away."""
    counters = run["counters"]
    refused = "?" if counters is None else sum(counters[name] for name in ATTEMPTS)
    off = "?" if run["off_route"] is None else run["off_route"]
    child = f"  (child of {run['parent']})" if run["parent"] else ""
    child += "" if run["state"] == "running" else f"  ({run['state']})"
    counts = f"{run['allow']:>6} {run['deny']:>6} {off:>9} {refused:>7}"
    return f"{run['run']:<14} {run['role']:<12} {counts}  {escape(run['workdir'])}{child}"


def _runs() -> list[dict[str, Any]]:
    sock = controlclient.connect(Places.from_env(os.environ))
    if sock is None:
        return []
    runs = controlclient.ask(sock, {"op": "status"})["runs"]
    return runs if isinstance(runs, list) else []
