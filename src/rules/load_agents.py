"""[agent.NAME] tables of a policy, and shipped profiles, into values."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from rules import load_units
from rules.agents import Access, Agent, Least, Seed
from rules.envnames import refused
from rules.hosts import HostError, HostPattern
from rules.load_bindings import claims_of
from rules.load_logins import load_login
from rules.load_states import STATE_KEYS, load_data, load_patterns
from rules.placeholders import ShapeError, check_shape
from rules.problems import RulesError
from rules.tables import Report, Table, closest, is_name, show
from rules.treenames import above

__all__ = ["AGENT_KEYS", "AgentError", "load_agents", "read_agent"]

AGENT_KEYS = (
    "about",
    "commands",
    "env",
    "seed",
    "access",
    "state",
    "side_hosts",
    "limits",
    "login",
    "together",
    *STATE_KEYS,
)
_SHIPPED = ("agent", "source")
_LEAST_KEYS = ("memory", "processes", "open_files")
_ACCESS_KEYS = ("secret", "endpoint", "rules", "place", "format", "env", "shape", "claims", "bearer")
_MAX_SEED = 64 << 10  # characters
_MEND = "reinstall credgate"


class AgentError(RulesError):
    """A shipped profile is broken: `detail` lists its faults."""

    code = "agent_broken"


@lru_cache(maxsize=64)
def read_agent(name: str, text: str) -> Agent:
    """Return a shipped profile. Raises AgentError where the text isn't one of that name."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise AgentError(f"agent {name}: {fault}", _MEND) from fault
    report = Report()
    table = Table(raw, "", report, known=frozenset((*AGENT_KEYS, *_SHIPPED)), later=frozenset())
    if table.text("agent", required=True) != name:
        table.fault("agent", f"expected {name}")
    table.text("source", required=True)
    agent = _agent(name, table)
    if report.problems:
        raise AgentError(f"agent {name}: " + "; ".join(f"{p.where}: {p.message}" for p in report.problems), _MEND)
    return agent


def load_agents(tables: Mapping[str, Table], shipped: Mapping[str, str]) -> dict[str, Agent]:
    """Return the shipped profiles and the policy's own; a name of ours in the policy replaces the shipped one."""
    own = {name: _agent(name, table) for name, table in tables.items()}
    return {**{name: read_agent(name, text) for name, text in shipped.items()}, **own}


def _agent(name: str, table: Table) -> Agent:
    login = load_login(table)
    together = login is not None or table.flag("together", default=False)
    return Agent(
        name=name,
        about=table.text("about"),
        commands=table.texts("commands"),
        env=tuple(_env(table)),
        seeds=tuple(_seeds(table)),
        accesses=tuple(_access(access, alone=not together) for access in table.tables("access", known=_ACCESS_KEYS)),
        state=table.texts("state"),
        side_hosts=_hosts(table),
        least=_least(table.table("limits", known=_LEAST_KEYS)),
        login=login,
        together=together,
        data=load_data(table),
        config=load_patterns(table, "config"),
        ignore=load_patterns(table, "ignore"),
    )


def _env(table: Table) -> Iterator[tuple[str, str]]:
    for name, value in table.mapping("env"):
        where = f"{table.at('env')}.{name}"
        if not isinstance(value, str) or not value.isprintable():
            table.report.add(where, f"got {show(value)}, expected text in one line")
        elif refused(name):
            table.report.add(where, f"got {show(name)}: {refused(name)}", "take it out")
        else:
            yield name, value


def _seeds(table: Table) -> Iterator[Seed]:
    """Files of the home. None may lie below another: one of the two would be a directory."""
    paths: set[str] = set()
    folders: set[str] = set()
    for seed in table.tables("seed", known=("path", "text")):
        path, text = seed.text("path", required=True), seed.multiline("text")
        parts = path.split("/")
        if path and (parts[0] != "~" or len(parts) < 2 or not all(p not in ("", ".", "..") for p in parts[1:])):
            seed.fault("path", f"got {show(path)}, expected a path below the home", 'as in "~/.tool/settings.json"')
        elif path in paths or path in folders or not paths.isdisjoint(above(path)):
            seed.fault("path", f"{show(path)} stands there twice, or below another seed", "take one out")
        if not text or len(text) > _MAX_SEED:
            seed.fault("text", f"got {len(text)} characters, expected 1 to {_MAX_SEED}")
        paths.add(path)
        folders.update(above(path))
        yield Seed(path=path, text=text.lstrip("\n"))


def _access(table: Table, *, alone: bool) -> Access:
    """`alone`: what has no decoy is refused, since nothing would tell the agent to send anything."""
    held = alone or table.has("env") or table.has("shape")
    shape = table.text("shape", required=held)
    access = Access(
        secret=table.text("secret", required=True),
        endpoint=table.text("endpoint", required=True),
        rules=table.text("rules", required=True),
        place=table.text("place", required=True),
        format=table.text("format", "{secret}"),
        env=table.text("env", required=held),
        shape=shape,
        claims=claims_of(table, shape),
        bearer=table.flag("bearer", default=False),
    )
    if access.secret and not is_name(access.secret):
        table.fault("secret", f"got {show(access.secret)}, expected a name")
    try:
        check_shape(access.shape if held else "x{16}")
    except ShapeError as fault:
        table.fault("shape", fault.detail, fault.hint)
    return access


def _hosts(table: Table) -> tuple[str, ...]:
    texts = table.texts("side_hosts")
    for i, text in enumerate(texts):
        try:
            HostPattern.parse(text)
        except HostError as fault:
            table.report.add(f"{table.at('side_hosts')}[{i}]", fault.detail, fault.hint)
    return texts


def _least(table: Table) -> Least:
    text = table.text("memory")
    memory = load_units.parse_size(text)
    if text and memory is None:
        table.fault("memory", f"got {show(text)}", load_units.size_hint(text))
    return Least(
        memory=memory or 0,
        processes=table.number("processes", 0, low=1, high=1 << 22),
        open_files=table.number("open_files", 0, low=1, high=1 << 20),
    )


def agent_of(table: Table, agents: Mapping[str, Agent]) -> Agent | None:
    """Read a role's `agent`: the profile of that name."""
    name = table.text("agent")
    if name and name not in agents:
        table.fault("agent", f"no agent is called {show(name)}", closest(name, agents) or f"add: [agent.{name}]")
    return agents.get(name)
