"""From what the user asked to what the jail will be: work tree, command, trees, environment. Reads the host, changes
nothing. Whatever is not as the role wants it is an error with a mend, never something weaker.
"""

import errno
import os
import platform
import pwd
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from credgate import hostsockets, stateenter
from credgate.clientenv import Inside, build_environment, git_beside
from credgate.command import CREDENTIALS, Command, Host, find_command
from credgate.copies import overlay
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.policyfile import Effective
from credgate.protect import protection
from credgate.seeding import seeded
from credgate.treelook import TreeLook
from credgate.trees import refuse_planted, written_before
from credgate.trust import INSIDE_BUNDLE, Stores, Trust, stores
from jail import landlock, seccomp
from jail.plan import CLIENT_AT, ETC_ALLOWED, JailSpec, Protection, SystemEntry, Tree, private_trees, under
from rules.envnames import credential_value
from rules.policy import Policy, Role, Workdir

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
CHECK_NAME = "credgate-check.invalid"  # RFC 6761: never resolves anywhere; asked by the look from inside
REFUSED = 125
CLIENT = Path(seccomp.__file__).parent / "inside" / "credgate-child"
NESTED = 64  # user namespaces of a jail with allow_userns: a browser makes a handful


class PrepareError(CredgateError):
    """The run can't be made as asked; exit_status 125."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(code, detail, hint, REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `credgate run` sent: the caller's own words, checked for type alone."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    policy: str
    role: str
    workdir: str
    read_only: bool
    env_names: tuple[str, ...]
    groups: tuple[int, ...] = ()  # the launcher's, by the kernel's word

    @classmethod
    def parse(cls, body: Mapping[str, Any], groups: tuple[int, ...] = ()) -> "Asked":
        """Build from the JSON of the control socket and the peer's groups; raises PrepareError for another shape."""
        try:
            return cls(
                argv=tuple(map(_text, body["argv"])),
                cwd=_text(body["cwd"]),
                env={_text(k): _text(v) for k, v in body["env"].items()},
                policy=_text(body["policy"]),
                role=_text(body["role"]),
                workdir=_text(body["workdir"]),
                read_only=body["read_only"] is True,
                env_names=tuple(map(_text, body["env_names"])),
                groups=groups,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PrepareError("bad_request", f"run.open: {type(error).__name__}: {error}") from None


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"got {type(value).__name__}, expected text without NUL")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The ordinary user that everything of a run belongs to."""

    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def current(cls, env: Mapping[str, str]) -> "Person":
        """This process's user; HOME of `env` where it is absolute. Raises PrepareError for uid 0."""
        if os.geteuid() == 0:
            raise PrepareError("uid_zero", "the daemon runs as uid 0", "start `credgate run --user NAME` instead")
        entry = pwd.getpwuid(os.geteuid())
        home = env.get("HOME", "")
        real = os.path.realpath(home if home.startswith("/") else entry.pw_dir)
        home = f"/home/{entry.pw_name}" if real == "/" or any(under(real, s) for s in SYSTEM) else real
        return cls(uid=entry.pw_uid, gid=os.getegid(), name=entry.pw_name, home=home)


def work_tree(asked: Asked, role: Role, person: Person, places: Places) -> tuple[str, bool]:
    """Real path of the work tree, and whether the jail may write it. Raises PrepareError for one that is refused."""
    chosen = asked.workdir or asked.cwd
    real = os.path.realpath(Path(asked.cwd, chosen))
    if not Path(real).is_dir():
        raise PrepareError("workdir_missing", f"{chosen}: not a directory", "give --workdir DIR")
    if not os.access(real, os.R_OK | os.X_OK):
        raise PrepareError(
            "workdir_closed", f"{real}: {person.name} can't read it", "choose a tree of theirs with --workdir"
        )
    refuse_planted(os.path.normpath(Path(asked.cwd, chosen)), written_before(places))
    _refuse_exposing(real, person, places)
    write = role.workdir is not Workdir.READ and not asked.read_only
    if write and not os.access(real, os.W_OK):
        raise PrepareError(
            "workdir_not_writable", f"{real}: {person.name} can't write it, the role wants to", "or give --read-only"
        )
    if write:
        _refuse_our_own(real)
    return real, write


def _refuse_our_own(tree: str) -> None:
    """A writable tree that this very program runs from: what an agent writes there the next run would execute."""
    ours = [sys.prefix, sys.base_prefix, sys.executable, *sys.path]
    hit = next((path for path in map(os.path.realpath, ours) if under(path, tree)), None)
    if hit:
        raise PrepareError(
            "workdir_runs_us", f"{tree}: credgate itself runs from {hit}", "install it elsewhere, or give --read-only"
        )


def _refuse_exposing(real: str, person: Person, places: Places) -> None:
    """`/`, the home directory, system trees, and whatever holds or is part of our own state."""
    if real == "/" or under(person.home, real) or any(under(real, s) or under(s, real) for s in SYSTEM):
        raise PrepareError("workdir_refused", f"{real}: too wide for a work tree", "choose a project's directory")
    kept = [str(Path(person.home, name)) for name in CREDENTIALS]
    settings = Path(real).parent == Path(person.home) and Path(real).name.startswith(".")
    if settings or any(under(real, path) or under(path, real) for path in kept):
        raise PrepareError("workdir_refused", f"{real}: holds settings or keys", "choose a project's directory")
    expose(real, places)


