"""A worker's side of the socket: questions with their answers, lines that nobody waits for, and what it was told."""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from credgate.gateway.prepared import Sent
from credgate.ledger.record import LedgerError
from credgate.runs import Run
from credgate.secretvalue import Secret, SecretUnavailable
from credgate.workers import messages as m
from credgate.workers.channel import Channel, ChannelError
from rules.grants import Use
from rules.reasons import Reason
from rules.verdict import Deny

log = logging.getLogger(__name__)

MOST = 1 << 30  # bytes of a message of the daemon's: a policy with ten thousand endpoints is below a hundredth

# Secrets that were fetched for the request that is being judged: they are not asked for again when it is sent.
fresh: ContextVar[set[str]] = ContextVar("fresh")


class StaleSecrets(Exception):
    """A request was rewritten with values that count no more; the new ones, of these names, are known by now."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names


# Told once what came of a claim: the number of the intent's line, which is on the disk then, or why there is none.
type Told = Callable[[int | Deny | Exception], None]


class Way(NamedTuple):
    """What decides a claim beside the request that is sent. The last two as the ledger has them."""

    generation: int
    proof: str
    pin: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A claim that the daemon knows."""

    number: int
    run: str
    sent: Sent = field(repr=False)
    key: Way
    versions: Mapping[str, int]  # of the secrets that are in it


