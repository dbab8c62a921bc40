"""The daemon's side of one worker: what it asks for is decided here, and what it says is written here.

Secrets are fetched, uses, rates and budgets spent, and lines of the ledger written by this process alone.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from credgate.errors import CredgateError
from credgate.gateway import standing
from credgate.gateway.floods import KINDS
from credgate.gateway.judge import Judge
from credgate.gateway.refusal import deny
from credgate.ledger.record import LedgerError, clean_fields
from credgate.runs import TURNED_AWAY, Run
from credgate.secretvalue import Secret, SecretUnavailable
from credgate.workers import messages as m
from credgate.workers.channel import Channel
from credgate.workers.knowing import SharedValues
from rules.correlate import Correlate, Marks
from rules.grants import Use
from rules.reasons import Reason
from rules.verdict import Deny

log = logging.getLogger(__name__)

# Events that a worker may have written. A `tunnel` line of its own says that a handshake was broken off.
_WRITTEN = frozenset({"deny", "outcome", "tunnel", "mint"})

_MAX_GONE = 256


class Unfit(Exception):
    """A worker says what it may not: it is ended."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """One worker. `runs`: those that it was given, by id. Lives on the daemon's loop."""

    judge: Judge
    known: SharedValues
    name: str
    runs: dict[str, Run] = field(default_factory=dict)
    open: dict[int, str] = field(default_factory=dict)  # run by the line of an intent without an outcome
    counted: dict[str, tuple[m.Fields, int]] = field(default_factory=dict)  # refusals that are not written yet, by id
    requests: int = 0  # judged by this worker
    channel: Channel = field(init=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _versions: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict, repr=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _gone: OrderedDict[str, None] = field(default_factory=OrderedDict)  # runs that are over: a last line may come
    _over: bool = False

    def take(self, message: m.FromWorker, fds: list[int]) -> None:
        """One message. Outermost frame of what a worker can provoke: a fault ends that worker."""
        try:
            if fds:
                raise Unfit("descriptors")
            self._take(message)
        except LedgerError as error:
            self.channel.post(m.Broken(error.code, error.detail, error.hint))
        except (Unfit, TypeError, ValueError, KeyError) as error:
            log.error("%s: unfit %s: %s", self.name, type(message).__name__, error)
            self.channel.end(f"unfit {type(message).__name__}")

    def _take(self, message: m.FromWorker) -> None:  # noqa: C901, PLR0912 - one case a message
        match message:
            case m.Ready():
                self.ready.set()
            case m.Done():
                self.channel.answered(message)
            case m.Claim():
                self._spawn(self._claim(message))
            case m.Fetch():
                self._spawn(self._fetch(message))
            case m.Record():
                self._record(message)
            case m.Held():
                self._held(message)
            case m.Counted():
                self._count(message)
            case m.Doubt():
                self._doubt(message)
            case m.Alarm():
                if message.run not in self._gone:
                    self._run(message.run).alarm(message.kind, message.detail)
            case m.Known():
                if any(message.name in run.policy.secrets for run in self.runs.values()):
                    self.known.add(message.name, message.value, basic=message.basic)
            case _:
                assert_never(message)

    def _run(self, run_id: str) -> Run:
        run = self.runs.get(run_id)
        if run is None:
            raise Unfit(f"run {run_id!r} is not among its own")
        return run

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._finished)
        else:
            self._finished(task)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s: a claim failed: %s", self.name, type(error).__name__, exc_info=error)
            self.channel.end("a claim failed")

    # -- questions ----------------------------------------------------------------------------------------------------

    async def _fetch(self, asked: m.Fetch) -> None:
        try:
            given = await self._given(self._run(asked.run), asked.name)
        except CredgateError as error:
            self.channel.post(_failed(asked.ask, error))
        else:
            self.channel.post(m.Given(given.name, given.value, given.version, ask=asked.ask))

    async def _given(self, run: Run, name: str) -> m.Given:
        """A secret as it is now. A value that is not what this worker had has another version."""
        if name not in run.policy.secrets:
            raise Unfit(f"secret {name!r} is not of run {run.id}")
        value = (await self.judge.fetch(run, name)).reveal()
        before, version = self._versions.get((run.id, name), ("", 0))
        if before != value:
            version += 1
            self._versions[run.id, name] = (value, version)
        return m.Given(name, value, version)

    async def _claim(self, claim: m.Claim) -> None:
        answer: m.Message
        try:
            answer = await self._decided(claim)
        except (LedgerError, SecretUnavailable) as error:
            answer = _failed(claim.ask, error)
        except Unfit as error:
            log.error("%s: unfit claim: %s", self.name, error)
            self.channel.end("unfit claim")
            return
        self.channel.post(answer)

    async def _decided(self, claim: m.Claim) -> m.Noted | m.Refused | m.Stale:
        run = self._run(claim.run)
        if claim.fields.get("run") != run.id:
            raise Unfit("an intent of another run")
        newer = [await self._given(run, name) for name in claim.secrets]
        newer = [given for given in newer if given.version != claim.secrets[given.name]]
        if newer:
            return m.Stale(newer, ask=claim.ask)
        denied = self._spent(run, claim)
        if denied is not None:
            return m.Refused(
                denied.reason.value, denied.message, denied.status, denied.rule, denied.hint, ask=claim.ask
            )
        marks = _marks(run, claim.marks)
        seq = self.judge.records.claimed(claim.fields, marks, held=bool(claim.bindings))
        self.open[seq] = run.id
        self.requests += 1
        run.allowed += 1
        if claim.bindings:
            await self.judge.records.ledger.durable(seq)
        return m.Noted(seq, ask=claim.ask)

    def _spent(self, run: Run, claim: m.Claim) -> Deny | None:
        """Why the request may not go; None once it is spent."""
        if self._over or claim.generation != run.generation:  # judged by a policy that counts no more
            return deny(Reason.REVOKED)
        try:
            bindings = tuple(run.policy.bindings[name] for name in claim.bindings)
        except KeyError as error:
            raise Unfit(f"binding {error}") from None
        use = Use(bindings=bindings, head=claim.head, promised=claim.promised)
        closed = standing.closed(run, use)
        return standing.charge(run, use) if closed is None else closed

    # -- what it says -------------------------------------------------------------------------------------------------

    def _record(self, record: m.Record) -> None:
        fields = record.fields
        seq = fields.get("intent_seq")
        if record.ev not in _WRITTEN or (record.ev == "outcome") != isinstance(seq, int):
            raise Unfit(f"a line of {record.ev!r}")
        if fields.get("run") not in self._gone:
            self._run(str(fields.get("run")))
        if isinstance(seq, int) and self.open.get(seq) != fields["run"]:
            raise Unfit(f"an outcome of line {seq}, which is not open")
        self.judge.records.told(record.ev, fields)
        if isinstance(seq, int):
            del self.open[seq]
            if (run := self.runs.get(str(fields["run"]))) is not None:
                run.turned_away += fields.get("status") in TURNED_AWAY
        elif "count" in fields:
            self.counted.pop(str(fields.get("request_id")), None)
        else:
            self.requests += 1

    def _held(self, held: m.Held) -> None:
        """Remember what is written, should this worker die first: so it has to be a line of its own."""
        if held.fields.get("run") not in self._gone:
            self._run(str(held.fields.get("run")))
        fields, count = self.counted.get(held.id, (held.fields, 0))
        if not count:
            clean_fields("deny", {**fields, "request_id": held.id})
            if len(self.counted) >= KINDS * (len(self.runs) + 1):
                raise Unfit("more refusals than are counted at a time")
        self.counted[held.id] = (fields, count + 1)
        self.requests += 1

    def _count(self, counted: m.Counted) -> None:
        if counted.run in self._gone:
            return
        run = self._run(counted.run)
        if counted.denied < 0 or counted.bytes_out < 0:
            raise Unfit("a count below nothing")
        run.denied += counted.denied
        run.spent = replace(run.spent, bytes_out=run.spent.bytes_out + counted.bytes_out)

    def _doubt(self, doubt: m.Doubt) -> None:
        """Only of values that this worker has, and that are still those of now."""
        if doubt.run in self._gone:
            return
        run = self._run(doubt.run)
        sent: dict[str, Secret] = {}
        for name, version in doubt.secrets.items():
            value, last = self._versions.get((run.id, name), ("", 0))
            if version == last and name in run.policy.secrets:
                sent[name] = Secret(name, value)
        if sent:
            self.judge.doubt(run, sent)

    # -- its end ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Decide nothing more for it: it is gone. What it said before is still written."""
        self._over = True

    def close(self, why: str) -> int:
        """Write what a worker that is gone leaves open; how many requests those were. Raises LedgerError."""
        for task in tuple(self._tasks):
            task.cancel()
        left, self.open = self.open, {}
        ledger = self.judge.records.ledger
        for seq, run in left.items():
            ledger.append("outcome", run=run, intent_seq=seq, reason=Reason.WORKER_DIED.value, detail=why)
        counted, self.counted = self.counted, {}
        for held_id, (fields, count) in counted.items():
            ledger.append("deny", **{**fields, "count": count, "request_id": held_id})
        return len(left)

    def forget(self, run_id: str) -> None:
        """A run is over."""
        self.runs.pop(run_id, None)
        self._gone[run_id] = None
        if len(self._gone) > _MAX_GONE:
            self._gone.popitem(last=False)
        for key in [key for key in self._versions if key[0] == run_id]:
            del self._versions[key]


def _failed(ask: int, error: CredgateError) -> m.Failed:
    return m.Failed(isinstance(error, LedgerError), error.code, error.detail, error.hint, ask=ask)


def _marks(run: Run, marks: m.Marks) -> Marks:
    try:
        names = frozenset(Correlate(name) for name in marks.names)
    except ValueError as error:
        raise Unfit(str(error)) from None
    return Marks(run=run.id, names=names, client_key=marks.client_key)
