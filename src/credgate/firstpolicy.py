"""Text of a first policy for an agent CLI, from its profile and the shipped packs."""

import json
from collections.abc import Mapping

from rules.agents import Access, Agent
from rules.pack_rules import Packs, read_pack

_HEAD = """\
# Policy of credgate for {about}: it may ask for what the packs below list, and the key is put in on the way out.
# What no rule allows is refused. All keys: docs/policy.md. Check this file: credgate policy check

version = 1
default_role = "dev"

# The value of the key never stands here: credgate secret set {secret}
[secret.{secret}]
source = "keyring:credgate/{secret}"

# {host}: {hosts_about}.
[endpoint.{endpoint}]
pack = "{endpoint}"

# {rules_about}. All packs: docs/packs.md
[[endpoint.{endpoint}.allow]]
pack = "{rules}"

# In the jail {env} holds a decoy; the gateway puts the key in its place, for this host and these rules alone.
[binding.{secret}]
secret = "{secret}"
endpoint = "{endpoint}"
rules = ["{rules}"]
place = {place}
format = {format}
mode = "placeholder"
placeholder = {{ env = {env_text}, shape = {shape} }}
{bearer}
# A role is what one run may use: credgate run -- {command}
[role.dev]
agent = "{name}"{pad}# its settings for a first start without questions: docs/agents.md
{state}bindings = {bindings}
endpoints = []                  # more targets that are reached without a secret
workdir = "write"               # git's hooks, CI and editor settings in it stay read-only: docs/files.md
env = ["TERM", "COLORTERM", "LANG", "EDITOR"]
"""

_BEARER = """
# The vendor's SDKs send the same variable in another header: the same decoy, bound there too.
[binding.{secret}-bearer]
secret = "{secret}"
endpoint = "{endpoint}"
rules = ["{rules}"]
place = "header:authorization"
format = "Bearer {{secret}}"
mode = "placeholder"
placeholder = {{ env = {env_text}, shape = {shape} }}
"""

_ASIDE = """
# It asks for these too, and does without: {hosts}
# What it keeps in your home{but}is neither read nor written: {state}
"""

_ALSO = """
# Instead of the key above it can be given another one:
"""


def policy_for(agent: Agent, packs: Packs) -> str:
    """The whole policy, commented. Raises KeyError where the profile names no pack of ours."""
    access = agent.accesses[0]
    text = _HEAD.format_map(_words(agent, access, packs)) + aside(agent)
    if agent.accesses[1:]:
        text += _ALSO + "".join(_other(other) for other in agent.accesses[1:])
    return text


def state_line(agent: Agent) -> str:
    """The role's line about the agent's own files; "" where nothing is known that may come back."""
    if not agent.private():
        return ""
    return 'agent_state = "copy"            # its sessions come back; what you would execute does not: docs/files.md\n'


def aside(agent: Agent) -> str:
    """What it asks for beside, and what it keeps, as a comment; "" for nothing."""
    if not agent.side_hosts and not agent.state:
        return ""
    hosts, state = ", ".join(agent.side_hosts) or "nothing", ", ".join(agent.state) or "nothing"
    return _ASIDE.format(hosts=hosts, state=state, but=", but for its sessions, " if agent.private() else " ")


def _words(agent: Agent, access: Access, packs: Packs) -> Mapping[str, str]:
    host, rules = (read_pack(name, packs[name]) for name in (access.endpoint, access.rules))
    words = {
        "about": agent.about,
        "name": agent.name,
        "pad": " " * max(1, 22 - len(agent.name)),
        "command": agent.commands[0],
        "state": state_line(agent),
        "secret": access.secret,
        "endpoint": access.endpoint,
        "rules": access.rules,
        "host": host.host,
        "hosts_about": host.about,
        "rules_about": rules.about.capitalize(),
        "place": json.dumps(access.place),
        "format": json.dumps(access.format),
        "env": access.env,
        "env_text": json.dumps(access.env),
        "shape": json.dumps(access.shape),
        "bindings": json.dumps([access.secret, *([f"{access.secret}-bearer"] if access.bearer else [])]),
    }
    return {**words, "bearer": _BEARER.format_map(words) if access.bearer else ""}


def _other(access: Access) -> str:
    packs = f"packs {access.endpoint} and {access.rules}"
    place = f"place = {json.dumps(access.place)}, format = {json.dumps(access.format)}"
    more = "#     and a second binding at header:authorization, for the vendor's SDKs\n" if access.bearer else ""
    return f"#   {access.env}: {packs},\n#     {place},\n#     shape = {json.dumps(access.shape)}\n{more}"