def expose(tree: str, places: Places) -> None:
    """Raise PrepareError where binding `tree` would show ledger, keys, socket or policy to the jail."""
    for own in (places.state, places.config):
        mine = os.path.realpath(own)
        if under(mine, tree) or under(tree, mine):
            raise PrepareError("tree_exposes_state", f"{tree}: holds or is part of {mine}", "choose another tree")


def refuse_wide(tree: str, person: Person) -> None:
    """Raise PrepareError for a tree that holds the home directory: keys, tokens and history would be in the jail."""
    if under(person.home, tree):
        raise PrepareError(
            "tree_too_wide",
            f"{tree}: holds your home directory",
            "name narrower trees; install the command in a directory of its own",
        )


def refuse_group_trees(trees: Sequence[str], person: Person, groups: tuple[int, ...]) -> None:
    """Supplementary groups can't be dropped without root (measured): what only they open is not bound."""
    kept = set(groups) - {person.gid}
    for tree in trees:
        facts = Path(tree).stat()
        by_group = facts.st_gid in kept and facts.st_uid != person.uid and not facts.st_mode & 0o005
        if by_group:
            raise PrepareError(
                "group_tree", f"{tree}: open to you by group {facts.st_gid} alone", "choose another tree"
            )


def entries(paths: Sequence[str]) -> tuple[SystemEntry, ...]:
    """Those that the host has, as it has them."""
    return tuple(SystemEntry(path=path, link=link) for path in paths if (link := _link(path)) is not None)


def _link(path: str) -> str | None:
    """What a link leads to, "" for what is none, None where nothing is."""
    try:
        return os.readlink(path)
    except OSError as error:
        return "" if error.errno == errno.EINVAL else None


