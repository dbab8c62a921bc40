"""The first files of an agent's home in the jail, from its profile: never the user's own files, never a real key.

Of the user's own there is git's `user.name` and `user.email` alone; a profile's `~/.gitconfig` is for who has none.
"""

import os
import stat
from collections.abc import Mapping, Sequence

from credgate.errors import CredgateError
from jail.plan import under
from rules.agents import Agent, fill, needs_decoy
from rules.gitconfig import MAX_BYTES, parse

REFUSED = 125
GIT = "~/.gitconfig"


def seeded(
    agent: Agent | None, home: str, cwd: str, decoys: Mapping[str, str], shown: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """(path inside, text) of each seed. `decoys`: by variable; `shown`: trees of the host that the jail sees.

    Raises CredgateError where a tree of the host already has that place: nothing is written there, and an agent that
    starts with another configuration than the profile's would ask, or find its own sandbox on.
    """
    if agent is None:
        return ()
    decoy = next((decoys[name] for name in sorted(agent.key_names()) if name in decoys), "")
    if not decoy and needs_decoy(agent):  # a child's role, of whose bindings its parent has not this one
        detail = f"agent {agent.name}: this role has no decoy for {' or '.join(sorted(agent.key_names()))}"
        raise CredgateError("seed_without_key", detail, "give both roles the binding, or leave the agent out", REFUSED)
    refresh = decoys.get(agent.login.env, "") if agent.login is not None else ""
    filled = {home + s.path[1:]: fill(s.text, decoy=decoy, cwd=cwd, refresh=refresh) for s in agent.seeds}
    git = home + GIT[1:]
    fallback = filled.pop(git, "")
    identity = _identity(home) or fallback
    for path in filled:
        tree = _covering(path, shown)
        if tree:
            detail = f"agent {agent.name}: its first files hold {path}, and the host's {tree} is bound there"
            hint = "take the tree out of the role (read, tools, --workdir), or the agent"
            raise CredgateError("seed_covered", detail, hint, REFUSED)
    if identity and not _covering(git, shown):
        filled[git] = identity
    return tuple(filled.items())


def _covering(path: str, shown: Sequence[str]) -> str:
    return next((tree for tree in shown if under(path, tree) or under(tree, path)), "")


def _identity(home: str) -> str:
    """Git's name and address of the user, without which no agent can commit. Nothing else of the user's settings.

    Below what the repository says itself, so in the place of the user's own file and not in git's variables.
    """
    said: dict[str, str] = {}
    for config in (f"{home}/.config/git/config", home + GIT[1:]):  # git-config(1): the latter is read last
        said |= {key: value for key, value in parse(_read(config)) if key in ("user.name", "user.email")}
    lines = [f'\t{key[5:]} = "{_quoted(value)}"\n' for key, value in sorted(said.items()) if value.isprintable()]
    return "[user]\n" + "".join(lines) if lines else ""


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _read(path: str) -> bytes:
    """A file's bytes, b"" where it can't be read, or is a pipe that would hold us up."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(MAX_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
