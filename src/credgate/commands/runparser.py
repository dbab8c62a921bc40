"""The command line of `credgate run`, all of it: loaded only where a rare flag, or a mistake, asks for it."""

import argparse

EXAMPLE = (
    "example:\n  credgate run --role dev -- claude\n  credgate run --policy p.toml -- sh -c 'curl https://api.example'"
)
EXITS = "exit status: the command's own; 125 refused or failed before its start, 126, 127, 128+n by a signal"


def parser() -> argparse.ArgumentParser:
    """Of every flag; `run.plain` reads the usual ones by itself, with the same result."""
    made = argparse.ArgumentParser(
        prog="credgate run",
        description="Run CMD in a jail whose only route is the gateway. Flags only narrow what the role allows.",
        epilog=f"{EXAMPLE}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--policy", metavar="FILE", default="", help="the policy (default: search order of docs/policy.md)"
    )
    made.add_argument("--role", metavar="NAME", default="", help="default: the policy's default_role, or its only one")
    made.add_argument("--workdir", metavar="DIR", default="", help="the work tree (default: the current directory)")
    made.add_argument("--read-only", action="store_true", help="the work tree read-only, whatever the role says")
    made.add_argument("--env", metavar="NAME", action="append", default=[], help="pass only these of the role's names")
    made.add_argument("--user", metavar="NAME", default="", help="for root: the ordinary user the run belongs to")
    made.add_argument("--status-fd", metavar="N", type=int, default=-1, help="JSON lines `ready` and `exit` go there")
    made.add_argument(
        "--learn", action="store_true", help="at the end, print the rules that would allow what was refused"
    )
    made.add_argument("--warm", action="store_true", help="in a jail made ahead; have one made for the next such run")
    made.add_argument("-q", "--quiet", action="store_true", help="no banner, no summary at the end")
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] CMD...")
    return made
