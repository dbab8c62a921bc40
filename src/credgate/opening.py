"""From what was asked to a session: claim a berth, compute the jail, record the start."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from credgate import inreach, protect
from credgate.apart import LOOKS
from credgate.command import CommandError
from credgate.given import check_arguments, check_key
from credgate.limits import RunLimits, base_for, held_by, sums
from credgate.parts import Parts, Refusal
from credgate.paths import Places
from credgate.peer import Peer
from credgate.policyfile import Effective
from credgate.prepare import Asked, Network, children_offered, filter_of, jail_spec
from credgate.programdigest import program_digest
from credgate.roleneeds import agent_environment, decoy_environment, decoys_of, extra_ports, registry_environment
from credgate.runs import Run
from credgate.session import Session
from credgate.spares import Spare, bare
from credgate.standin import Borrowed, place
from credgate.treelook import TreeLook
from credgate.trees import note_written
from jail.cgroups import Base, Group
from jail.keeper_client import Berth
from jail.plan import JailSpec, under

BACKLOG = 16
SUFFIX = ".children"


def visible(mine: JailSpec, parent: JailSpec) -> None:
    """A child's command, and what it is bound with, must be seen in its parent's jail; else it is "not found".

    One answer for all: a jail must not learn from another which files of the host exist.
    """
    # A link of the parent's shows what lies behind it: the child's trees hold that, and are asked for themselves.
    links = [path for path, _ in parent.links]
    shown = [*(e.path for e in parent.system), *(t.path for t in parent.trees), parent.workdir, *links]
    for path in (*(t.path for t in mine.trees), *(path for path, _ in mine.links), mine.exe):
        if not any(under(path, tree) for tree in shown):
            raise Refusal("not_found", f"{path}: not in the parent's jail", "", 127)


def listen_for_children(places: Places, run: str) -> tuple[socket.socket, str]:
    """A listening socket below our own run directory, and its real path. Raises OSError."""
    folder = os.path.realpath(places.run)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # by the descriptor: sun_path has 108 bytes, the directory may need all of them
        listener.bind(f"/proc/self/fd/{where}/{run}{SUFFIX}")
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(where)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener, f"{folder}/{run}{SUFFIX}"


def clear_left(places: Places) -> None:
    """Remove the sockets that a daemon left which was killed. The caller holds the daemon's lock."""
    for path in places.run.glob(f"*{SUFFIX}"):
        path.unlink()


async def open_session(
    parts: Parts,
    peer: Peer,
    asked: Asked,
    chosen: Effective,
    *,
    parent: Session | None = None,
    borrowed: Borrowed | None = None,
    ahead: dict[str, Any] | None = None,
) -> Session:
    """Claim a berth, compute the jail, write run.start. `parent`: the run whose child this is. `borrowed`: what its
    launcher lent. `ahead`: nobody asks for it yet, so it takes no tree, nothing is recorded, and this is its manner.

    Raises CredgateError or JailError; nothing is left then.
    """
    policy, role = chosen.policy, chosen.policy.roles[chosen.role]
    if parent is None:  # a jail has decoys alone
        check_arguments(asked.argv)
    await check_key(policy, role, parts.places, asked.env)
    listener, path = None, ""
    caller, ports = peer if parent is None else parent.caller, extra_ports(policy, role.name)
    taken = parts.spares.take() if borrowed is not None and borrowed.descriptors else None
    placed, spare = await asyncio.to_thread(_begun, parts, caller, borrowed, ahead, ports, taken)
    try:
        if role.children:
            listener, path = listen_for_children(parts.places, spare.run)
        made = _Made(run=spare.run, berth=spare.berth, path=path, placed=placed, group=spare.group)
        session = await _session(parts, peer, asked, chosen, made, parent, borrowed, ahead=ahead is not None)
    except BaseException:
        await _forget(parts, spare, listener, path)
        raise
    session.listener, session.spare = listener, spare
    parts.spares.refill(session if ahead is None else None)  # one that waits for its command may wait long
    return session


