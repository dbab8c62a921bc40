"""The command line: one module a subcommand, imported when it is asked for."""

import importlib
import os
import sys

from credgate.errors import CredgateError, print_error

COMMANDS = {
    "run": "run a command in a jail",
    "init": "write a first policy",
    "policy": "check, explain, test, trust a policy",
    "secret": "set, list, remove, test secrets",
    "log": "show, follow, verify the ledger",
    "reconcile": "hold the ledger against the targets' own records",
    "gateway": "start, stop, ask the daemon",
    "diff": "what a run changed in its copy of the work tree",
    "apply": "take over what a run changed in its copy",
    "discard": "throw a run's copy away",
    "ps": "list the live runs",
    "kill": "end a run",
    "revoke": "take rights of live runs back",
    "resume": "end the pause of a run",
    "prove": "show each guard of the jail, with its control",
    "doctor": "what this host can enforce",
}
USAGE = 2
SIGINT, SIGPIPE = 2, 13  # signal(7), everywhere; the module, with its enums, costs a run's start 2 ms
# Only a jail has it: jail.plan's AS_RUN_AT, and credgate.trust's INSIDE_CA, not imported here for the time that takes.
IN_A_JAIL = "/etc/ssl/certs/credgate-ca.pem"
AS_RUN = "/run/credgate/credgate"
STARTS = frozenset({"run", "prove", "gateway"})


def usage() -> str:
    """The help text."""
    rows = "\n".join(f"  {name:<9} {what}" for name, what in COMMANDS.items())
    return (
        "usage: credgate COMMAND [ARGUMENT...]\n\n"
        "Run an agent CLI in a kernel jail whose only route is a gateway that holds the secrets.\n\n"
        f"{rows}\n\nexample:\n  credgate run -- claude\n\n`credgate COMMAND --help` says more."
    )


def _call(name: str, argv: list[str]) -> int:
    """One subcommand; its expected errors end here, said in two lines."""
    module = importlib.import_module(f"credgate.commands.{name}")
    try:
        result: int = module.main(argv)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except CredgateError as error:
        return print_error(error)
    except KeyboardInterrupt:  # while nothing else had the terminal: a start that lasts, a listing that is long
        return 128 + SIGINT
    except BrokenPipeError:  # `credgate log show | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + SIGPIPE
    return result


def _inside(argv: list[str]) -> int:
    """Started by a program in a jail, which no jail and no daemon starts from: a child run, where its role has some."""
    if os.access(AS_RUN, os.X_OK):
        os.execv(AS_RUN, [AS_RUN, *argv])
    hint = "a role with children may ask for a run of another role: docs/children.md"
    return print_error(CredgateError("in_a_jail", f"credgate {argv[0]}: this is the inside of a jail", hint, 125))


def main(argv: list[str]) -> int:
    """Dispatch; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else USAGE
    name = argv[0]
    if name in STARTS and os.access(IN_A_JAIL, os.F_OK):
        return _inside(argv)
    if name in COMMANDS:
        return _call(name, argv[1:])
    print(
        f"error: got command {name!r}, expected one of: {', '.join(COMMANDS)}\nhint: credgate --help", file=sys.stderr
    )
    return USAGE
