"""`credgate kill RUN`: TERM, grace, KILL for everything in one jail."""

import argparse
import os
import sys

from credgate import controlclient
from credgate.errors import CredgateError, print_error
from credgate.paths import Places


def main(argv: list[str]) -> int:
    """Exit status: 0 the end has begun, 1 no such run."""
    parser = argparse.ArgumentParser(
        prog="credgate kill", description="End a run.", epilog="example: credgate kill r0123456789ab"
    )
    parser.add_argument("run", metavar="RUN", help="as `credgate ps` names it")
    options = parser.parse_args(argv)
    try:
        sock = controlclient.connect(Places.from_env(os.environ))
        if sock is None:
            raise CredgateError("run_unknown", "no daemon runs, so no run does", "see `credgate ps`")
        controlclient.ask(sock, {"op": "kill", "run": options.run})
    except CredgateError as error:
        return print_error(error)
    print(f"{options.run}: ending", file=sys.stderr)
    return 0
