"""An agent's own login on the host: read once, by the user's word, for what the vault is to hold of it."""

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from credgate.errors import CredgateError
from credgate.policyfile import shipped_agents
from rules.agents import Agent
from rules.load_agents import read_agent
from rules.logins import Login, LoginError, taken
from rules.tables import closest

LOGIN_SUFFIX = "-login"
MAX_FILE = 1 << 20
_MAX_PROGRAM_FILES, _MAX_PROGRAM_FILE = 1000, 64 << 20


def login_agent(name: str) -> tuple[Agent, Login]:
    """The profile of a login, by the agent's command or its own name. Raises CredgateError."""
    for profile, text in shipped_agents().items():
        agent = read_agent(profile, text)
        if agent.login is not None and name in (profile, *agent.commands):
            return agent, agent.login
    agents = [read_agent(profile, text) for profile, text in shipped_agents().items()]
    known = [agent.name.removesuffix(LOGIN_SUFFIX) for agent in agents if agent.login is not None]
    detail = f"got {name!r}, expected an agent whose login by subscription is known here"
    raise CredgateError("login_unknown", detail, closest(name, known), exit_status=2)


def login_file(command: str) -> Path | None:
    """Where this user's agent keeps a login, None where it keeps none."""
    try:
        _, login = login_agent(command)
    except CredgateError:
        return None
    path = at_home(login)
    return path if path.is_file() else None


def at_home(login: Login) -> Path:
    """The file's usual place."""
    return Path(os.environ.get("HOME", "/")) / login.file.removeprefix("~/")


def read_login(login: Login, path: Path) -> Mapping[str, str]:
    """The values by secret's name. Raises CredgateError: not there, or no login of the schema that is known."""
    try:
        document = json.loads(_bytes(path))
    except (ValueError, RecursionError):  # "from None": the fault's text may hold a part of the file
        raise _changed(path, "expected a JSON object, got something else", "sign in with the agent anew") from None
    try:
        return taken(login, document)
    except LoginError as error:
        raise _changed(path, error.detail, error.hint) from error


def _changed(path: Path, what: str, hint: str) -> CredgateError:
    return CredgateError("login_unknown", f"{path}: {what}", hint)


def _bytes(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _changed(path, "no regular file", "name the login's file: --file PATH")
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        hint = "sign in with the agent first, or name the file: --file PATH"
        raise CredgateError("login_missing", f"{path}: {(error.strerror or str(error)).lower()}", hint) from error
    if len(data) > MAX_FILE:
        raise _changed(path, f"more than {MAX_FILE} bytes", "name the login's file: --file PATH")
    return data


def client_secret(agent: Agent, login: Login) -> str:
    """The secret of an installed program's client id, as the program itself has it; "" where it isn't found.

    RFC 8252, 8.5: such a secret is no secret, and it is the same for all who have the program.
    """
    if not login.client_pattern:
        return ""
    pattern = re.compile(login.client_pattern)
    for command in agent.commands:
        for text in _program(command):
            if login.client_id in text and (found := pattern.search(text)):
                return found[1]
    return ""


def _program(command: str) -> Iterator[str]:
    """Texts of the scripts beside the program that a command leads to."""
    place = shutil.which(command)
    if place is None:
        return
    folder = Path(place).resolve().parent
    for path in sorted(folder.glob("*.js"))[:_MAX_PROGRAM_FILES]:
        if path.is_file() and path.stat().st_size <= _MAX_PROGRAM_FILE:
            yield path.read_text("utf-8", "replace")
