"""Text of a first policy for an agent CLI that is signed in by subscription: the gateway alone holds the login."""

import json
from collections.abc import Iterator

from credgate.firstpolicy import aside, state_line
from rules.agents import Access, Agent
from rules.logins import Login
from rules.pack_rules import Packs, read_pack
from rules.tables import is_name

_HEAD = """\
# Policy of credgate for {about}: the gateway alone holds the login.
# What no rule allows is refused. All keys: docs/policy.md. Check this file: credgate policy check

version = 1
default_role = "dev"

# What the vault holds: credgate {how}
"""

_MINT = """
# Tokens are had for it at {host}. What the jail sends there is answered by the gateway, with decoys.
[mint.{token}]
type = "oauth2-refresh"
secret = "{refresh}"
endpoint = "{endpoint}"
path = {path}
client_id = {client_id}
{more}form = "{form}"
rotates = {rotates}
placeholder = {{ env = "{env}", shape = {shape} }}

[secret.{token}]
source = "mint:{token}"
"""

_ROLE = """
# A role is what one run may use: credgate run -- {command}
[role.dev]
agent = "{name}"
{state}bindings = {bindings}
endpoints = []                  # more targets that are reached without a secret
workdir = "write"               # git's hooks, CI and editor settings in it stay read-only: docs/files.md
env = ["TERM", "COLORTERM", "LANG", "EDITOR"]
"""


def login_policy(agent: Agent, packs: Packs) -> str:
    """The whole policy, commented. Raises KeyError where the profile names no pack of ours."""
    names, login = _names(agent), agent.login
    how = f"secret import {agent.commands[0]}" if login is not None else f"secret set {agent.accesses[0].secret}"
    parts = [
        _HEAD.format(about=agent.about, how=how),
        *(f'[secret.{name}]\nsource = "keyring:credgate/{name}"\n' for name in kept(agent)),
        *([] if login is None else [_mint(agent, login, packs)]),
        *_endpoints(agent, packs),
        *(_binding(name, access) for name, access in zip(names, agent.accesses, strict=True)),
        _ROLE.format(command=agent.commands[0], name=agent.name, state=state_line(agent), bindings=_list(names)),
        aside(agent),
    ]
    return "".join(parts)


def kept(agent: Agent) -> tuple[str, ...]:
    """Names of the secrets that the vault has to hold for it."""
    if agent.login is None:
        return tuple(dict.fromkeys(access.secret for access in agent.accesses))
    return (*(name for name, _ in agent.login.takes), *filter(None, (agent.login.client_secret,)))


def _names(agent: Agent) -> list[str]:
    """A binding for each access: a secret's own name, with the endpoint where it has been taken."""
    names: list[str] = []
    for access in agent.accesses:
        names.append(f"{access.secret}-{access.endpoint}" if access.secret in names else access.secret)
    return names


def _mint(agent: Agent, login: Login, packs: Packs) -> str:
    return _MINT.format(
        host=read_pack(login.endpoint, packs[login.endpoint]).host,
        token=agent.accesses[0].secret,
        refresh=login.takes[0][0],
        endpoint=login.endpoint,
        path=json.dumps(login.path),
        client_id=json.dumps(login.client_id),
        more=f'client_secret = "{login.client_secret}"\n' if login.client_secret else "",
        form=login.form,
        rotates=json.dumps(login.rotates),
        env=login.env,
        shape=json.dumps(login.shape),
    )


def _endpoints(agent: Agent, packs: Packs) -> Iterator[str]:
    named = [access.endpoint for access in agent.accesses]
    named += [] if agent.login is None else [agent.login.endpoint]
    rules: dict[str, list[str]] = {name: [] for name in named}
    for access in agent.accesses:
        if access.rules not in rules[access.endpoint]:
            rules[access.endpoint].append(access.rules)
    for endpoint, opened in rules.items():
        pack = read_pack(endpoint, packs[endpoint])
        yield f'\n# {pack.host}: {pack.about}.\n[endpoint.{endpoint}]\npack = "{endpoint}"\n'
        for name in opened:
            yield f'\n# {read_pack(name, packs[name]).about}.\n[[endpoint.{endpoint}.allow]]\npack = "{name}"\n'


def _binding(name: str, access: Access) -> str:
    head = "\n# In the jail {env} holds a decoy; the token takes its place.\n" if access.env else _OVERWRITTEN
    lines = [
        head.format(env=access.env) + f"[binding.{name}]",
        f'secret = "{access.secret}"',
        f'endpoint = "{access.endpoint}"',
        f'rules = ["{access.rules}"]',
        f"place = {json.dumps(access.place)}",
        f"format = {json.dumps(access.format)}",
    ]
    if not access.env:
        lines.append("response = { alarm = false }      # its answers name the account: written over, and no alarm")
    if access.env:
        lines.append('mode = "placeholder"')
        held = [f'env = "{access.env}"', f"shape = {json.dumps(access.shape)}"]
        if access.claims:
            lines += [f"[binding.{name}.placeholder]", *held, f"[binding.{name}.placeholder.claims]"]
            lines += [f"{_key(key)} = {_inline(value)}" for key, value in json.loads(access.claims).items()]
        else:
            lines.append(f"placeholder = {{ {', '.join(held)} }}")
    return "\n".join(lines) + "\n"


_LONG = 100  # characters of a line
_OVERWRITTEN = "\n# Written over, whatever the agent sends there.\n"


def _list(names: list[str]) -> str:
    text = json.dumps(names)
    return text if len(text) < _LONG else "[\n" + "".join(f"    {json.dumps(name)},\n" for name in names) + "]"


def _key(name: str) -> str:
    return name if is_name(name) else json.dumps(name)


def _inline(value: object) -> str:
    """A value of JSON as TOML has it in one line; both quote text alike."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)
