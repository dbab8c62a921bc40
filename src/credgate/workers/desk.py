"""The daemon's side of one worker: what it asks for is decided here, and what it says is written here.

Secrets are fetched, uses, rates and budgets spent, and lines of the ledger written by this process alone.
"""

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from credgate.errors import CredgateError
from credgate.gateway import standing
from credgate.gateway.floods import KINDS
from credgate.gateway.judge import Judge
from credgate.gateway.records import Claimed
from credgate.gateway.refusal import deny
from credgate.ledger.record import LedgerError, clean_fields
from credgate.runs import TURNED_AWAY, Run
from credgate.secretvalue import Secret, SecretUnavailable
from credgate.workers import messages as m
from credgate.workers.answers import failed, refused
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
_MAX_TASKS = 10_000  # questions of one worker that wait: more than it may have connections
_MAX_VALUE = 1 << 20  # characters of a value that is looked for: each has dozens of spellings


class Unfit(Exception):
    """A worker says what it may not: it is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What claims for the same head, policy and way have in common."""

    run: str
    generation: int
    use: Use
    marks: Marks
    line: Claimed = field(repr=False)

    @classmethod
    def of(cls, run: Run, claim: m.Claim, judge: Judge) -> "_Kind":
        """Raises Unfit, TypeError."""
        if claim.fields.get("run") != run.id:
            raise Unfit("an intent of another run")
        try:
            bindings = tuple(run.policy.bindings[name] for name in claim.bindings)
        except KeyError as error:
            raise Unfit(f"binding {error}") from None
        return cls(
            run=run.id,
            generation=claim.generation,
            use=Use(bindings=bindings, head=claim.head, promised=claim.promised),
            marks=_marks(run, claim.marks),
            line=judge.records.claim(claim.fields),
        )


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
    _kinds: dict[int, "_Kind | None"] = field(default_factory=dict, repr=False)  # None: of a policy that counts no more
    _passed: list[tuple[int, int]] = field(default_factory=list)  # of this packet: questions, lines that go to the disk
    _ends: list[tuple[str, m.Ended]] = field(default_factory=list)  # likewise: outcomes, with their run
    _packet: int = 0
    _looked: dict[tuple[str, str], m.Given] = field(default_factory=dict, repr=False)  # secrets, since it came
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _gone: OrderedDict[str, None] = field(default_factory=OrderedDict)  # runs that are over: a last line may come
    _over: bool = False

    def take(self, message: m.FromWorker, fds: list[int]) -> None:
        """One message. Outermost frame of what a worker can provoke: a fault ends that worker."""
        try:
            if fds:
                raise Unfit("descriptors")
            self._take(message)
        except (LedgerError, Unfit, TypeError, ValueError, KeyError) as error:
            self._fault(type(message).__name__, error)
        finally:
            for descriptor in fds:
                os.close(descriptor)

    def _fault(self, what: str, error: Exception) -> None:
        if isinstance(error, LedgerError):
            self.channel.post(m.Broken(error.code, error.detail, error.hint))
        else:
            log.error("%s: unfit %s: %s", self.name, what, error)
            self.channel.end(f"unfit {what}")

    def _take(self, message: m.FromWorker) -> None:  # noqa: C901, PLR0912 - one case a message
        match message:
            case m.Ready():
                self.ready.set()
            case m.Done():
                self.channel.answered(message)
            case m.Claim() | m.Again():
                self._spawn(self._claim(message))
            case m.Fetch():
                self._spawn(self._fetch(message))
            case m.Record() | m.Ended():
                self._line(message)
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
                if len(message.value) + len(message.basic) > _MAX_VALUE:
                    raise Unfit("a value that no secret has")
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
            if len(self._tasks) > _MAX_TASKS:
                raise Unfit("more questions than it can have requests")
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
            self.channel.post(failed(asked.ask, error))
        else:
            self.channel.post(m.Given(given.name, given.value, given.version, ask=asked.ask))

    async def _given(self, run: Run, name: str) -> m.Given:
        """A secret as it is now. A value that is not what this worker had has another version."""
        if name not in run.policy.secrets:
            raise Unfit(f"secret {name!r} is not of run {run.id}")
        packet, looked = self._packet, self._looked.get((run.id, name))
        if looked is not None:
            return looked
        value = (await self.judge.fetch(run, name)).reveal()
        before, version = self._versions.get((run.id, name), ("", 0))
        if before != value:
            version += 1
            self._versions[run.id, name] = (value, version)
        given = m.Given(name, value, version)
        if packet == self._packet:  # whatever else the packet asks for was asked before it was looked at
            self._looked[run.id, name] = given
        return given

    def _kind_of(self, claim: m.Claim | m.Again) -> "_Kind | None":
        """What this claim and others of its kind share. Raises Unfit, TypeError."""
        if isinstance(claim, m.Again):
            if claim.kind not in self._kinds:
                raise Unfit("a kind that it has not named")
            return self._kinds[claim.kind]
        run = self._run(claim.run)
        kind = None if claim.generation != run.generation else _Kind.of(run, claim, self.judge)
        self._kinds[claim.kind] = kind
        return kind

    async def _claim(self, claim: m.Claim | m.Again) -> None:
        """Answer a claim, or have it answered once its line is on the disk."""
        answer: m.Message | None
        try:
            answer = await self._decided(claim.ask, self._kind_of(claim), claim.secrets)
        except (LedgerError, SecretUnavailable) as error:
            answer = failed(claim.ask, error)
        except Unfit as error:
            log.error("%s: unfit claim: %s", self.name, error)
            self.channel.end("unfit claim")
            return
        if answer is not None:
            self.channel.post(answer)

    async def _decided(self, ask: int, kind: "_Kind | None", secrets: Mapping[str, int]) -> m.Message | None:
        if kind is None:
            return refused(ask, deny(Reason.REVOKED))
        packet, run = self._packet, self._run(kind.run)
        newer = [await self._given(run, name) for name in secrets]
        newer = [given for given in newer if given.version != secrets[given.name]]
        if newer:
            return m.Stale(newer, ask=ask)
        denied = self._spent(run, kind)
        if denied is not None:
            return refused(ask, denied)
        held = bool(kind.use.bindings)
        seq = self.judge.records.claimed(kind.line, kind.marks, held=held)
        self.open[seq] = run.id
        self.requests += 1
        run.allowed += 1
        if not held:
            return m.Noted(seq, ask=ask)
        self._passed.append((ask, seq))
        if packet != self._packet:  # a secret was waited for: what came with it is answered already
            self.taken()
        return None

    def _spent(self, run: Run, kind: "_Kind") -> Deny | None:
        """Why the request may not go; None once it is spent."""
        if self._over or kind.generation != run.generation:  # judged by a policy that counts no more
            return deny(Reason.REVOKED)
        closed = standing.closed(run, kind.use)
        return standing.charge(run, kind.use) if closed is None else closed

    def taken(self) -> None:
        """A packet is read: what it claimed goes to the disk together, and is answered together."""
        self._packet += 1
        self._looked.clear()
        passed, self._passed = self._passed, []
        ends, self._ends = self._ends, []
        written = 0
        try:
            for run, ended in ends:
                self._write(run, ended, held=bool(written + 1 < len(ends) or passed))
                written += 1
        except (LedgerError, TypeError) as error:
            self.open.update((ended.seq, run) for run, ended in ends[written:])  # still to be closed, as it ends
            self._fault("Ended", error)
        if passed:
            self._spawn(self._pass(passed))

    def _write(self, run: str, ended: m.Ended, *, held: bool) -> None:
        counts = {
            "intent_seq": ended.seq,
            "ms": ended.ms,
            "req_bytes": ended.req_bytes,
            "resp_bytes": ended.resp_bytes,
            "status": ended.status,
        }
        self.judge.records.ended(run, ended.pin, counts, ended.ids, held=held)

    async def _pass(self, passed: list[tuple[int, int]]) -> None:
        asks, seqs = [ask for ask, _ in passed], [seq for _, seq in passed]
        try:
            await self.judge.records.ledger.durable(seqs[-1])
        except LedgerError as error:
            for ask in asks:
                self.channel.post(failed(ask, error))
        else:
            self.channel.post(m.Passed(asks, seqs))

    # -- what it says -------------------------------------------------------------------------------------------------

    def _line(self, said: m.Record | m.Ended) -> None:
        if isinstance(said, m.Ended):
            self._ended(said)
        else:
            self._record(said)

    def _record(self, record: m.Record) -> None:
        fields = record.fields
        seq = fields.get("intent_seq")
        if record.ev not in _WRITTEN or (record.ev == "outcome") != isinstance(seq, int):
            raise Unfit(f"a line of {record.ev!r}")
        if fields.get("run") not in self._gone:
            self._run(str(fields.get("run")))
        if isinstance(seq, int) and self.open.get(seq) != fields["run"]:
            raise Unfit(f"an outcome of line {seq}, which is not open")
        self.judge.records.ledger.append(record.ev, **fields)
        if isinstance(seq, int):
            del self.open[seq]
            self._count_answer(str(fields["run"]), fields.get("status"))
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

    def _ended(self, ended: m.Ended) -> None:
        run = self.open.get(ended.seq)
        if run is None:
            raise Unfit(f"an outcome of line {ended.seq}, which is not open")
        if ended.ids:
            clean_fields("outcome", {"ids": ended.ids})  # before it counts as written
        del self.open[ended.seq]
        self._ends.append((run, ended))
        self._count_answer(run, ended.status)

    def _count_answer(self, run_id: str, status: object) -> None:
        if status in TURNED_AWAY and (run := self.runs.get(run_id)) is not None:
            run.turned_away += 1

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


def _marks(run: Run, marks: m.Marks) -> Marks:
    try:
        names = frozenset(Correlate(name) for name in marks.names)
    except ValueError as error:
        raise Unfit(str(error)) from None
    return Marks(run=run.id, names=names, client_key=marks.client_key)