class Line:
    """Questions to the daemon, and the values of secrets as it gave them last."""

    def __init__(self, sock: socket.socket, take: Callable[[Any, list[int]], None], ended: Callable[[str], None]):
        self.channel = Channel(sock, m.for_worker, take, ended, MOST)
        self.channel.gathered = self._batch
        self.broken: LedgerError | None = None
        self._values: dict[tuple[str, str], m.Given] = {}
        self._secrets: dict[tuple[str, str], Secret] = {}  # the same
        self._said: dict[str, tuple[int, int]] = {}  # refusals and bytes of a run that the daemon knows of
        self._asked: dict[int, tuple[Run, Told]] = {}  # claims without an answer, by the question's number
        self._claims: list[int] = []  # of this turn of the loop
        self._ends: list[m.Outcome] = []
        self._met: dict[str, Run] = {}  # those whose requests these are
        self._kinds: list[Kind | None] = [None] * m.KINDS
        self._known: dict[int, Kind] = {}  # the same by the identity of what is sent
        self._oldest = 0

    # -- secrets ------------------------------------------------------------------------------------------------------

    async def secret(self, run: Run, name: str) -> Secret:
        """The value that the daemon gave last, asked for where it gave none. Raises SecretUnavailable, LedgerError."""
        if (run.id, name) not in self._values:
            answer = await self._ask(lambda ask: m.Fetch(run.id, name, ask=ask))
            if not isinstance(answer, m.Given):
                raise TypeError(f"got a {type(answer).__name__} for a secret")
            self._keep(run, answer)
            fresh.get().add(name)
        return self._secrets[run.id, name]

    def _keep(self, run: Run, given: m.Given) -> None:
        secret = Secret(given.name, given.value)  # once: it looks at each of its characters
        self._values[run.id, given.name], self._secrets[run.id, given.name] = given, secret

    def doubt(self, run: Run, sent: Mapping[str, Secret]) -> None:
        """Say that a target refused these, of those that are as the daemon gave them last."""
        given = {name: self._values.get((run.id, name)) for name in sent}
        same = {name: g.version for name, g in given.items() if g is not None and g.value == sent[name].reveal()}
        if same and not self.channel.over:
            self.channel.add(m.Doubt(run.id, same))

    def forget(self, run_id: str) -> None:
        """A run is over."""
        for key in [key for key in self._values if key[0] == run_id]:
            del self._values[key], self._secrets[key]
        self._said.pop(run_id, None)
        self._met.pop(run_id, None)
        self._kinds = [None if kind is not None and kind.run == run_id else kind for kind in self._kinds]
        self._known = {id(kind.sent): kind for kind in self._known.values() if kind.run != run_id}

    # -- requests -----------------------------------------------------------------------------------------------------

    def known(self, run: Run, sent: Sent, key: Way) -> Kind | None:
        """What requests that are sent so are known by to the daemon, where it knows them."""
        kind = self._known.get(id(sent))
        if kind is None or kind.sent is not sent or kind.key != key or not self._holds(run, kind):
            return None
        return kind

    def again(self, run: Run, kind: Kind, told: Told) -> bool:
        """As claim, of one more request of a kind. False: its number means another one by now. Raises LedgerError."""
        if self._kinds[kind.number] is not kind:
            return False
        self._check()
        if not self._claims:
            self.channel.soon()
        number = self.channel.number()
        self._asked[number] = (run, told)
        self._claims.append(number * m.KINDS + kind.number)
        self._met[run.id] = run
        return True

    def _holds(self, run: Run, kind: Kind) -> bool:
        """Whether its secrets are as the daemon gave them last."""
        for name, version in kind.versions.items():
            given = self._values.get((run.id, name))
            if given is None or given.version != version:
                return False
        return True

    def kept(self, run: Run, name: str) -> Secret | None:
        """The value that the daemon gave last."""
        return self._secrets.get((run.id, name))

    def claim(
        self,
        run: Run,
        sent: Sent,
        key: Way,
        told: Told,
        *,
        use: Use,
        secrets: frozenset[str],
        marks: m.Marks,
        fields: m.Fields,
    ) -> None:
        """Have the daemon decide whether a request may go. Raises LedgerError, StaleSecrets.

        `told` gets the number of its intent, the Deny, StaleSecrets where the new values are here by now, or a
        CredgateError.
        """
        self._check()
        if not sent.holds({name: self._secrets[run.id, name] for name in sent.secrets}):
            raise StaleSecrets(())  # another request brought a new value while this one was rewritten
        versions = {name: self._values[run.id, name].version for name in secrets}
        kind, bindings = self._learn(run, sent, key, versions), [binding.name for binding in use.bindings]
        self.counted(run)
        claim = m.Claim(
            kind,
            run.id,
            run.generation,
            bindings,
            use.head,
            use.promised,
            versions,
            sorted(fresh.get() & secrets),
            marks,
            fields,
            ask=self.channel.number(),
        )
        self._asked[claim.ask] = (run, told)
        self.channel.post(claim)

    def _learn(self, run: Run, sent: Sent, key: Way, versions: Mapping[str, int]) -> int:
        """A number for a kind of claims, in the place of the one that was learnt first."""
        number, old = self._oldest, self._kinds[self._oldest]
        self._oldest = (number + 1) % m.KINDS
        if old is not None and self._known.get(id(old.sent)) is old:
            del self._known[id(old.sent)]
        kind = Kind(number=number, run=run.id, sent=sent, key=key, versions=versions)
        self._kinds[number] = self._known[id(sent)] = kind
        return number

    async def answer(self, run: Run, ask: Callable[[Told], None]) -> int | Deny:
        """What comes of a claim that `ask` makes. Raises StaleSecrets, SecretUnavailable, LedgerError."""
        waiting: asyncio.Future[int | Deny | Exception] = asyncio.get_running_loop().create_future()

        def told(answer: int | Deny | Exception) -> None:
            if waiting.done():
                self.broken_off(run, answer)
            else:
                waiting.set_result(answer)

        ask(told)
        try:
            answer = await waiting
        except asyncio.CancelledError:
            # the answer may be here already, and who waited was cancelled before its turn came
            if not waiting.cancelled():
                self.broken_off(run, waiting.result())
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _ask(self, make: Callable[[int], m.Message]) -> Any:
        self._check()
        try:
            answer = await self.channel.question(make)[1]
        except ChannelError as error:
            raise LedgerError("ledger_unavailable", "the daemon is gone") from error
        if isinstance(answer, m.Failed):
            raise _error(answer)
        return answer

    def answered(self, answer: m.Message) -> None:
        """Give an answer to who waits for it, or each of several."""
        if isinstance(answer, m.Passed):
            for ask, seq in zip(answer.asks, answer.seqs, strict=True):
                self._asked.pop(ask)[1](seq)
            return
        asked = self._asked.pop(answer.ask, None)
        if asked is None:
            self.channel.answered(answer)
        else:
            asked[1](self._verdict(asked[0], answer))

    def _verdict(self, run: Run, answer: m.Message) -> int | Deny | Exception:
        match answer:
            case m.Noted(seq=seq):
                return seq
            case m.Refused():
                return Deny(
                    reason=Reason(answer.reason),
                    message=answer.message,
                    status=answer.status,
                    rule=answer.rule,
                    hint=answer.hint,
                )
            case m.Stale():
                for given in answer.values:
                    self._keep(run, given)
                return StaleSecrets([given.name for given in answer.values])
            case m.Failed():
                return _error(answer)
        raise TypeError(f"got a {type(answer).__name__} for a claim")

    def broken_off(self, run: Run, answer: int | Deny | Exception) -> None:
        """Close the intent of a claim whose answer nobody waits for any more."""
        if isinstance(answer, int):
            with suppress(LedgerError):  # the daemon that is gone, or its ledger, has no use for it
                self.post("outcome", {"run": run.id, "intent_seq": answer, "detail": m.BROKEN_OFF})

    # -- lines --------------------------------------------------------------------------------------------------------

    def post(self, ev: str, fields: m.Fields, run: Run | None = None) -> None:
        """Have a line written, a moment later. Raises LedgerError."""
        self._check()
        if run is not None:
            self.counted(run)
        self.channel.add(m.Record(ev, fields))

    def ended(self, outcome: m.Outcome, run: Run) -> None:
        """Have the outcome of a request written, a moment later. Raises LedgerError."""
        self._check()
        if not self._ends:
            self.channel.later()
        self._ends.append(outcome)
        self._met[run.id] = run

    def _batch(self) -> m.Batch | None:
        """What is gathered by now, and goes behind what is to be counted of its runs."""
        claims, ends = self._claims, self._ends
        if not claims and not ends:
            return None
        self._claims, self._ends = [], []
        met, self._met = self._met, {}
        for run in met.values():
            self.counted(run)
        return m.Batch(claims, ends)

    def push(self, message: m.Message, run: Run | None = None) -> None:
        """Say something that the daemon has when this returns, whatever becomes of this process. Raises LedgerError."""
        self._check()
        if run is not None:
            self.counted(run)
        try:
            self.channel.push(message)
        except ChannelError as error:
            raise LedgerError("ledger_unavailable", "the daemon is gone") from error

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.channel.over:
            raise LedgerError("ledger_unavailable", "the daemon is gone")

    def counted(self, run: Run) -> None:
        """Say what was refused and sent of a run, and of those above it, since it was said last."""
        for level in run.levels():
            denied, sent = self._said.get(level.id, (0, 0))
            now = (level.denied, level.spent.bytes_out)
            if now != (denied, sent):
                self._said[level.id] = now
                self.channel.add(m.Counted(level.id, now[0] - denied, now[1] - sent))


def _error(failed: m.Failed) -> LedgerError | SecretUnavailable:
    kind = LedgerError if failed.ledger else SecretUnavailable
    return kind(failed.code, failed.detail, failed.hint)
