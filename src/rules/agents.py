"""Profiles of agent CLIs: what one needs in a fresh home to begin without a question, and how it is let in. Data.

A seed is text with holes, which are filled when a run begins:
* {decoy}     the run's decoy of the binding whose placeholder the agent reads
* {decoy:20}  its last 20 characters
* {refresh}   the run's decoy of the refresh token, where the profile is one of a login
* {cwd}       the directory that the agent starts in
* {project}   its name as agents spell it in their own: everything but letters and digits a dash
A value is escaped as JSON and TOML both read it, so a hole of either stands between double quotes.
"""

import json
import re
from dataclasses import dataclass, field

from rules.agentstate import PROJECT, Data, project_of
from rules.logins import Login

__all__ = ["Access", "Agent", "Seed", "fill", "needs_decoy", "of_command"]

_DECOY = re.compile(r"\{decoy(?::([1-9][0-9]?))?\}")
_CWD, _REFRESH = "{cwd}", "{refresh}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A file that is written into the jail's home before its command starts. `path` begins with "~/"."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One way to be let in: the secret's usual name, the packs of host and rules, and where its value goes.

    `env`: the variable that the agent reads its key from; in the jail it holds a decoy of that `shape`. Both are ""
    where the gateway writes the place whatever the agent sends. `claims` is JSON, of a "jwt" shape. `bearer`: the
    vendor's other clients send the same variable as `authorization: Bearer`, so that place is bound as well.
    """

    secret: str
    endpoint: str
    rules: str
    place: str
    format: str
    env: str
    shape: str
    claims: str = ""
    bearer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """Limits below which the agent does not run: bytes and counts."""

    memory: int = 0
    processes: int = 0
    open_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One profile. `state`: where it keeps its own files in a home; `side_hosts`: asked too, and done without.

    Accesses are one or the other; `together`, as with a `login`, all count: the first one's secret is the token.
    """

    name: str
    about: str = ""
    commands: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    seeds: tuple[Seed, ...] = ()
    accesses: tuple[Access, ...] = ()
    state: tuple[str, ...] = ()
    side_hosts: tuple[str, ...] = ()
    least: Least = field(default_factory=Least)
    login: Login | None = None
    together: bool = False
    data: tuple[Data, ...] = ()  # what may come back of its own files, and
    config: tuple[str, ...] = ()  # what the host's agent would follow, and
    ignore: tuple[str, ...] = ()  # what of that is made anew each time: patterns below the home

    def private(self) -> tuple[str, ...]:
        """Its directories, below the home, in which there is something of those."""
        trees = [state.removeprefix("~/") for state in self.state]
        known = (*(entry.path for entry in self.data), *self.config)
        return tuple(tree for tree in trees if any(path.startswith(f"{tree}/") for path in known))

    def key_names(self) -> frozenset[str]:
        """The variables that it may read its key from."""
        return frozenset(access.env for access in self.accesses if access.env)


def needs_decoy(agent: Agent) -> bool:
    """Tell whether a seed holds the key, so that there has to be a decoy to write."""
    return any(_DECOY.search(seed.text) for seed in agent.seeds)


def fill(text: str, *, decoy: str, cwd: str, refresh: str = "") -> str:
    """Return a seed's text with its holes filled. What is filled in is never read for holes again."""
    place = _quoted(cwd)
    text = text.replace(PROJECT, project_of(cwd))

    def decoys(hole: re.Match[str]) -> str:
        return decoy[-int(hole[1]) :] if hole[1] else decoy

    return place.join(refresh.join(_DECOY.sub(decoys, p) for p in part.split(_REFRESH)) for part in text.split(_CWD))


def _quoted(text: str) -> str:
    """Escape for a JSON string and a TOML one; a name that is not UTF-8 can stand in neither as it is."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return json.dumps(shown, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def of_command(command: str, agents: tuple[Agent, ...]) -> Agent | None:
    """The profile of a command as a user types it (a name or a path), None where none knows it; that of a key first."""
    name = command.rpartition("/")[2]
    found = sorted((agent for agent in agents if name in agent.commands), key=lambda agent: agent.together)
    return found[0] if found else None