def _named_trees(
    role: Role, person: Person, places: Places, written: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Real paths of the role's `tools` and `read`, and links where a name is one. Raises PrepareError, TreeError."""
    trees, links = [], []
    for name in (*role.tools, *role.read):
        path = os.path.normpath(person.home + name[1:] if name.startswith("~/") else name)
        refuse_planted(path, written)
        real = os.path.realpath(path)
        if not os.path.exists(real):  # noqa: PTH110 - surrogates
            raise PrepareError("tree_missing", f"role {role.name}: {name}: not found", "take it out of the role")
        expose(real, places)
        trees.append(real)
        if real != path:
            links.append((path, real))
    return trees, links


def check_values(role: Role, env: Mapping[str, str]) -> None:
    """The names were judged when the policy was loaded; here the values that this caller really has."""
    for name in role.env:
        if credential_value(env.get(name, "")):
            what, mend = f"{name}: its value looks like a credential", "bind it as a secret; take it out of `env`"
            raise PrepareError("env_credential", what, mend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The berth's addresses, as the keeper told."""

    gateway: str
    jail: str
    proxy_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What of the host a jail sees. `named`: real paths of the role's own trees, whose directories go on PATH."""

    workdir: str
    write: bool
    command: Command
    named: tuple[str, ...]
    trees: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    look: TreeLook
    protected: Protection


def _lent(asked: Asked, role: Role, person: Person, places: Places) -> Lent:
    """Work tree, command and trees, each judged. Raises CredgateError for what is refused."""
    workdir, write = work_tree(asked, role, person, places)
    written = [*written_before(places), workdir]
    named, links = _named_trees(role, person, places, written)
    host = Host(
        path=asked.env.get("PATH", os.defpath),
        cwd=asked.cwd,
        home=person.home,
        system=SYSTEM,
        written=written,
        tools=named,
    )
    command = find_command(asked.argv[0], host)
    trees = tuple(dict.fromkeys([*command.trees, *named]))
    for tree in trees:
        expose(tree, places)
        refuse_wide(tree, person)
    look = TreeLook(workdir, role)
    hostsockets.refuse([workdir, *trees], look.visit)
    refuse_group_trees([workdir, *trees], person, asked.groups)
    return Lent(
        workdir=workdir,
        write=write,
        command=command,
        named=tuple(named),
        trees=trees,
        links=tuple(dict.fromkeys([*command.links, *links])),
        look=look,
        protected=protection(look, role, person.home, write=write),
    )


def jail_spec(
    run: str,
    asked: Asked,
    chosen: Effective,
    person: Person,
    places: Places,
    trust: Trust,
    decoys: Mapping[str, str],
    network: Network,
) -> tuple[JailSpec, TreeLook]:
    """Everything that the plan is computed from, and what the work tree holds. Raises CredgateError: not found, ..."""
    policy, role = chosen.policy, chosen.policy.roles[chosen.role]
    lent = _lent(asked, role, person, places)
    cwd = _cwd(asked, lent)
    check_values(role, asked.env)
    shown = _inside(policy, role, person, lent, network, cwd)
    trusted = stores(trust, person.home, lent.trees, lent.workdir, asked.env.get("JAVA_HOME", ""))
    env = build_environment(asked.env, role.env, asked.env_names, {**trusted.env, **decoys}, shown)
    spec = JailSpec(
        run=run,
        uid=person.uid,
        gid=person.gid,
        user=person.name,
        home=person.home,
        workdir=lent.workdir,
        workdir_write=lent.write,
        cwd=cwd,
        argv=asked.argv,
        exe=lent.command.exe,
        env=tuple(env.items()),
        system=entries(SYSTEM),
        etc=entries([f"/etc/{name}" for name in ETC_ALLOWED]),
        trees=tuple(Tree(path=tree) for tree in lent.trees),
        links=lent.links,
        files=seeded(role.agent, person.home, cwd, decoys, [lent.workdir, *lent.trees]),
        protected=lent.protected,
        overlay=overlay(places, run) if lent.write and role.workdir is Workdir.COPY else None,
        landlock=_landlock(person.home, lent.workdir if lent.write else "", userns=role.allow_userns),
    )
    return _bounded(_stated(_entrusted(spec, trust, trusted), role, places), role, network), lent.look


def _entrusted(spec: JailSpec, trust: Trust, found: Stores) -> JailSpec:
    check = {"denied_name": CHECK_NAME, "bundle": INSIDE_BUNDLE, "bundle_sha256": trust.bundle_sha256}
    return replace(spec, trust=found.mounts, copied=found.copied, check=check)


def _stated(spec: JailSpec, role: Role, places: Places) -> JailSpec:
    """With the private copies of what the role names of the home, and of its agent's own files."""
    state = stateenter.wanted(role, spec.home, [spec.workdir, *(tree.path for tree in spec.trees)])
    single = tuple((f"{os.path.realpath(spec.home)}/{name}", f"{spec.home}/{name}") for name in state.files)
    bound = stateenter.bound(places, spec.run, spec.home, state.directories)
    return replace(spec, private=bound, copied=(*spec.copied, *single))


def _cwd(asked: Asked, lent: Lent) -> str:
    cwd = os.path.realpath(asked.cwd)
    return cwd if under(cwd, lent.workdir) else lent.workdir


def _bounded(spec: JailSpec, role: Role, network: Network) -> JailSpec:
    """With its addresses, the role's limits and its filter."""
    return replace(
        spec,
        gateway=network.gateway,
        jail_ip=network.jail,
        proxy_port=network.proxy_port,
        memory=role.limits.memory,
        processes=role.limits.processes,
        open_files=role.limits.open_files,
        cpu=role.limits.cpu,
        file_size=role.limits.file_size,
        deadline=role.deadline,
        user_namespaces=NESTED if role.allow_userns else 0,
        seccomp=filter_of(role).bpf.hex(),
    )


def children_offered(spec: JailSpec, socket: str) -> JailSpec:
    """The spec with the socket for child runs and the program that asks, on PATH; unchanged for "" (no children)."""
    if not socket:
        return spec
    folder = str(Path(CLIENT_AT).parent)
    env = tuple((name, f"{value}:{folder}" if name == "PATH" else value) for name, value in spec.env)
    return replace(spec, children=socket, client=CLIENT.read_text(encoding="ascii"), env=env)


def filter_of(role: Role) -> seccomp.Compiled:
    """The system-call filter that the role's switches ask for."""
    return seccomp.compile_filter(arch=platform.machine(), debug=role.allow_debug, userns=role.allow_userns)


def _landlock(home: str, writable: str, *, userns: bool = False) -> dict[str, object]:
    """Landlock goes up from a file through every mount point, and a right of an ancestor is one of the tree's: sockets
    and FIFOs can't be made in a private tree that a writable work tree lies in, or they could be in that one too.
    """
    private = private_trees(home)
    around = [tree for tree in private if writable and under(writable, tree)]
    return landlock.plan_for(
        landlock.abi(),
        read=["/"],
        write=[*around, writable] if writable else [],
        execute_all=True,
        dev_write=["/dev"],
        tcp_ports=None,  # servers of the jail's own on its loopback; the namespace is the boundary
        private=[tree for tree in private if tree not in around],
        change=["/proc"] if userns else [],  # where the maps of a new user namespace are written
    )


def _inside(policy: Policy, role: Role, person: Person, lent: Lent, network: Network, cwd: str) -> Inside:
    hosts = [e.host.text for e in policy.endpoints_of(role.name) if e.tls and e.port == 443 and e.host.exact]
    return Inside(
        gateway=network.gateway,
        proxy_port=network.proxy_port,
        user=person.name,
        home=person.home,
        cwd=cwd,
        path=(*lent.command.path, *(tree for tree in lent.named if Path(tree).is_dir())),
        shell="/bin/bash" if Path("/bin/bash").exists() else "/bin/sh",
        git=git_beside(hidden=bool(lent.protected.hidden), held=lent.write),
        git_hosts=tuple(hosts),
        ssh=any(e.listen for e in policy.endpoints_of(role.name)),
    )
