"""The daemon's side of a worker's requests: each is decided here, spent, and written, whatever the worker believes.

All that a packet holds is one moment: what it claims is written and synced together, and answered together.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial

from credgate.gateway import standing
from credgate.gateway.judge import Judge
from credgate.gateway.ledgers import TellsSyncs
from credgate.gateway.refusal import deny
from credgate.ledger.form import Form
from credgate.ledger.linking import Given
from credgate.ledger.record import LedgerError
from credgate.runs import TURNED_AWAY, Run
from credgate.secretvalue import Secret, SecretUnavailable
from credgate.workers import messages as m
from credgate.workers.answers import failed, refused
from credgate.workers.channel import Channel
from rules.correlate import Correlate, Marks
from rules.grants import Use
from rules.reasons import Reason
from rules.scrub import Table
from rules.verdict import Deny

log = logging.getLogger(__name__)

type Ended = tuple[dict[str, str] | None, int, int, int, int, int | None]  # ids, line, ms, bytes twice, status

_MOST = 10_000  # questions of one worker that wait: more than it may have connections


class Unfit(Exception):
    """A worker says what it may not: it is ended."""


@dataclass(slots=True, kw_only=True, eq=False)
class Kind:
    """What claims for the same head, policy and way have in common."""

    run: Run
    generation: int
    use: Use
    form: Form
    values: Given = field(repr=False)
    held: bool  # the line may wait in memory for the sync: nothing goes before it
    versions: Mapping[str, int]  # of the secrets that are in it
    # the same where a look tells whether they are still those of now, and what is searched for with them in it
    secrets: tuple[tuple[str, Secret], ...] | None = field(default=None, repr=False)
    table: Table | None = field(default=None, repr=False)

    @classmethod
    def of(cls, run: Run, claim: m.Claim, judge: Judge) -> "Kind":
        """Raises Unfit, TypeError."""
        if claim.fields.get("run") != run.id:
            raise Unfit("an intent of another run")
        try:
            bindings = tuple(run.policy.bindings[name] for name in claim.bindings)
        except KeyError as error:
            raise Unfit(f"binding {error}") from None
        form, values = judge.records.claim(claim.fields, _marks(run, claim.marks))
        return cls(
            run=run,
            generation=claim.generation,
            use=Use(bindings=bindings, head=claim.head, promised=claim.promised),
            form=form,
            values=values,
            held=bool(bindings),
            versions=claim.secrets,
        )


@dataclass(slots=True, kw_only=True)
class Claims:
    """Those of one worker. `runs`: those that it was given, by id."""

    judge: Judge
    name: str
    runs: dict[str, Run] = field(default_factory=dict)
    open: dict[int, str] = field(default_factory=dict)  # run by the line of an intent without an outcome
    requests: int = 0  # judged by this worker
    channel: Channel = field(init=False)
    _versions: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict, repr=False)
    _kinds: dict[int, Kind | None] = field(default_factory=dict, repr=False)  # None: of a policy that counts no more
    _asks: list[int] = field(default_factory=list)  # of this packet: questions whose lines go to the disk
    _seqs: list[int] = field(default_factory=list)  # those lines
    # likewise: outcomes by run and address, of each what records count
    _ends: dict[tuple[str, str], list[Ended]] = field(default_factory=dict)
    _waiting: int = 0  # questions whose lines are on the way to the disk
    _packet: int = 0
    _looked: dict[tuple[str, str], m.Given] = field(default_factory=dict, repr=False)  # secrets, since it came
    _same: set[int] = field(default_factory=set)  # likewise: identities of those that a look found to be those of now
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _over: bool = False

    def _fault(self, what: str, error: Exception) -> None:
        if isinstance(error, LedgerError):
            self.channel.post(m.Broken(error.code, error.detail, error.hint))
        else:
            log.error("%s: unfit %s: %s", self.name, what, error)
            self.channel.end(f"unfit {what}")

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
            if len(self._tasks) > _MOST:
                raise Unfit("more questions than it can have requests")
        else:
            self._finished(task)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s: a claim failed: %s", self.name, type(error).__name__, exc_info=error)
            self.channel.end("a claim failed")

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

    def _named(self, claim: m.Claim) -> Kind | None:
        """What this claim and others of its kind share. Raises Unfit, TypeError."""
        run = self._run(claim.run)
        if not claim.secrets.keys() <= run.policy.secrets.keys():
            raise Unfit(f"secrets that are not of run {run.id}")
        kind = None if claim.generation != run.generation else Kind.of(run, claim, self.judge)
        self._kinds[claim.kind] = kind
        return kind

    def _batch(self, batch: m.Batch) -> None:
        """Decide at once what can be; outcomes are written behind the packet's last message. Raises Unfit."""
        for end in batch.ends:
            self._ended(end)
        if self._waiting + len(batch.claims) > _MOST:
            raise Unfit("more claims than it can have requests")
        alike, last = list[int](), -1
        for claim in batch.claims:
            ask, number = divmod(claim, m.KINDS)
            if number != last and alike:
                self._claims(last, alike)
                alike = []
            alike.append(ask)
            last = number
        if alike:
            self._claims(last, alike)

    def _claims(self, number: int, asks: list[int]) -> None:
        """Decide claims of one kind. Raises Unfit."""
        if number not in self._kinds:
            raise Unfit("a kind that it has not named")
        kind = self._kinds[number]
        if kind is None or self._is_now(kind):
            self._decide(asks, kind)
            return
        for ask in asks:
            self._spawn(self._claim(ask, kind, ()))

    def _is_now(self, kind: Kind) -> bool:
        """Whether its secrets are those of now, as far as a look tells. Of a packet the first one is for all."""
        secrets = kind.secrets
        if secrets is None or kind.table is not self.judge.known.table():
            return False
        for name, secret in secrets:
            if id(secret) not in self._same:
                now = self.judge.kept(kind.run, name)
                if now is not secret and (now is None or now.reveal() != secret.reveal()):
                    return False
                self._same.add(id(secret))
        return True

    async def _claim(self, ask: int, kind: Kind | None, fresh: Collection[str]) -> None:
        """Decide a claim whose secrets have to be fetched, but for those that were for this very request."""
        packet = self._packet
        try:
            newer = [] if kind is None else await self._newer(kind, fresh)
        except (LedgerError, SecretUnavailable) as error:
            self.channel.post(failed(ask, error))
            return
        except Unfit as error:
            log.error("%s: unfit claim: %s", self.name, error)
            self.channel.end("unfit claim")
            return
        if newer:
            self.channel.post(m.Stale(newer, ask=ask))
            return
        self._decide([ask], kind)
        if packet != self._packet:  # a secret was waited for: what came with it is answered already
            self.taken()

    async def _newer(self, kind: Kind, fresh: Collection[str]) -> list[m.Given]:
        """Those of its secrets that are others by now."""
        run, versions = kind.run, kind.versions
        found = [await self._given(run, name) for name in versions if name not in fresh]
        newer = [given for given in found if given.version != versions[given.name]]
        if not newer and not fresh:
            self._learn(kind)
        return newer

    def _learn(self, kind: Kind) -> None:
        """From here on a look is enough, where there is nothing to be waited for."""
        run, judge, secrets = kind.run, self.judge, list[tuple[str, Secret]]()
        for name, version in kind.versions.items():
            secret = judge.kept(run, name)
            if secret is None or self._versions.get((run.id, name)) != (secret.reveal(), version):
                return
            secrets.append((name, secret))
        kind.secrets, kind.table = tuple(secrets), judge.known.table()

    def _decide(self, asks: list[int], kind: Kind | None) -> None:
        """Spend requests of one kind and write their intents, or say why they may not go."""
        may, denied = self._spent(kind, len(asks))
        if kind is not None and may:
            self._written(asks[:may], kind)
        if denied is not None:
            for ask in asks[may:]:
                self.channel.post(refused(ask, denied))

    def _spent(self, kind: Kind | None, count: int) -> tuple[int, Deny | None]:
        """How many of so many requests may go, which are spent then; why the others may not."""
        if kind is None or self._over or kind.generation != kind.run.generation:  # by a policy that counts no more
            return 0, deny(Reason.REVOKED)
        closed = standing.closed(kind.run, kind.use)
        return standing.charge_all(kind.run, kind.use, count) if closed is None else (0, closed)

    def _written(self, asks: list[int], kind: Kind) -> None:
        """Write intents of requests that are spent."""
        run, seqs = kind.run, list[int]()
        try:
            self.judge.records.put_all(kind.form, (kind.values,) * len(asks), seqs, held=kind.held)
        except LedgerError as error:
            seqs = seqs if kind.held else []  # else none may be in the file
            for ask in asks[len(seqs) :]:
                self.channel.post(failed(ask, error))
        self.open.update(dict.fromkeys(seqs, run.id))
        self.requests += len(seqs)
        run.allowed += len(seqs)
        if kind.held:
            self._asks += asks[: len(seqs)]
            self._seqs += seqs
            return
        for ask, seq in zip(asks, seqs, strict=False):
            self.channel.post(m.Noted(seq, ask=ask))

    def taken(self) -> None:
        """A packet is read: what it claimed goes to the disk together, and is answered together."""
        self._packet += 1
        self._looked.clear()
        self._same.clear()
        asks, seqs, self._asks, self._seqs = self._asks, self._seqs, [], []
        if self._ends:
            self._write(held=bool(asks))
        if asks:
            self._waiting += len(asks)
            self._ledger().tell(partial(self._landed, asks, seqs))

    def _ledger(self) -> TellsSyncs:
        ledger = self.judge.records.tells
        if ledger is None:
            raise RuntimeError("a ledger of another process")
        return ledger

    def _landed(self, asks: list[int], seqs: list[int], error: Exception | None) -> None:
        """A sync has ended that began behind these lines."""
        self._waiting -= len(asks)
        if error is None and self._ledger().has(seqs[-1]):
            self.channel.say(m.Passed(asks, seqs))
            return
        try:
            self._spawn(self._pass(asks, seqs))
        except Unfit as unfit:  # others wait for the same sync
            self._fault("Batch", unfit)

    def _write(self, *, held: bool) -> None:
        """Write the outcomes of this packet; `held`: a sync that is asked for puts them into the file."""
        ends, self._ends = self._ends, {}
        left, error = len(ends), None
        for (run, pin), alike in ends.items():
            left -= 1
            seqs = list[int]()
            try:
                if error is None:
                    self.judge.records.ended(run, pin, alike, seqs, held=held or left > 0)
            except (LedgerError, TypeError) as why:
                error = why
            self.open.update((end[1], run) for end in alike[len(seqs) :])  # still to be closed, as it ends
        if error is not None:
            self._fault("Batch", error)

    async def _pass(self, asks: list[int], seqs: list[int]) -> None:
        try:
            await self.judge.records.ledger.durable(seqs[-1])
        except LedgerError as error:
            for ask in asks:
                self.channel.post(failed(ask, error))
        else:
            self.channel.post(m.Passed(asks, seqs))

    def _ended(self, end: m.Outcome) -> None:
        seq, pin, status, req_bytes, resp_bytes, ms, ids = end
        run = self.open.pop(seq, None)
        if run is None:
            raise Unfit(f"an outcome of line {seq}, which is not open")
        counted = (ids or None, seq, ms, req_bytes, resp_bytes, status or None)
        alike = self._ends.get((run, pin))
        if alike is None:
            self._ends[run, pin] = [counted]
        else:
            alike.append(counted)
        if status in TURNED_AWAY:
            self._count_answer(run, status)

    def _count_answer(self, run_id: str, status: object) -> None:
        if status in TURNED_AWAY and (run := self.runs.get(run_id)) is not None:
            run.turned_away += 1

    def _count_unsent(self, run_id: str) -> None:
        """It was counted as it was written, and nothing of it went: it is no request that was let through."""
        if (run := self.runs.get(run_id)) is not None:
            run.allowed -= 1


def _marks(run: Run, marks: m.Marks) -> Marks:
    try:
        names = frozenset(Correlate(name) for name in marks.names)
    except ValueError as error:
        raise Unfit(str(error)) from None
    return Marks(run=run.id, names=names, client_key=marks.client_key)
