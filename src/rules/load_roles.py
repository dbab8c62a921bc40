"""[role.NAME] and [[test]] tables into values."""

import re
from collections import Counter
from collections.abc import Callable, Mapping

from rules import load_units
from rules.agents import Agent
from rules.agentstate import AgentState
from rules.envnames import credential_value, refused
from rules.load_agents import agent_of
from rules.parse import METHODS
from rules.policy import Budget, Limits, OnAlarm, Role, TestCase, Workdir
from rules.reasons import Reason
from rules.tables import Table, closest, show
from rules.treenames import TreePattern, TreePatternError, above

ROLE_KEYS = (
    *("bindings", "endpoints", "workdir", "tools", "read", "env", "deadline", "limits", "on_alarm"),
    *("allow_debug", "allow_userns", "publish", "children", "budget", "route"),
    *("readonly", "hide", "show", "agent", "agent_state", "state"),
)
ROLE_LATER = ("approve",)
_FIRST_FREE, _LAST_PORT, _MAX_PUBLISHED = 1024, 65535, 16
LIMIT_KEYS = ("memory", "processes", "open_files", "cpu", "file_size")
_OF_GIT = re.compile(r"[\[\]{}\\]")  # what reads as itself here would hide or hold nothing of what is meant
_ONE = 'write a pattern for each, and "?" for a bracket that is in a name'
TEST_KEYS = ("role", "method", "url", "body", "verdict", "reason", "rule")
BUDGET_KEYS = ("requests", "bytes_out")


def load_roles(tables: Mapping[str, Table], agents: Mapping[str, Agent]) -> dict[str, Role]:
    """Return the roles; that their names lead somewhere is checked later."""
    return {name: _role(name, table, agents) for name, table in tables.items()}


def _role(name: str, table: Table, agents: Mapping[str, Agent]) -> Role:
    agent = agent_of(table, agents)
    limits = _limits(table.table("limits", known=LIMIT_KEYS))
    if agent is not None:
        _enough(table, agent, limits)
    return Role(
        name=name,
        bindings=table.texts("bindings"),
        endpoints=table.texts("endpoints"),
        workdir=table.choice("workdir", Workdir, Workdir.READ),
        tools=_paths(table, "tools"),
        read=_paths(table, "read"),
        readonly=_patterns(table, "readonly"),
        hide=_patterns(table, "hide"),
        show=_patterns(table, "show", literal=True),
        env=_env(table),
        allow_debug=table.flag("allow_debug", default=False),
        allow_userns=table.flag("allow_userns", default=False),
        publish=_ports(table),
        children=table.texts("children"),
        deadline=_duration(table, "deadline", 0) or None,
        limits=limits,
        budget=_budget(table.table("budget", known=BUDGET_KEYS)),
        on_alarm=table.choice("on_alarm", OnAlarm, OnAlarm.NOTIFY),
        route=table.text("route", "default"),
        agent=agent,
        agent_state=_agent_state(table, agent),
        state=_state(table),
    )


def _agent_state(table: Table, agent: Agent | None) -> AgentState:
    chosen = table.choice("agent_state", AgentState, AgentState.FRESH)
    if chosen is AgentState.COPY and (agent is None or not agent.private()):
        who = "no agent" if agent is None else f"{agent.name}, of whose files nothing is known to come back"
        table.fault("agent_state", f'got "copy" with {who}', "take it out")
    return chosen


def _state(table: Table) -> tuple[str, ...]:
    """Below the home alone, where the copy goes; none below another."""
    paths = _paths(table, "state")
    trees = Counter(path.rstrip("/") for path in paths)
    for i, path in enumerate(paths):
        where = f"{table.at('state')}[{i}]"
        if not path.startswith("~/"):
            table.report.add(where, f"got {show(path)}, expected a path below the home", 'as in "~/.config/gh"')
        elif trees[path.rstrip("/")] > 1 or not trees.keys().isdisjoint(above(path.rstrip("/"))):
            table.report.add(where, f"{show(path)} lies below another", "take one out")
    return tuple(path.rstrip("/") for path in paths)


def _enough(table: Table, agent: Agent, limits: Limits) -> None:
    """An agent that dies of a limit says nothing of it, so what it is known to need is asked for here."""
    for key in ("memory", "processes", "open_files"):
        got, least = getattr(limits, key), getattr(agent.least, key)
        if got < least:
            table.fault("limits", f"{key}: got {got}, and {agent.name} needs {least}", "raise it, or leave it out")


def _budget(table: Table) -> Budget:
    return Budget(
        requests=table.number("requests", 0, low=1, high=10**12) or None,
        bytes_out=_size(table, "bytes_out", 0, low=0) or None,
    )


def _paths(table: Table, key: str) -> tuple[str, ...]:
    paths = table.texts(key)
    for i, path in enumerate(paths):
        where = f"{table.at(key)}[{i}]"
        parts = path.rstrip("/").split("/")
        if parts[0] not in ("", "~") or ".." in parts:
            table.report.add(where, f"got {show(path)}, expected a whole path", 'start with "/" or "~/", without ".."')
        elif len([p for p in parts[1:] if p not in ("", ".")]) == 0:
            table.report.add(where, f"got {show(path)}, which would bind everything", "name the files that are needed")
    return paths


