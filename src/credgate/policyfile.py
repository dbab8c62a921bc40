"""Which policy counts: where it is looked for, who may have written it, whether it is trusted, what stands above it.

Order: --policy, $CREDGATE_POLICY, the nearest credgate.toml of the work tree, the user's own. The first that exists
counts; when it can't be used that is an error, never a reason to take the next one.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from credgate.clientconfig import Caller
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.policytrust import check_trusted
from credgate.registries import resolve
from credgate.trees import written_before
from rules.agents import of_command
from rules.ceiling import narrow
from rules.load import MAX_BYTES, load_policy
from rules.load_agents import read_agent
from rules.load_registries import Registries
from rules.policy import Policy, Workdir
from rules.problems import PolicyError, Problem
from rules.registries import Client, Registry, clients_of, parse_registry
from rules.tables import closest
from rules.tree_policy import check_tree_policy

if TYPE_CHECKING:
    from credgate.prepare import Asked

CEILING = Path("/etc/credgate/policy.toml")
TREE_NAME = "credgate.toml"
VARIABLE = "CREDGATE_POLICY"
ROOT = frozenset({0})
REFUSED = 125  # exit status of a run that does not start


class Origin(StrEnum):
    """How a policy file was found."""

    FLAG = "--policy"
    ENV = "$CREDGATE_POLICY"
    TREE = "work tree"
    USER = "user's configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A policy file that was opened and checked: absolute path, and the bytes that were read once.

    `caller`: whose clients are asked for host_from.
    """

    path: Path
    origin: Origin
    data: bytes
    caller: Caller = field(default_factory=lambda: Caller(env={}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The policy as it counts for `role`. `ceiling` is the file above it, where there is one."""

    policy: Policy
    role: str
    path: Path
    origin: Origin
    ceiling: Path | None = None


class PolicyMissing(CredgateError):
    """There is no policy anywhere, so nothing starts."""


class PolicyUnsafe(CredgateError):
    """The file can't be read, or others than its user could have written it."""


class PolicyInvalid(CredgateError):
    """The policy has faults: `problems` holds them all, `detail` the first few."""

    def __init__(self, path: Path, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(f"{p.where}: {p.message}" if p.where else p.message for p in self.problems[:3])
        rest = len(self.problems) - 3
        detail = f"policy {path}: {shown}" + (f"; and {rest} more" if rest > 0 else "")
        hint = self.problems[0].hint if len(self.problems) == 1 else f"see them all: credgate policy check {path}"
        super().__init__("policy_invalid", detail, hint)


class RoleUnknown(CredgateError):
    """The role asked for is not in the policy, or none was asked for and the policy doesn't say which."""


@cache
def shipped_packs() -> Mapping[str, str]:
    """Return the packs that come with this version, by name."""
    return _texts(files("rules") / "packs")


@cache
def shipped_agents() -> Mapping[str, str]:
    """Return the profiles of agents that come with this version, by name."""
    return _texts(files("rules") / "packs" / "agents")


def _texts(folder: Traversable) -> Mapping[str, str]:
    return {p.name.removesuffix(".toml"): p.read_text("utf-8") for p in folder.iterdir() if p.name.endswith(".toml")}


def find_for_run(asked: "Asked", places: Places, ceiling: Path = CEILING) -> Effective:
    """Return the policy as it counts for a run that was asked for, in the real work tree.

    Raises CredgateError, with exit status 125.
    """
    cwd = Path(asked.cwd)
    workdir = (cwd / asked.workdir).resolve()
    try:
        try:
            found = find_policy(
                explicit=asked.policy or None, env=asked.env, cwd=cwd, workdir=workdir, config_dir=places.config
            )
        except PolicyMissing:
            _offer_agent(asked.argv[0])
            raise
        found = asked_by(found, asked.env, places, str(workdir))
        return effective(
            found,
            role=asked.role,
            workdir=workdir,
            state_dir=places.state,
            read_only=asked.read_only,
            ceiling=ceiling,
        )
    except CredgateError as error:
        error.exit_status = REFUSED
        raise


def _offer_agent(command: str) -> None:
    """Raise PolicyMissing in three lines, where the command is an agent that a policy can be written for."""
    agents = tuple(read_agent(name, text) for name, text in shipped_agents().items())
    agent = of_command(command, agents)
    if agent is None:
        return
    raise PolicyMissing(
        "policy_missing",
        f"no policy yet, so {agent.name} may reach nothing",
        f"credgate init {agent.name} writes one for {agent.about}, and asks for its key\n"
        f"then again: credgate run -- {agent.commands[0]}",
        exit_status=2,
    )


def asked_by(found: Found, env: Mapping[str, str], places: Places, workdir: str = "") -> Found:
    """The same file, with whose clients are asked. Neither `workdir` nor a tree that a jail wrote is believed."""
    written = (*written_before(places), *([workdir] if workdir else []))
    return replace(found, caller=Caller(env=env, written=tuple(os.path.realpath(tree) for tree in written)))


def find_policy(*, explicit: str | None, env: Mapping[str, str], cwd: Path, workdir: Path, config_dir: Path) -> Found:
    """Open the first policy of the search order. A relative --policy or $CREDGATE_POLICY starts at `cwd`.

    Raises PolicyMissing where there is none, PolicyUnsafe where it can't be read or its owner or mode is wrong.
    """
    if explicit is not None:
        return open_policy(cwd / explicit, Origin.FLAG)
    if env.get(VARIABLE):
        return open_policy(cwd / env[VARIABLE], Origin.ENV)
    in_tree = _nearest(Path(os.path.normpath(workdir)), Path(env.get("HOME") or "/"))
    if in_tree is not None:
        return open_policy(in_tree, Origin.TREE)
    own = config_dir / "policy.toml"
    if os.path.lexists(own):
        return open_policy(own, Origin.USER)
    raise PolicyMissing(
        "policy_missing",
        f"no policy: none by --policy or ${VARIABLE}, no {TREE_NAME} in {workdir}, no {own}",
        f"write a first one: credgate init; say in {own} which endpoints, secrets and roles there are; "
        "see that it loads: credgate policy check",
        exit_status=2,
    )


def _nearest(workdir: Path, home: Path) -> Path | None:
    """Look upwards from the work tree to the root of its repository; never in the home directory or above it."""
    for folder in (workdir, *workdir.parents):
        if folder == home or folder == Path("/"):
            return None
        if os.path.lexists(folder / TREE_NAME):
            return folder / TREE_NAME
        if os.path.lexists(folder / ".git"):
            return None
    return None


def open_policy(path: Path, origin: Origin, owners: frozenset[int] | None = None) -> Found:
    """Read a policy file once, from the descriptor that was checked.

    `owners` are the uids that may own it: this process's and root by default. Raises PolicyUnsafe.
    """
    try:
        # O_NONBLOCK: a FIFO of that name would block the open until somebody writes
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise PolicyUnsafe("policy_unreadable", f"policy {path}: {why}", "check the path", exit_status=2) from error
    try:
        _check_facts(path, os.fstat(fd), ROOT | {os.geteuid()} if owners is None else owners)
        data = _read(fd)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise PolicyUnsafe("policy_unreadable", f"policy {path}: {why}", "check the file", exit_status=2) from error
    finally:
        os.close(fd)
    return Found(path=_absolute(path), origin=origin, data=data)


def _read(fd: int) -> bytes:
    """The whole file, or one byte more than it may have."""
    data = b""
    while len(data) <= MAX_BYTES and (part := os.read(fd, min(1 << 16, MAX_BYTES + 1 - len(data)))):
        data += part
    return data


def _check_facts(path: Path, facts: os.stat_result, owners: frozenset[int]) -> None:
    mode = stat.S_IMODE(facts.st_mode)
    if not stat.S_ISREG(facts.st_mode):
        raise PolicyUnsafe("policy_not_a_file", f"policy {path}: not a regular file", "name the file itself")
    if facts.st_uid not in owners:
        expected = " or ".join(str(uid) for uid in sorted(owners, reverse=True))
        raise PolicyUnsafe(
            "policy_owner",
            f"policy {path}: owner is uid {facts.st_uid}, expected uid {expected}",
            "copy it to a file of your own after reading it",
        )
    if facts.st_nlink > 1 and facts.st_uid != 0:
        raise PolicyUnsafe(
            "policy_linked",
            f"policy {path}: it has {facts.st_nlink} names (hard links), expected one",
            "another name may lie where a jail can write; copy it to a file of its own",
        )
    if mode & 0o022:
        raise PolicyUnsafe(
            "policy_mode",
            f"policy {path}: mode is {mode:04o}, expected one that only the owner can write",
            f"see what others may have changed in it; then: chmod go-w {path}",
        )


def load(found: Found) -> Policy:
    """Return the policy of one file, judged alone, its host_from resolved by asking the clients.

    Raises PolicyInvalid with all faults, ClientError where a client can't be asked.
    """
    return _loaded(found, resolve(clients_of(found.data), found.caller))


def load_unasked(found: Found) -> Policy:
    """As load, with a stand-in for each registry of host_from: for looking at the rest. Raises PolicyInvalid."""
    stand_in = (parse_registry("https://registry.invalid/"),)
    return _loaded(found, dict.fromkeys(clients_of(found.data), stand_in))


def _loaded(found: Found, registries: Registries) -> Policy:
    try:
        return _parsed(found.data, str(found.path.parent), tuple(registries.items()))
    except PolicyError as fault:
        raise PolicyInvalid(found.path, fault.problems) from fault


@lru_cache(maxsize=8)
def _parsed(data: bytes, base_dir: str, registries: tuple[tuple[Client, tuple[Registry, ...]], ...]) -> Policy:
    """By all that it is computed from. What may have changed since, the file and who wrote it, is read anew before."""
    return load_policy(
        data, packs=shipped_packs(), agents=shipped_agents(), base_dir=base_dir, registries=dict(registries)
    )


def effective(
    found: Found,
    *,
    role: str,
    workdir: Path,
    state_dir: Path,
    read_only: bool = False,
    ceiling: Path = CEILING,
) -> Effective:
    """Return the policy as it counts for a run in `workdir` under `role` ("": the policy's own choice).

    Raises PolicyInvalid, RoleUnknown, PolicyUnsafe (of the ceiling), and PolicyUntrusted where the file lies in a tree
    that the jail can write, or was found in the work tree, and isn't the accepted one.
    """
    if found.origin is Origin.TREE:
        check_trusted(found.path, found.data, state_dir)  # before anything of it is parsed
    judged = untrusted(found, role=role, ceiling=ceiling)
    writable = judged.policy.roles[judged.role].workdir is Workdir.WRITE and not read_only
    if found.origin is Origin.TREE or (writable and inside(found.path, workdir)):
        check_trusted(found.path, found.data, state_dir)
        check_tree(found, judged.policy)
    return judged


def untrusted(found: Found, *, role: str, ceiling: Path = CEILING) -> Effective:
    """As effective, without asking who could have written the file: for looking at it, not for a run."""
    policy = load(found)
    chosen = choose_role(policy, role)
    above = read_ceiling(ceiling, found.caller)
    return Effective(
        policy=policy if above is None else under_ceiling(found, policy, above),
        role=chosen,
        path=found.path,
        origin=found.origin,
        ceiling=None if above is None else ceiling,
    )


def choose_role(policy: Policy, asked: str) -> str:
    """Return the role asked for, or the policy's default_role, or its only one. Raises RoleUnknown."""
    roles = list(policy.roles)
    name = asked or policy.default_role or (roles[0] if len(roles) == 1 else "")
    if name in policy.roles:
        return name
    if not roles:
        raise RoleUnknown("role_unknown", "the policy has no role", "add one: [role.dev]", exit_status=2)
    if name:
        raise RoleUnknown("role_unknown", f"no role is called {name!r}", closest(name, roles), exit_status=2)
    raise RoleUnknown(
        "role_unknown", "no role given, and the policy has several", f"add: --role {'|'.join(roles)}", exit_status=2
    )


def inside(path: Path, tree: Path) -> bool:
    """Tell whether a file lies in a tree, by its name or by where its links lead."""
    return _absolute(path).is_relative_to(_absolute(tree)) or path.resolve().is_relative_to(tree.resolve())


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def check_tree(found: Found, policy: Policy) -> None:
    """Raise PolicyInvalid where the policy holds what one of the work tree may not."""
    try:
        check_tree_policy(policy, "put it into your own policy, outside the work tree (credgate init), or --read-only")
    except PolicyError as fault:
        raise PolicyInvalid(found.path, fault.problems) from fault


def read_ceiling(path: Path, caller: Caller | None = None) -> Policy | None:
    """Return the ceiling, None where there is none. Raises PolicyUnsafe, PolicyInvalid: a broken one stops all.

    Its host_from means what the clients of `caller` are configured for, as that of the policy below it does.
    """
    if not os.path.lexists(path):
        return None
    found = open_policy(path, Origin.FLAG, ROOT)
    return load(found if caller is None else replace(found, caller=caller))


def under_ceiling(found: Found, policy: Policy, above: Policy) -> Policy:
    """Return the policy under a ceiling. Raises PolicyInvalid with everything that reaches above it."""
    try:
        return narrow(policy, above)
    except PolicyError as fault:
        raise PolicyInvalid(found.path, fault.problems) from fault
