"""`credgate revoke RUN|BINDING`: take rights of live runs back."""

import argparse
import json
import os
import sys

from credgate import controlclient
from credgate.errors import CredgateError, print_error
from credgate.paths import Places

UNKNOWN = "see `credgate ps`; a new run has what its policy says"


def main(argv: list[str]) -> int:
    """Exit status: 0 taken back, open connections closed; 1 no live run is called so or has such a binding."""
    parser = argparse.ArgumentParser(
        prog="credgate revoke",
        description="Refuse the next request, and close open connections: of a run, or of a binding in every live run.",
        epilog="example: credgate revoke github --run r0123456789ab",
    )
    parser.add_argument("name", metavar="RUN|BINDING", help="a run as `credgate ps` names it, or a binding's name")
    parser.add_argument("--run", metavar="RUN", default="", help="the binding in this run and its children alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        sock = controlclient.connect(Places.from_env(os.environ))
        if sock is None:
            raise CredgateError("unknown", "no daemon runs, so no run does", UNKNOWN)
        answer = controlclient.ask(sock, {"op": "revoke", "name": options.name, "run": options.run})
    except CredgateError as error:
        return print_error(error)
    revoked = answer["revoked"] if isinstance(answer["revoked"], list) else []
    if options.json:
        print(json.dumps({"revoked": revoked}))
        return 0
    for row in revoked:
        what = f"binding {row['binding']}" if row["binding"] else "all rights"
        print(f"{row['run']}: {what} revoked, {row['closed']} connections closed", file=sys.stderr)
    return 0
