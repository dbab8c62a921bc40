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
from credgate.text import escape


def main(argv: list[str]) -> int:
    """Exit status: 0 shown, 1 no such copy, or its run has not ended."""
    parser = argparse.ArgumentParser(
        prog="credgate diff",
        description="What a run changed in its copy of the work tree, and of its agent's own files what was not taken. "
        "A added, M modified, D deleted, P permissions.",
        epilog="example: credgate diff r0123456789ab",
    )
    parser.add_argument("run", metavar="RUN", help="as the end of the run and `credgate ps` name it")
    parser.add_argument("--stat", action="store_true", help="names alone, no contents")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        told: dict[str, object] = {}
        for copy in copystore.find_all(Places.from_env(os.environ), options.run):
            with copystore.locked(copy):
                found = changes(copy)
                if options.json:
                    told |= _as_json(copy, found)
                else:
                    _show(copy, found, contents=not options.stat)
        if options.json:
            print(json.dumps(told))
    except CredgateError as error:
        return print_error(error)
    except OSError as error:
        return print_error(copystore.failed(options.run, error))
    return 0


def _as_json(copy: Copy, found: list[Change]) -> dict[str, object]:
    told = [copytext.as_json(change) for change in found]
    if copy.meta.state is None:
        return {"run": copy.meta.run, "workdir": copy.meta.tree, "changes": told}
    return {"run": copy.meta.run, "home": copy.meta.tree, "state": told}


def _show(copy: Copy, found: list[Change], *, contents: bool) -> None:
    if copy.meta.state is not None:
        print(f"# of the agent's own files, below {escape(copy.meta.tree)}:")
    with Beneath(str(copy.upper)) as upper, opened_tree(copy) as tree:
        for change in found:
            print(copytext.line(change))
            for each in copytext.unified(change, upper, tree) if contents else ():
                print(each)
