"""`credgate apply RUN [PATH...]`: take over what a run changed in its copy of the work tree."""

import argparse
import json
import os
import sys

from credgate import copystore, copytext
from credgate.copyapply import Applied, apply, relative_to
from credgate.errors import CredgateError, print_error
from credgate.paths import Places
from credgate.text import escape
from credgate.trees import note_written


def main(argv: list[str]) -> int:
    """Exit status: 0 all that was asked for is taken over, 1 something was left, or there is no such copy."""
    parser = argparse.ArgumentParser(
        prog="credgate apply",
        description="Take over what a run changed in its copy, whole or some paths of it. What the host changed "
        "meanwhile stands. What the host executes unasked, what is named like a secret and links that lead out of "
        "the tree are taken over only where they are named themselves.",
        epilog="example: credgate apply r0123456789ab src .github/workflows/ci.yml",
    )
    parser.add_argument("run", metavar="RUN", help="as the end of the run and `credgate ps` name it")
    parser.add_argument("paths", metavar="PATH", nargs="*", help="a file, or a directory with what is in it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    places = Places.from_env(os.environ)
    try:
        copy = copystore.find(places, options.run)
        with copystore.locked(copy):
            paths = [relative_to(copy, os.path.realpath("."), path) for path in options.paths]
            note_written(places, copy.meta.tree)  # an agent's links are in it from now on
            done = apply(copy, paths)
            if done.whole:
                copystore.remove(copy.folder)
    except CredgateError as error:
        return print_error(error)
    except OSError as error:
        return print_error(copystore.failed(options.run, error))
    _tell(done, json_wanted=options.json)
    return 1 if done.left or done.apart else 0


def _tell(done: Applied, *, json_wanted: bool) -> None:
    if json_wanted:
        body = {
            "taken": [copytext.as_json(change) for change in done.taken],
            "left": [{**copytext.as_json(change), "why": why} for change, why in done.left],
            "to_be_named": [copytext.as_json(change) for change in done.apart],
            "kept": not done.whole,
        }
        print(json.dumps(body))
        return
    for change in done.taken:
        print(copytext.line(change))
    for change, why in done.left:
        print(f"left: {escape(change.path)}: {why}", file=sys.stderr)
    for change in done.apart:
        print(f"left: {escape(change.path)}: name it to take it over: {change.naming}", file=sys.stderr)
