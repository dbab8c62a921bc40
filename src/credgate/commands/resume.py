"""`credgate resume RUN`: end the pause that an alarm began."""

import argparse
import os
import sys

from credgate import controlclient
from credgate.errors import CredgateError, print_error
from credgate.paths import Places


def main(argv: list[str]) -> int:
    """Exit status: 0 requests are judged again, 1 no such run, or it is not paused."""
    parser = argparse.ArgumentParser(
        prog="credgate resume",
        description='Let a run go on that an alarm paused (on_alarm = "pause").',
        epilog="example: credgate resume r0123456789ab",
    )
    parser.add_argument("run", metavar="RUN", help="as `credgate ps` names it")
    options = parser.parse_args(argv)
    try:
        sock = controlclient.connect(Places.from_env(os.environ))
        if sock is None:
            raise CredgateError("not_paused", "no daemon runs, so no run does", "see `credgate ps`")
        controlclient.ask(sock, {"op": "resume", "run": options.run})
    except CredgateError as error:
        return print_error(error)
    print(f"{options.run}: resumed", file=sys.stderr)
    return 0
