"""`credgate discard RUN`: throw away what a run changed in its copy of the work tree; the host's was never touched."""

import argparse
import os
import sys

from credgate import copystore
from credgate.errors import CredgateError, print_error
from credgate.paths import Places


def main(argv: list[str]) -> int:
    """Exit status: 0 it is gone, 1 no such copy, or its run has not ended."""
    parser = argparse.ArgumentParser(
        prog="credgate discard",
        description="Throw away what a run changed in its copies: of the work tree, and of its agent's own files.",
        epilog="example: credgate discard r0123456789ab",
    )
    parser.add_argument("run", metavar="RUN", help="as the end of the run and `credgate ps` name it")
    options = parser.parse_args(argv)
    try:
        for copy in copystore.find_all(Places.from_env(os.environ), options.run):
            with copystore.locked(copy):
                copystore.remove(copy.folder)
    except CredgateError as error:
        return print_error(error)
    except OSError as error:
        return print_error(copystore.failed(options.run, error))
    print(f"{options.run}: its copy is thrown away", file=sys.stderr)
    return 0