def _patterns(table: Table, key: str, *, literal: bool = False) -> tuple[str, ...]:
    """Patterns below the work tree; `literal`: names of files, one by one."""
    texts = table.texts(key)
    for i, text in enumerate(texts):
        where = f"{table.at(key)}[{i}]"
        try:
            pattern = TreePattern.parse(text)
        except TreePatternError as fault:
            table.report.add(where, fault.detail, fault.hint)
        else:
            if not literal and (_OF_GIT.search(text) or text.startswith("!")):
                table.report.add(where, f"got {show(text)}: of a .gitignore's marks * and ? alone are read here", _ONE)
            if literal and (not pattern.literal or pattern.directory):
                table.report.add(where, f"got {show(text)}, expected the path of one file", "name each file to show")
    return texts


def _ports(table: Table) -> tuple[int, ...]:
    """Ports of `publish`. Below 1024 the host lets only root listen, and the daemon is the user's."""
    ports: list[int] = []
    for i, port in enumerate(table.numbers("publish")):
        if not _FIRST_FREE <= port <= _LAST_PORT:
            table.report.add(f"{table.at('publish')}[{i}]", f"got {port}, expected {_FIRST_FREE} to {_LAST_PORT}")
        elif port in ports:
            table.report.add(f"{table.at('publish')}[{i}]", f"{port} stands there twice", "take one out")
        else:
            ports.append(port)
    if len(ports) > _MAX_PUBLISHED:
        table.fault("publish", f"got {len(ports)} ports, expected at most {_MAX_PUBLISHED}")
    return tuple(ports)


def _env(table: Table) -> tuple[str, ...]:
    names = table.texts("env")
    for i, entry in enumerate(names):
        where = f"{table.at('env')}[{i}]"
        name, equals, value = entry.partition("=")
        if equals:
            what = "a value that looks like a credential" if credential_value(value) else "a value"
            table.report.add(where, f"got {what} for {show(name)}, expected a name alone", f'write "{name}"')
        elif refused(name):
            table.report.add(where, f"got {show(name)}: {refused(name)}", _env_hint(refused(name)))
    return names


def _env_hint(why: str) -> str:
    if "credential" in why:
        return 'bind the secret to an endpoint; a placeholder = { env = "NAME" } gives the jail a decoy'
    return "take it out"


def _limits(table: Table) -> Limits:
    base = Limits()
    return Limits(
        memory=_size(table, "memory", base.memory, low=16 << 20),
        processes=table.number("processes", base.processes, low=2, high=1 << 22),
        open_files=table.number("open_files", base.open_files, low=16, high=1 << 20),
        cpu=_duration(table, "cpu", base.cpu),
        file_size=_size(table, "file_size", base.file_size, low=1),
    )


def _size(table: Table, key: str, default: int, *, low: int) -> int:
    value = _quantity(table, key, default, load_units.parse_size, load_units.size_hint)
    if value < low:
        table.fault(key, f"got {value} bytes, expected at least {low}")
    return value


def _duration(table: Table, key: str, default: int) -> int:
    return _quantity(table, key, default, load_units.parse_duration, load_units.duration_hint)


def _quantity(
    table: Table, key: str, default: int, parse: Callable[[str], int | None], hint: Callable[[str], str]
) -> int:
    text = table.text(key)
    if not text:
        return default
    value = parse(text)
    if value is None:
        table.fault(key, f"got {show(text)}", hint(text))
        return default
    return value


def load_tests(tables: list[Table], default_role: str) -> tuple[TestCase, ...]:
    """Return the [[test]] cases."""
    return tuple(_test(table, default_role) for table in tables)


def _test(table: Table, default_role: str) -> TestCase:
    verdict = table.text("verdict", required=True)
    if verdict == "approve":
        table.fault("verdict", "not yet: approvals are not built", 'write "allow" or "deny"')
    elif verdict and verdict not in ("allow", "deny"):
        table.fault("verdict", f'got {show(verdict)}, expected "allow" or "deny"')
    url = table.text("url", required=True)
    if url and not url.startswith(("https://", "http://")):
        table.fault("url", f"got {show(url)}, expected https://HOST/PATH or http://HOST/PATH")
    method = table.text("method", "GET")
    if method.upper() in METHODS and method not in METHODS:
        table.fault("method", f"got {show(method)}, expected a method in upper case", f'write "{method.upper()}"')
    role = table.text("role", default_role)
    if not role:
        table.fault("role", "missing, and the policy has no default_role", "add: role = ...")
    return TestCase(
        role=role,
        method=method,
        url=url,
        verdict=verdict,
        body=_sent(table),
        reason=_reason(table),
        rule=table.text("rule"),
    )


def _sent(table: Table) -> str | None:
    """The body of a case. It may span lines, which no other text of a policy does."""
    return table.multiline("body") if table.has("body") else None


def _reason(table: Table) -> str:
    word = table.text("reason")
    known = [r.value for r in Reason]
    if word and word not in known:
        table.fault("reason", f"got {show(word)}, expected a reason code of docs/reasons.md", closest(word, known))
    return word
