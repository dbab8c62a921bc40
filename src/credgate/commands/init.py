"""`credgate init`: write a first policy, for an agent CLI or an empty one. Never overwrites one."""

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from credgate.commands.secret import keep
from credgate.errors import CredgateError, print_error
from credgate.firstpolicy import policy_for
from credgate.loginfile import LOGIN_SUFFIX, login_file
from credgate.loginpolicy import kept, login_policy
from credgate.paths import Places, private_dir
from credgate.policyfile import TREE_NAME, shipped_agents, shipped_packs
from credgate.secretindex import Index, read_index
from credgate.text import escape
from rules.agents import Agent
from rules.load_agents import read_agent
from rules.tables import closest

CUSTOM = "custom"

TEMPLATE = """\
# Policy of credgate: which requests an agent may send, and which of them get a secret on the way out.
# What no rule allows is refused. All keys: docs/policy.md. Check this file: credgate policy check

version = 1
default_role = "dev"

# A secret's name and where its value comes from. The value itself never stands here:
#   credgate secret set github
#
# [secret.github]
# source = "keyring:credgate/github"

# A target, and what may be asked of it. "*" in a path is one segment, "**" any number.
#
# [endpoint.github-api]
# host = "api.github.com"
#
# [[endpoint.github-api.allow]]
# id = "issues"
# methods = ["GET", "POST"]
# paths = ["/repos/OWNER/REPO/issues", "/repos/OWNER/REPO/issues/*"]
#
# [[endpoint.github-api.deny]]
# pack = "github-credential-minting"

# Which secret goes into which requests of that target.
#
# [binding.github]
# secret = "github"
# endpoint = "github-api"
# rules = ["issues"]
# place = "header:authorization"
# format = "Bearer {secret}"

# A role is what one run may use: credgate run --role dev -- COMMAND
[role.dev]
bindings = []                   # ["github"]
endpoints = []                  # targets that are reached without a secret
workdir = "read"                # or "write", "copy"
env = ["TERM", "COLORTERM", "LANG", "EDITOR"]

# Cases for `credgate policy test`.
#
# [[test]]
# method = "GET"
# url = "https://api.github.com/repos/OWNER/REPO/issues"
# verdict = "allow"
"""

_EXAMPLES = """examples:
  credgate init claude
  credgate init codex --print
  credgate init claude --login                (signed in by a subscription)
  credgate init custom                        (an empty one, commented)
  credgate init --here && credgate policy trust ./credgate.toml
"""


def main(argv: Sequence[str]) -> int:
    """Write the policy, or print it; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        return _init(options)
    except CredgateError as error:
        return print_error(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="credgate init",
        description="write a first policy: for an agent CLI, whose key is asked for, or an empty one, commented",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join(sorted(shipped_agents()))
    parser.add_argument("agent", nargs="?", default=CUSTOM, metavar="AGENT", help=f"one of {known}, {CUSTOM} (default)")
    parser.add_argument("--login", action="store_true", help="of a login by subscription, not of a key")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--here", action="store_true", help=f"write {TREE_NAME} into the current directory")
    where.add_argument("--print", action="store_true", dest="to_stdout", help="print it, write nothing")
    return parser


def _init(options: argparse.Namespace) -> int:
    name = options.agent + LOGIN_SUFFIX * (options.login and not options.agent.endswith(LOGIN_SUFFIX))
    agent = None if name == CUSTOM else _agent(name)
    text = TEMPLATE if agent is None else _text(agent)
    if options.to_stdout:
        sys.stdout.write(text)
        return 0
    if agent is not None and options.here:
        detail = f"init {agent.name} --here: a policy in the work tree can't bind a secret"
        hint = f"credgate init {agent.name} writes your own, outside the work tree"
        raise CredgateError("here_with_secret", detail, hint, exit_status=2)
    places = Places.from_env(os.environ)
    path = Path.cwd() / TREE_NAME if options.here else private_dir(places.config) / "policy.toml"
    write_new(path, text.encode())
    sys.stdout.write(f"wrote {path}\n")
    if agent is None:
        sys.stdout.write(f"next: edit it, then: credgate policy check {path}\n")
        return 0
    return _key(agent, places)


def _text(agent: Agent) -> str:
    return (login_policy if agent.together else policy_for)(agent, shipped_packs())


def _agent(name: str) -> Agent:
    known = shipped_agents()
    if name not in known:
        detail = f"init: got {name!r}, expected an agent that is known here"
        raise CredgateError("agent_unknown", detail, closest(name, [*known, CUSTOM]), exit_status=2)
    return read_agent(name, known[name])


def _key(agent: Agent, places: Places) -> int:
    """See that the key is there, or ask for it where somebody can answer; say what comes next."""
    start = f"credgate run -- {agent.commands[0]}"
    index = read_index(places)
    if agent.login is not None:
        return _login(agent, index)
    if (found := login_file(agent.commands[0])) is not None:
        sys.stdout.write(f"note: {escape(str(found))} holds a login; for that: credgate init {agent.name} --login\n")
    name = agent.accesses[0].secret
    if index is not None and name in index.entries:
        entry = index.entries[name]
        sys.stdout.write(
            f"the key is kept already: {name} in {escape(entry.backend)}, fingerprint {entry.fingerprint}\n"
        )
    elif not sys.stdin.isatty() or not _asked(name, agent, places):
        sys.stdout.write(f"next: credgate secret set {name}\nthen: {start}\n")
        return 0
    sys.stdout.write(f"next: {start}\n")
    return 0


def _login(agent: Agent, index: Index | None) -> int:
    """Say how the login comes into the vault. It is not taken unasked: the agent on the host may lose it by that."""
    missing = [name for name in kept(agent) if index is None or name not in index.entries]
    if missing:
        sys.stdout.write(
            f"next: credgate secret import {agent.commands[0]}\nthen: credgate run -- {agent.commands[0]}\n"
        )
    else:
        sys.stdout.write(f"the login is kept already: {', '.join(kept(agent))}\n")
        sys.stdout.write(f"next: credgate run -- {agent.commands[0]}\n")
    return 0


def _asked(name: str, agent: Agent, places: Places) -> bool:
    """Ask for the value, hidden, and keep it. False where none was given."""
    try:
        value = getpass.getpass(f"key of {agent.about}, kept as {name} (not shown; Enter: later): ")
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write("\n")
        return False
    if not value:
        return False
    keep(places, name, value)
    return True


def write_new(path: Path, data: bytes) -> None:
    """Create a file of mode 0600 with these bytes. Raises CredgateError where it exists or can't be made."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        hint = (
            f"edit it, or move it away; see an empty one: credgate init --print; check it: credgate policy check {path}"
        )
        raise CredgateError("policy_exists", f"{path}: it is there already", hint) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CredgateError("policy_not_written", f"can't create {path}: {why}", "check the directory") from error
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
