"""Child runs: a program inside a jail asks, over a socket bound in for that alone, for one more jail of a lesser role.

Identity is the listener: which run asks is decided by the socket that was connected to. The rights are those of the
child's role and of the parent's (rules.intersect); policy, work tree, environment, groups and deadline are the
parent's. What comes out of the jail is judged here: a role that the parent lists, a command that the parent could see,
descriptors that carry nothing but bytes. The jail hears a code's fixed sentence, never a path of the host.
"""

import asyncio
import fcntl
import logging
import math
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from credgate.errors import CredgateError
from credgate.opening import open_session
from credgate.parts import Refusal
from credgate.peer import Peer, accept
from credgate.policyfile import Effective
from credgate.prepare import Asked
from credgate.session import Session
from jail import fdpass
from jail.errors import JailError
from jail.plan import under
from resolver.errors import ResolverError
from rules.intersect import child_policy

log = logging.getLogger(__name__)

DEPTH = 3  # runs below each other, the first one included
LIVE = 4  # children of one run at a time
WAITING = 16  # connections of one run at a time
PATIENCE = 10.0  # seconds that a connection may take to say what it wants
RECORDED = 64  # refusals of one run that are written down; what comes after them is counted alone
BETWEEN = 0.01  # seconds from one connection, or one message of a live child's client, to the next that is looked at
PAUSE = 0.1  # seconds before a refusal is answered: a loop of them costs its own time
FORWARDED = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
PTY_MAJORS = range(136, 144)  # Documentation/admin-guide/devices.txt: UNIX98 slaves
HARMLESS = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))  # null, zero, full, random, urandom

