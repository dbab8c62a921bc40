"""The command line: one module a subcommand, imported when it is asked for."""

import importlib
import sys

COMMANDS = {
    "run": "run a command in a jail",
    "init": "write a first policy",
    "policy": "check, explain, test, trust a policy",
    "secret": "set, list, remove, test secrets",
    "log": "show, follow, verify the ledger",
    "gateway": "start, stop, ask the daemon",
    "ps": "list the live runs",
    "kill": "end a run",
    "doctor": "what this host can enforce",
}
LATER = ("prove", "diff", "apply", "discard", "revoke", "reconcile")
USAGE = 2


def usage() -> str:
    """The help text."""
    rows = "\n".join(f"  {name:<9} {what}" for name, what in COMMANDS.items())
    return (
        "usage: credgate COMMAND [ARGUMENT...]\n\n"
        "Run an agent CLI in a kernel jail whose only route is a gateway that holds the secrets.\n\n"
        f"{rows}\n\nexample:\n  credgate run -- claude\n\n`credgate COMMAND --help` says more."
    )


def main(argv: list[str]) -> int:
    """Dispatch; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else USAGE
    name = argv[0]
    if name in COMMANDS:
        module = importlib.import_module(f"credgate.commands.{name}")
        result: int = module.main(argv[1:])
        return result
    if name in LATER:
        print(f"error: {name}: not yet in this version\nhint: credgate --help lists what is there", file=sys.stderr)
        return USAGE
    print(
        f"error: got command {name!r}, expected one of: {', '.join(COMMANDS)}\nhint: credgate --help", file=sys.stderr
    )
    return USAGE
