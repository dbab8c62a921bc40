"""`credgate prove` in the daemon: two jails of a role, every guard tried in one with the other as its neighbour, every
control run anew. Nothing is executed in either.
"""

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from credgate.closing import close
from credgate.errors import CredgateError
from credgate.limits import RunLimits
from credgate.opening import open_session
from credgate.parts import Ending, Parts
from credgate.peer import Peer
from credgate.policyfile import Effective, Origin, find_for_run
from credgate.prepare import Asked, PrepareError
from credgate.proof import Shown
from credgate.session import Session
from credgate.stand import BURST, StandProcess, limits_of, survivors, words
from credgate.trying import tried
from jail.errors import JailError
from jail.guards import BY_ID, Guard, needed
from jail.plan import Tree
from jail.probes import DONE
from jail.verdict import Row, State, judge
from resolver.errors import ResolverError
from rules.load import load_policy
from rules.policy import Workdir

# What is asked of a role without a policy: nothing reachable, nothing writable, small limits.
STRICTEST = b"""version = 1
[role.strictest]
limits = { memory = "256MiB", processes = 64, open_files = 256, file_size = "128MiB", cpu = "1m" }
"""
HARMLESS = ("/usr/bin/true", "/bin/true")  # what a plan has to name; it is never executed
ENDED = "ESRCH"
DEADLY = "memory_shared"  # the attempt that ends the jail it is made in
BURST_SECONDS = 20.0
PROVED = "proved"  # of run.end: nothing was executed, so nothing has exited


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `credgate prove` asked for. `canary`: what its launcher carries in environment, keyring and descriptors."""

    policy: str
    role: str
    cwd: str
    env: Mapping[str, str]
    canary: str

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "Wanted":
        """Build from the JSON of the control socket; raises PrepareError for another shape."""
        try:
            texts = {name: str(body[name]) for name in ("policy", "role", "cwd", "canary")}
            env = {str(key): str(value) for key, value in body["env"].items()}
            if len(bytes.fromhex(texts["canary"])) != 16:
                raise ValueError("canary")
        except (KeyError, ValueError, AttributeError) as error:
            raise PrepareError("bad_request", f"prove.open: {type(error).__name__}: {error}") from None
        return cls(env=env, **texts)


class _Lent(Peer):
    """The one connection of `credgate prove`, for each of its two sessions: it is closed by neither."""

    def close(self) -> None:
        """Nothing: its owner closes it."""


@contextlib.contextmanager
def _trees() -> Iterator[Path]:
    """A directory with a work tree and a tree to be bound read-only: not ours, as any project's."""
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="credgate-prove-")))
    try:
        for name in ("tree", "readonly"):
            (place / name).mkdir(mode=0o700)
        (place / "readonly/file").touch()
        (place / "tree/.env").write_text("HIDDEN=1\n")
        yield place
    finally:
        shutil.rmtree(place)


def _chosen(wanted: Wanted, asked: Asked, parts: Parts) -> Effective:
    """The policy as it counts for the role, or the built-in strictest one. Raises CredgateError."""
    if wanted.policy or wanted.role:
        return find_for_run(asked, parts.places)
    policy = load_policy(STRICTEST, packs={}, base_dir="/")
    return Effective(policy=policy, role="strictest", path=Path("(built in)"), origin=Origin.FLAG)


def _asked(wanted: Wanted, peer: Peer, place: Path) -> Asked:
    command = next((path for path in HARMLESS if Path(path).exists()), "")
    if not command:
        raise PrepareError("no_command", f"found none of {', '.join(HARMLESS)}", "install the host's basic commands")
    return Asked(
        argv=(command,),
        cwd=wanted.cwd,
        env=wanted.env,
        policy=wanted.policy,
        role=wanted.role,
        workdir=str(place / "tree"),
        read_only=False,
        env_names=(),
        groups=peer.groups(),
    )


