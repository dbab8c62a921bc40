"""`credgate ps`: the live runs of this user."""

import argparse
import json
import os

from credgate import controlclient
from credgate.errors import CredgateError, print_error
from credgate.paths import Places
from credgate.text import escape


def main(argv: list[str]) -> int:
    """Print a line a run; nothing where no daemon runs."""
    parser = argparse.ArgumentParser(
        prog="credgate ps", description="The live runs.", epilog="example: credgate ps --json"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        runs = _runs()
    except CredgateError as error:
        return print_error(error)
    if options.json:
        print(json.dumps({"runs": runs}))
        return 0
    print(f"{'RUN':<14} {'ROLE':<12} {'ALLOW':>6} {'DENY':>6}  WORK TREE")
    for run in runs:
        print(f"{run['run']:<14} {run['role']:<12} {run['allow']:>6} {run['deny']:>6}  {escape(run['workdir'])}")
    return 0


def _runs() -> list[dict[str, str]]:
    sock = controlclient.connect(Places.from_env(os.environ))
    if sock is None:
        return []
    runs = controlclient.ask(sock, {"op": "status"})["runs"]
    return runs if isinstance(runs, list) else []
