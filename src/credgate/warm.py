"""Jails that are made before their command is asked for: built and proven, up to the exec.

One is kept for each way in which a run was asked for with `warm`; the next run of that way gives it a command and
descriptors alone. What decides anything is asked anew then: the policy is read, the jail's plan computed once more, and
a jail of which anything else than the command differs by now is thrown away, never mended. Its proof is of that very
jail. It holds no tree and has no record until it is claimed, and is thrown away when nobody asks for a while.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
from dataclasses import dataclass, field, replace
from typing import Any

from credgate.closing import close
from credgate.errors import CredgateError
from credgate.gateway.expiry import ends
from credgate.given import check_arguments
from credgate.opening import computed_again, note_start, open_session
from credgate.parts import Ending, Parts
from credgate.peer import Peer
from credgate.policyfile import Effective
from credgate.prepare import Asked
from credgate.session import Session
from credgate.standin import Borrowed, place
from credgate.treelook import TreeLook
from jail import fdpass
from jail.errors import JailError
from jail.plan import JailSpec
from jail.ready import readable
from resolver.errors import ResolverError
from rules.policy import Role, Workdir

log = logging.getLogger(__name__)

AFTER = 0.2  # seconds that a command may run before the next jail is made
IDLE = 60.0  # seconds that a jail waits for its command
MOST = 4  # jails that wait at a time: each holds a berth, and some megabytes


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A jail that waits. peer, life: the launcher's ends, ours until it is claimed. asker: the far end of its Peer."""

    session: Session
    peer: socket.socket
    life: socket.socket
    asker: Peer
    since: float = 0.0

    def hand_over(self) -> list[int]:
        """The two ends, for a launcher."""
        return [self.peer.fileno(), self.life.fileno()]

    def let_go(self) -> None:
        """Close our copies of them."""
        self.peer.close()
        self.life.close()
        self.asker.close()


@dataclass(frozen=True, slots=True)
class Computed:
    """What a jail that waits would be if it were made now, and the digest of its program."""

    of: Waiting
    spec: JailSpec
    look: TreeLook
    digest: str


@dataclass(slots=True, kw_only=True)
class Wish:
    """What a run was asked for with, and whether the starter can stand in for its launcher (`manner`)."""

    asked: Asked
    chosen: Effective
    manner: dict[str, Any]
    key: str = field(init=False)

    def __post_init__(self) -> None:
        asked = self.asked
        words = [asked.cwd, asked.policy, asked.role, asked.workdir, asked.read_only, asked.env_names, asked.groups]
        text = json.dumps([*words, dict(asked.env), dict(self.manner), self.chosen.role], sort_keys=True)
        self.key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def suits(role: Role) -> bool:
    """Whether jails of a role can wait: none with copies of the host's, which one made now would have others of, and
    none that has a socket or a port of its own.
    """
    copies = role.workdir is Workdir.COPY or role.agent or role.state
    return not copies and not role.children and not role.publish


def wish(parts: Parts, peer: Peer, asked: Asked, chosen: Effective, borrowed: Borrowed) -> Wish | None:
    """What a jail would have to be like; None where none can wait for such a run. Blocks."""
    if borrowed.ttys or not borrowed.descriptors or not suits(chosen.policy.roles[chosen.role]):
        return None
    if any(os.isatty(descriptor) for descriptor in borrowed.standard()):
        return None
    _, manner = place(parts.starter.pid, peer.pid(), borrowed)
    return None if manner is None else Wish(asked=asked, chosen=chosen, manner=manner)