async def _forget(parts: Parts, spare: Spare, listener: socket.socket | None, path: str) -> None:
    parts.claims.drop(spare.run)
    parts.reserved.drop(spare.run)
    await asyncio.to_thread(parts.copies.forget, spare.run)
    await asyncio.to_thread(parts.states.forget, spare.run)
    if listener is not None:
        listener.close()
        os.unlink(path)  # noqa: PTH108 - surrogates
    await asyncio.to_thread(spare.give_back, parts.keeper)
    parts.spares.refill(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """What is found out of the host before a berth is claimed; base and manner as of standin.place."""

    base: Base | None
    manner: dict[str, Any] | None
    canary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What a session is made of. path: of the socket for children, "" for none. group: one that was made ahead."""

    run: str
    berth: Berth
    path: str
    placed: _Placed
    group: Group | None


def _begun(
    parts: Parts,
    caller: Peer,
    borrowed: Borrowed | None,
    ahead: dict[str, Any] | None,
    ports: Iterable[int],
    spare: Spare | None,
) -> tuple[_Placed, Spare]:
    """All that blocks before the plan, in one go: each change of threads costs a launch as much as one of these calls.

    The berth last: where one of the others fails, only that of `spare` is to be given back.
    """
    try:
        base, manner = _place(parts, caller, borrowed, ahead)
        placed = _Placed(base=base, manner=manner, canary=os.path.realpath(parts.stand.context["hidden"][0]))
        if spare is None:
            return placed, bare(parts.keeper.claim(ports))
        if manner is None or spare.stale(parts.starter.pid, base):
            spare = spare.without_process()
        spare.berth = parts.keeper.extended(spare.berth, ports)
    except BaseException:
        if spare is not None:
            spare.give_back(parts.keeper)
        raise
    return placed, spare


async def _session(
    parts: Parts,
    peer: Peer,
    asked: Asked,
    chosen: Effective,
    made: _Made,
    parent: Session | None,
    borrowed: Borrowed | None,
    *,
    ahead: bool,
) -> Session:
    berth, placed, base = made.berth, made.placed, made.placed.base
    policy, role = chosen.policy, chosen.policy.roles[chosen.role]
    decoys = decoys_of(policy, role.name)
    spec, look, digest = await _computed(parts, asked, chosen, (made.run, berth), decoys, parent)
    spec = children_offered(replace(spec, sums=sums(base), canary=placed.canary), made.path)
    if parent is not None:
        visible(spec, parent.spec)
    await _claim(parts, spec, chosen, parent, ahead=ahead)
    run = Run(
        id=made.run,
        policy=policy,
        role=role.name,
        gateway_ip=berth.gateway,
        proxy_port=berth.proxy_port,
        caller_env=asked.env,
        decoys=decoys,
        parent="" if parent is None else parent.run.id,
    )
    session = Session(parts, peer, run, berth, spec, RunLimits(base, spec, made.group))
    if not ahead:
        if digest is None:
            digest = await asyncio.to_thread(program_digest, spec.exe)
        note_start(session, look, digest)  # on the disk with the proof
    session.chosen, session.above, session.look = chosen, parent, look
    session.caller = peer if parent is None else parent.caller
    session.borrowed, session.manner = borrowed, placed.manner
    if parent is not None:
        parent.run.adopt(run)
    return session


def _place(
    parts: Parts, caller: Peer, borrowed: Borrowed | None, ahead: dict[str, Any] | None
) -> tuple[Base | None, dict[str, Any] | None]:
    if ahead is None:
        return place(parts.starter.pid, caller.pid(), borrowed)
    return base_for(parts.starter.pid), ahead


async def _computed(
    parts: Parts,
    asked: Asked,
    chosen: Effective,
    made: tuple[str, Berth],
    decoys: Mapping[str, str],
    parent: Session | None,
) -> tuple[JailSpec, TreeLook, str | None]:
    """What `_compute` finds, on a thread: it reads files of the host that an agent may have made slow or large."""
    try:
        return await _thread(parent, partial(_compute, parts, asked, chosen, made, decoys, child=parent is not None))
    except (CommandError, OSError):
        if parent is None:
            raise
        raise Refusal("not_found", f"{asked.argv[0]}: not in the parent's jail", "", 127) from None  # see visible()


def _compute(
    parts: Parts,
    asked: Asked,
    chosen: Effective,
    made: tuple[str, Berth],
    decoys: Mapping[str, str],
    *,
    child: bool,
) -> tuple[JailSpec, TreeLook, str | None]:
    """The jail of the role, and the digest of its program. Blocks. Of a child no digest yet: whether its parent sees
    the program is asked first.
    """
    run_id, berth = made
    network = Network(gateway=berth.gateway, jail=berth.jail, proxy_port=berth.proxy_port)
    named = {
        **agent_environment(chosen.policy.roles[chosen.role]),  # first: no profile writes over a decoy
        **registry_environment(chosen.policy, chosen.role),
        **decoy_environment(chosen.policy, decoys),
    }
    spec, look = jail_spec(run_id, asked, chosen, parts.person, parts.places, parts.trust, named, network)
    inreach.refuse(chosen.policy, chosen.role, asked.env, spec)
    return spec, look, None if child else program_digest(spec.exe)


async def _thread[T](parent: Session | None, work: Callable[[], T]) -> T:
    """What a jail asked for is done where its other looks are, one at a time: it may ask again and again."""
    return await (asyncio.to_thread(work) if parent is None else LOOKS.do(parent.run.id, work))


def computed_again(session: Session, asked: Asked, chosen: Effective) -> tuple[JailSpec, TreeLook, str]:
    """What a session's jail would be if it were made now, of what is asked now, and the digest of its program. Blocks.

    Raises CredgateError.
    """
    made = (session.run.id, session.berth)
    spec, look, digest = _compute(session.parts, asked, chosen, made, session.run.decoys, child=False)
    return replace(spec, sums=session.spec.sums, canary=session.spec.canary), look, digest or ""


async def _claim(parts: Parts, spec: JailSpec, chosen: Effective, parent: Session | None, *, ahead: bool) -> None:
    """Take the work tree, and what is reserved in it. Raises CredgateError where another run stands in the way."""
    ancestors = () if parent is None else parent.lineage()  # what a child lends them they have already
    if not ahead:
        parts.claims.take(spec.run, spec, (chosen.policy.sha256, chosen.role), ancestors)
    if spec.private:
        role, known = chosen.policy.roles[chosen.role], parts.gateway.known.table()
        await _thread(parent, partial(parts.states.take, parts.places, spec, role, known))
    if spec.overlay is not None:
        await _thread(parent, partial(parts.copies.take, parts.places, spec, chosen.policy.roles[chosen.role]))
    elif spec.workdir_write:
        await asyncio.to_thread(note_written, parts.places, spec.workdir)
        parts.reserved.take(spec.run, spec.protected)


def note_start(session: Session, look: TreeLook, digest: str) -> int:
    """run.start, on its way to the disk; its number."""
    parts, run, spec = session.parts, session.run, session.spec
    role = run.role_rule
    seq = parts.ledger.append(
        "run.start",
        run=run.id,
        parent=run.parent,
        role=run.role,
        program=spec.exe,
        program_sha256=digest,
        policy_sha256=run.policy.sha256,
        seccomp_sha256=filter_of(role).sha256,
        limits=list(held_by(session.limits.base)),
        hidden=protect.named(look, spec.protected)[0],
        protected=len(spec.protected.islands),
        switches=list(role.switches()) or None,
        registries=list(run.policy.registries()) or None,
    )
    run.since = seq
    session.recorded = True
    return seq
