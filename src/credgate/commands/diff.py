"""`credgate diff RUN`: what a run changed in its copy of the work tree."""

import argparse
import json
import os

from credgate import copystore, copytext
from credgate.beneath import Beneath
from credgate.copylook import Change, changes, opened_tree
from credgate.copystore import Copy
from credgate.errors import CredgateError, print_error
from credgate.paths import Places


def main(argv: list[str]) -> int:
    """Exit status: 0 shown, 1 no such copy, or its run has not ended."""
    parser = argparse.ArgumentParser(
        prog="credgate diff",
        description='What a run with `workdir = "copy"` changed. A added, M modified, D deleted, P permissions.',
        epilog="example: credgate diff r0123456789ab",
    )
    parser.add_argument("run", metavar="RUN", help="as the end of the run and `credgate ps` name it")
    parser.add_argument("--stat", action="store_true", help="names alone, no contents")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        copy = copystore.find(Places.from_env(os.environ), options.run)
        with copystore.locked(copy):
            found = changes(copy)
            if options.json:
                told = [copytext.as_json(change) for change in found]
                print(json.dumps({"run": copy.meta.run, "workdir": copy.meta.tree, "changes": told}))
                return 0
            _show(copy, found, contents=not options.stat)
    except CredgateError as error:
        return print_error(error)
    except OSError as error:
        return print_error(copystore.failed(options.run, error))
    return 0


def _show(copy: Copy, found: list[Change], *, contents: bool) -> None:
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as tree:
        for change in found:
            print(copytext.line(change))
            for each in copytext.unified(change, upper, tree) if contents else ():
                print(each)