async def prove(parts: Parts, peer: Peer, wanted: Wanted) -> None:
    """Build, try, judge, record, and tell the launcher. Raises CredgateError, JailError, ResolverError."""
    with _trees() as place:
        asked = _asked(wanted, peer, place)
        chosen = await asyncio.to_thread(_chosen, wanted, asked, parts)
        policy = chosen.path if chosen.path.is_absolute() else None
        stand = await asyncio.to_thread(
            lambda: StandProcess.start(parts.places, canary=wanted.canary, full=True, policy=policy)
        )
        try:
            proving = _Proving(replace(parts, stand=stand), _Lent(peer.sock), asked, chosen, place)
            shown, rows = await proving.run()
        finally:
            await asyncio.to_thread(stand.stop)
    failed = any(row.state is State.NOT_SHOWN for row in rows)
    seq = parts.ledger.append(
        "proof",
        proof=shown.id,
        role=chosen.role,
        guards=[f"{row.guard}={row.state}" for row in rows],
        verdict=str(State.NOT_SHOWN if failed else State.SHOWN),
        detail="credgate prove",
    )
    await parts.ledger.durable(seq)
    told = [{key: value for key, value in asdict(row).items() if key != "tried_why"} for row in rows]
    await peer.send({"ev": "proved", "proof": shown.id, "role": chosen.role, "guards": told, "host": host()})


def host() -> str:
    """The kernel that this is shown of."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


class _Proving:
    """The two jails of one proof."""

    def __init__(self, parts: Parts, peer: Peer, asked: Asked, chosen: Effective, place: Path) -> None:
        self.parts, self.peer, self.asked, self.chosen, self.place = parts, peer, asked, chosen, place
        self.role = chosen.policy.roles[chosen.role]

    async def run(self) -> tuple[Shown, tuple[Row, ...]]:
        """The read-back of the tried jail, and a row for each guard."""
        copy = self.role.workdir is Workdir.COPY
        guards = needed(per_run=False, switches=frozenset(self.role.switches()), copy=copy)
        limits = limits_of(self.role.limits)
        failed: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                controls = tasks.create_task(asyncio.to_thread(self.parts.stand.controls, guards, limits))
                shown, inside = await self._two_jails(guards)
        except* (CredgateError, JailError, ResolverError) as group:
            failed.extend(group.exceptions)
        if failed:
            raise failed[0]
        return shown, judge(guards, shown.groups, inside, controls.result())

    async def _two_jails(self, guards: tuple[Guard, ...]) -> tuple[Shown, dict[str, str]]:
        # Both are asked for before either has anything to show: a socket in the tree would refuse the second.
        async with self._jail() as neighbour:
            async with self._jail() as session:
                pid = await self._neighbour(neighbour)
                session.guards = tuple(guard for guard in guards if guard.id != DEADLY)
                session.probing["neighbour"] = self.parts.stand.context["neighbour"] | {"pid": pid}
                shown, inside = await self._try(session)
                namespace = session.namespace
            if inside.get("kill_tree") == DONE and not survivors(namespace):
                inside["kill_tree"] = ENDED
            inside[DEADLY] = await self._burst(neighbour)
        return shown, inside

    async def _neighbour(self, session: Session) -> int:
        """Start the other jail, with little memory, and have it put up what is to be reached. Its workload's pid."""
        session.spec = replace(session.spec, memory=min(session.spec.memory, BURST // 2))
        session.limits = RunLimits(session.limits.base, session.spec)
        session.guards = (BY_ID[DEADLY],)
        _, pid = await self._start(session)
        await session.work.send({"op": "put_up"})
        await session.expect(session.work, "standing")
        return pid

    async def _burst(self, session: Session) -> str:
        """Have a jail use more memory than it may; the word is the reason that it ended for."""
        await session.work.send({"op": "probe"})
        async with asyncio.timeout(BURST_SECONDS):
            tried = await session.work.recv()
            if tried is not None and words(tried.body.get("words")).get(DEADLY) == DONE:
                return DONE
            if session.limits.group is not None:  # the kernel kills the one that took it, the others live on
                return session.limits.reason(128 + signal.SIGKILL, "killed")
            report = await session.pid1.recv()
        return str(report.body.get("reason")) if report is not None else "crashed: no word from pid 1"

    @contextlib.asynccontextmanager
    async def _jail(self) -> AsyncIterator[Session]:
        session = await open_session(self.parts, self.peer, self.asked, self.chosen)
        tree = str(self.place / "readonly")
        session.spec = replace(session.spec, trees=(*session.spec.trees, Tree(path=tree)))
        session.probing = {"readonly": tree, "neighbour": self.parts.stand.context["neighbour"] | {"serves": True}}
        try:
            yield session
        finally:
            await close(session, Ending(status=0, reason=PROVED))

    async def _start(self, session: Session) -> tuple[Shown, int]:
        """Read back, as before every exec; the workload's pid on the host."""
        await session.serve()
        await session.hand_over()
        shown, mounts = await session.read_back()
        mounts.close()
        return shown, session.workload

    async def _try(self, session: Session) -> tuple[Shown, dict[str, str]]:
        shown, _ = await self._start(session)
        return shown, await tried(session)