class Pool:
    """The jails of one daemon that wait. Used in its event loop, with its task group."""

    def __init__(self, parts: Parts, tasks: asyncio.TaskGroup) -> None:
        self._parts, self._tasks = parts, tasks
        self._waiting: dict[str, Waiting] = {}
        self._planned: set[str] = set()
        self._making: dict[str, asyncio.Event] = {}  # set when it stands, or never will
        self._over = asyncio.Event()

    def computed(self, wanted: Wish) -> Computed | None:
        """What the jail that waits would be now; None where none waits. Blocks, and raises as a run's start does.

        For the thread in which the wish was found: another change of threads costs a call as much as half of this.
        """
        waiting = self._waiting.get(wanted.key)
        if waiting is None:
            return None
        check_arguments(wanted.asked.argv)
        return Computed(waiting, *computed_again(waiting.session, wanted.asked, wanted.chosen))

    async def claim(
        self, wanted: Wish, peer: Peer, borrowed: Borrowed, computed: Computed | None = None
    ) -> Session | None:
        """A jail for this run, its start recorded and its launcher told; None where none fits. computed: as above.

        Raises CredgateError where another run stands in its way, or for the command's arguments, as for any run.
        """
        check_arguments(wanted.asked.argv)
        if wanted.key in self._making:  # sooner there than another one that begins now
            await self._making[wanted.key].wait()
        waiting = self._waiting.pop(wanted.key, None)
        if waiting is None:
            return None
        session = waiting.session
        try:
            digest = await self._fits(session, wanted, computed if computed and computed.of is waiting else None)
            if digest is None:
                raise CredgateError("unfit", "what the jail was made of has changed")
            identity = (wanted.chosen.policy.sha256, wanted.chosen.role)
            self._parts.claims.take(session.run.id, session.spec, identity)
            session.peer.close()  # of nobody
            session.peer, session.caller, session.borrowed = peer, peer, borrowed
            session.chosen = wanted.chosen
            self._parts.gateway.begins(session.run)
            note_start(session, session.look, digest)  # on the disk with its proof, before it gets its command
            await peer.send({"ev": "plan", "run": session.run.id, "warm": True}, waiting.hand_over())
        except BaseException as error:
            await self._throw_away(waiting)
            if isinstance(error, CredgateError) and error.code == "unfit":
                return None
            raise
        waiting.let_go()
        return session

    async def _fits(self, session: Session, wanted: Wish, now: Computed | None = None) -> str | None:
        """The program's digest where only the command would differ in a jail made now, and it gets that; else None."""
        if session.mounts is None or not session.mounts.same() or readable(session.pidfd, 0):
            return None
        # Not by the file's digest: a ceiling above it may have changed, and what a run may do is what it was made with.
        if not session.chosen.policy == session.run.policy == wanted.chosen.policy:
            return None
        if ends(session.run) and self._parts.gateway.workers is not None:  # they count from when it was made
            return None
        if now is not None:
            spec, look, digest = now.spec, now.look, now.digest
        else:
            spec, look, digest = await asyncio.to_thread(computed_again, session, wanted.asked, wanted.chosen)
        # What was missing in the tree is there now: the jail itself made it, and takes it away at its end.
        made = replace(spec.protected, reserved=session.spec.protected.reserved)
        spec = replace(spec, protected=made)
        if replace(spec, exe=session.spec.exe, argv=session.spec.argv) != session.spec:
            return None
        session.spec, session.look = spec, look
        return digest

    def refill(self, wanted: Wish, after: Session) -> None:
        """Make one for the next run of this kind, once this one is over, or runs for a while: it has the CPU first."""
        if not self._over.is_set() and wanted.key not in self._planned and wanted.key not in self._waiting:
            self._planned.add(wanted.key)
            self._tasks.create_task(self._make(wanted, after))

    async def _make(self, wanted: Wish, after: Session) -> None:
        """Outermost frame of its task: a jail that can't be made is logged, and the next run says why."""
        try:
            await after.started.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(after.over.wait(), AFTER)
            waiting = await self._kept(wanted)
        except (CredgateError, JailError, ResolverError, OSError) as error:
            log.warning("no jail could be made ahead: %s", error)
            return
        finally:
            self._planned.discard(wanted.key)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), IDLE)
        if self._waiting.get(wanted.key) is waiting:
            await self._throw_away(self._waiting.pop(wanted.key))

    async def _kept(self, wanted: Wish) -> Waiting:
        """Make one, and keep it for whoever asks next; of too many the oldest is thrown away."""
        stands = self._making[wanted.key] = asyncio.Event()
        try:
            waiting = await self._made(wanted)
            self._waiting[wanted.key] = waiting
        finally:
            del self._making[wanted.key]
            stands.set()
        while len(self._waiting) > MOST:
            await self._throw_away(self._waiting.pop(next(iter(self._waiting))))
        return waiting

    async def _made(self, wanted: Wish) -> Waiting:
        """A jail that stands and is proven. Raises as a run's start does; nothing is left then."""
        asker, own = fdpass.pair()
        peer, jails_peer = fdpass.pair()
        life, waiters = fdpass.pair()
        null = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) for _ in range(3)]
        borrowed = Borrowed([jails_peer.detach(), waiters.detach(), *null], ())
        waiting: Waiting | None = None
        try:
            session = await open_session(
                self._parts, Peer(own), wanted.asked, wanted.chosen, borrowed=borrowed, ahead=wanted.manner
            )
            waiting = Waiting(session=session, peer=peer, life=life, asker=Peer(asker))
            await session.stand()
        except BaseException:
            borrowed.close()
            if waiting is not None:
                await self._throw_away(waiting)
            for end in (asker, own, peer, life):
                end.close()
            raise
        return waiting

    async def _throw_away(self, waiting: Waiting) -> None:
        waiting.let_go()
        await close(waiting.session, Ending(status=0, reason="unused"))

    async def stop(self) -> None:
        """End all that wait; nothing is made any more."""
        self._over.set()
        while self._waiting:
            await self._throw_away(self._waiting.popitem()[1])
