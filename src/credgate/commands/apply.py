"""`credgate apply RUN [PATH...]`: take over what a run changed in its copy of the work tree."""

import argparse
import json
import os
import sys

from credgate import copystore, copytext
from credgate.copyapply import Applied, apply, assign, joined
from credgate.copystore import Copy
from credgate.errors import CredgateError, print_error
from credgate.paths import Places
from credgate.text import escape
from credgate.trees import note_written


def main(argv: list[str]) -> int:
    """Exit status: 0 all that was asked for is taken over, 1 something was left, or there is no such copy."""
    parser = argparse.ArgumentParser(
        prog="credgate apply",
        description="Take over what a run changed in its copies, whole or some paths of it. What the host changed "
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
        done = joined([_applied(places, copy, paths) for copy, paths in _assigned(places, options)])
    except CredgateError as error:
        return print_error(error)
    except OSError as error:
        return print_error(copystore.failed(options.run, error))
    _tell(done, json_wanted=options.json)
    return 1 if done.left or done.apart else 0


def _assigned(places: Places, options: argparse.Namespace) -> list[tuple[Copy, list[str]]]:
    """Each copy of the run with the paths that are its own; without any, all of them whole."""
    copies = copystore.find_all(places, options.run)
    cwd = os.path.realpath(".")
    if not options.paths:
        return [(copy, []) for copy in copies]
    found: dict[int, list[str]] = {}
    for path in options.paths:
        number, relative = assign(copies, cwd, path)
        found.setdefault(number, []).append(relative)
    return [(copies[number], paths) for number, paths in found.items()]


def _applied(places: Places, copy: Copy, paths: list[str]) -> Applied:
    with copystore.locked(copy):
        if copy.meta.state is None:
            note_written(places, copy.meta.tree)  # an agent's links are in it from now on
        done = apply(copy, paths)
        if done.whole:
            copystore.remove(copy.folder)
        return done


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
