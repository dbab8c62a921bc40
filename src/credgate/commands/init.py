"""`credgate init`: write a first policy. Never overwrites one."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from credgate.errors import CredgateError, print_error
from credgate.paths import Places, private_dir
from credgate.policyfile import TREE_NAME

AGENTS = ("claude", "codex", "gemini", "opencode", "copilot", "goose", "aider", "cursor-agent", "amp", "qwen")

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
workdir = "read"                # or "write"
env = ["TERM", "COLORTERM", "LANG", "EDITOR"]

# Cases for `credgate policy test`.
#
# [[test]]
# method = "GET"
# url = "https://api.github.com/repos/OWNER/REPO/issues"
# verdict = "allow"
"""

_EXAMPLES = """examples:
  credgate init
  credgate init --print
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
        description="write a first policy, empty and commented",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("agent", nargs="?", default="", metavar="AGENT", help="not yet: a policy for a known agent")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--here", action="store_true", help=f"write {TREE_NAME} into the current directory")
    where.add_argument("--print", action="store_true", dest="to_stdout", help="print it, write nothing")
    return parser


def _init(options: argparse.Namespace) -> int:
    if options.agent:
        raise _no_agent(options.agent)
    if options.to_stdout:
        sys.stdout.write(TEMPLATE)
        return 0
    path = Path.cwd() / TREE_NAME if options.here else private_dir(_config()) / "policy.toml"
    write_new(path, TEMPLATE.encode())
    sys.stdout.write(f"wrote {path}\nnext: edit it, then: credgate policy check {path}\n")
    return 0


def _config() -> Path:
    return Places.from_env(os.environ).config


def _no_agent(name: str) -> CredgateError:
    if name in AGENTS:
        detail = f"init {name}: not yet: policies for agents are not built"
        return CredgateError("not_yet", detail, "credgate init writes an empty one to fill in", exit_status=2)
    return CredgateError("agent_unknown", f"got {name!r}, expected no argument", "credgate init", exit_status=2)


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