# What the jail is told; the detail for people is in the ledger.
SENTENCES = {
    "child_request": ("the request can't be read", "use /run/credgate/credgate-child"),
    "child_role": ("this run's role does not list that role", "`children` of the role in the policy names them"),
    "child_depth": (f"a child run is at most {DEPTH} deep", "do the work here"),
    "child_many": (f"at most {LIVE} child runs of one run at a time", "wait for one to end"),
    "child_descriptor": (
        "standard input, output and error have to be files, pipes or this jail's terminal",
        "put a pipe between",
    ),
    "not_found": ("command not found in this jail", "a child run sees no more than its parent"),
    "not_executable": ("the command can't be executed", "check its mode and its first line"),
    "exec_failed": ("the command can't be executed", "check its mode and its first line"),
    "tree_shared": (
        "another child run of another role shares the work tree, and one of them may write",
        "wait for its end",
    ),
}
ANY = ("the child run could not be started", "the ledger of this run says why: credgate log show")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a program in the jail asked for, checked for shape."""

    role: str
    argv: tuple[str, ...]
    cwd: str

    @classmethod
    def parse(cls, body: Mapping[str, object]) -> "Request":
        """Raises Refusal `child_request`."""
        role, argv, cwd = body.get("role"), body.get("argv"), body.get("cwd")
        if body.get("op") != "child" or not isinstance(role, str) or not isinstance(argv, list) or not argv:
            raise Refusal("child_request", "got no child run's request from the jail")
        if not isinstance(cwd, str) or not all(
            isinstance(word, str) and "\0" not in word for word in [role, cwd, *argv]
        ):
            raise Refusal("child_request", "got words of a wrong type from the jail")
        return cls(role=role, argv=tuple(argv), cwd=cwd)


def judge_descriptors(descriptors: Sequence[int], devices: tuple[int, int]) -> None:
    """Raise Refusal unless each carries nothing but bytes: a file, a pipe, a harmless device, the parent's terminal.

    Over a socket a descriptor of the parent's could follow: one connected to the gateway as the parent. A directory is
    a way into a tree; a file of /proc can be a process's memory. devices: of the parent's /proc and /dev/pts.
    """
    if len(descriptors) != 3:
        raise Refusal("child_descriptor", f"got {len(descriptors)} descriptors, expected 3")
    proc, terminals = devices
    for number, descriptor in enumerate(descriptors):
        facts = os.fstat(descriptor)
        kind, device = stat.S_IFMT(facts.st_mode), facts.st_rdev
        terminal = facts.st_dev == terminals and os.major(device) in PTY_MAJORS
        plain = (kind == stat.S_IFREG and facts.st_dev != proc) or kind == stat.S_IFIFO
        fits = plain or (kind == stat.S_IFCHR and (terminal or device in HARMLESS))
        if not fits or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_PATH:
            raise Refusal("child_descriptor", f"descriptor {number}: got mode {facts.st_mode:o}, device {device:x}")


def asked_of(parent: Session, request: Request) -> Asked:
    """The child's run as if its user had asked for it: everything but role, command and directory is the parent's."""
    shown = dict(parent.spec.env)
    return Asked(
        argv=request.argv,
        cwd=request.cwd if under(os.path.normpath(request.cwd), parent.spec.workdir) else parent.spec.workdir,
        # The command is looked for where the parent would find it: PATH is the jail's.
        env={**parent.run.caller_env, "PATH": shown["PATH"]},
        policy="",
        role=request.role,
        workdir=parent.spec.workdir,
        read_only=not parent.spec.workdir_write,
        env_names=(),
        groups=parent.caller.groups(),
    )


def rights_of(parent: Session, role: str, now: float) -> Effective:
    """The policy of the child: its role within the parent's, no variable that --env took away, the deadline's rest."""
    policy = child_policy(parent.chosen.policy, parent.run.role, role)
    mine = policy.roles[role]
    left = None if parent.ends is None else max(1, math.ceil(parent.ends - now))
    narrowed = replace(
        mine,
        env=tuple(name for name in mine.env if name in dict(parent.spec.env)),
        deadline=min((d for d in (mine.deadline, left) if d is not None), default=None),
    )
    chosen = replace(policy, roles={**policy.roles, role: narrowed})
    return replace(parent.chosen, policy=chosen, role=role)


class Children:
    """The child runs of one session. `sessions` is the daemon's list of live ones, which each child joins."""

    def __init__(self, parent: Session, sessions: dict[str, Session]) -> None:
        self.parent, self.sessions = parent, sessions
        self.live: list[Session] = []
        self._over = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self._connections = self._opening = self._refused = 0

    async def serve(self) -> None:
        """Accept until stop(); then end every child and wait for its death."""
        async with asyncio.TaskGroup() as tasks:
            accepting = tasks.create_task(self._accept(tasks))
            await self._over.wait()
            for task in (accepting, *self._asking):
                task.cancel()
            for child in list(self.live):
                await child.end("killed")

    def stop(self) -> None:
        """Begin the end: nothing more is accepted."""
        self._over.set()

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        listener = self.parent.listener
        if listener is None:
            raise CredgateError("internal", "a run without a socket for children serves them")
        while True:
            sock = await accept(listener)
            if fdpass.peer_credentials(sock)[1] != os.geteuid() or self._connections >= WAITING:
                sock.close()
            else:
                self._connections += 1
                tasks.create_task(self._connection(Peer(sock)))
            await asyncio.sleep(BETWEEN)  # while there is one more, accept doesn't wait: nobody else would have a turn

    async def _connection(self, peer: Peer) -> None:
        """One request. Outermost frame of its task: what goes wrong is answered, the parent goes on."""
        try:
            message = await self._first(peer)
            if message is not None:
                try:
                    await self._answer(peer, message)
                finally:
                    message.close()
        except OSError as error:
            log.info("run %s: a child's client is gone: %s", self.parent.run.id, error)
        except Exception:
            log.exception("run %s: a child run failed", self.parent.run.id)
        finally:
            peer.close()
            self._connections -= 1

    async def _first(self, peer: Peer) -> fdpass.Received | None:
        task = asyncio.current_task()
        if task is not None:
            self._asking.add(task)
        try:
            async with asyncio.timeout(PATIENCE):
                return await peer.recv()
        except (TimeoutError, JailError):
            return None
        finally:
            if task is not None:
                self._asking.discard(task)

    async def _answer(self, peer: Peer, message: fdpass.Received) -> None:
        role = str(message.body.get("role", ""))
        try:
            child = await self._open(message)
        except (CredgateError, JailError, ResolverError) as error:
            await self._refuse(peer, role, error)
            return
        finally:
            message.close()
        try:
            await self._drive(peer, child)
        finally:
            self.live.remove(child)
            self.parent.run.part(child.run)
            del self.sessions[child.run.id]
        ending = child.ending
        if child.ready:
            await peer.send({"ev": "exit", "run": child.run.id, "status": ending.status, "reason": ending.reason})
        else:
            await self._refuse(peer, role, Refusal(ending.reason, child.why, "", ending.status))

    async def _open(self, message: fdpass.Received) -> Session:
        """Judge the request, open the session, have the parent's launcher start it. Raises as open_session does."""
        request, parent = Request.parse(message.body), self.parent
        if request.role not in parent.run.role_rule.children:
            raise Refusal("child_role", f"role {request.role!r} is not among the children of {parent.run.role}")
        if parent.depth >= DEPTH:
            raise Refusal("child_depth", f"run {parent.run.id} is {parent.depth} deep already")
        if len(self.live) + self._opening >= LIVE:
            raise Refusal("child_many", f"{LIVE} children are live")
        self._opening += 1  # before the first await: of many at once each is counted
        try:
            await asyncio.to_thread(judge_descriptors, message.fds, parent.devices)
            return await self._start(request, message.fds)
        finally:
            self._opening -= 1

    async def _start(self, request: Request, descriptors: Sequence[int]) -> Session:
        parent = self.parent
        ours, theirs = fdpass.pair()
        try:
            asked = asked_of(parent, request)
            chosen = rights_of(parent, request.role, asyncio.get_running_loop().time())
            child = await open_session(parent.parts, Peer(ours), asked, chosen, parent=parent)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        attach(child, self.sessions)
        self.live.append(child)
        self.sessions[child.run.id] = child
        try:
            # The first run's launcher forks them all: a child's own has no reader for this.
            await parent.caller.send({"ev": "child"}, [theirs.fileno(), *descriptors])
        except OSError:  # the launcher is gone: nobody starts the child, whose session then ends by that
            log.info("run %s: the launcher is gone", parent.run.id)
        finally:
            theirs.close()
        return child

    async def _drive(self, peer: Peer, child: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self._client(peer, child))
            if self._over.is_set():
                await child.end("killed")
            await child.drive()
            client.cancel()

    async def _client(self, peer: Peer, child: Session) -> None:
        """Pass the client's signals on; its end is the child's."""
        while True:
            try:
                message = await peer.recv()
            except (JailError, OSError):
                message = None
            if message is None:
                await child.end("killed")
                return
            message.close()
            number = message.body.get("number")
            if message.body.get("op") == "signal" and type(number) is int and number in FORWARDED:
                await child.signal(number)
            await asyncio.sleep(BETWEEN)  # as in _accept

    async def _refuse(self, peer: Peer, role: str, error: CredgateError | JailError | ResolverError) -> None:
        """Write it down with its detail, answer with the fixed sentence."""
        self._refused += 1
        run = self.parent.run.id
        if self._refused <= RECORDED:
            self.parent.parts.ledger.append(
                "run.refused", parent=run, role=role, reason=error.code, detail=error.detail, count=self._refused
            )
        await asyncio.sleep(PAUSE)
        message, hint = SENTENCES.get(error.code, ANY)
        status = error.exit_status if isinstance(error, CredgateError) else 125
        await peer.send({"ev": "refused", "code": error.code, "message": message, "hint": hint, "exit": status})


def attach(session: Session, sessions: dict[str, Session]) -> None:
    """Let a session whose role has children serve them."""
    if session.listener is not None:
        session.children = Children(session, sessions)
