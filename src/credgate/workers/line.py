"""A worker's side of the socket: questions with their answers, lines that nobody waits for, and what it was told."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

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
    """A request was rewritten with values that count no more; the new ones are known by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A claim that the daemon knows but for what differs. `key`: what decides it beside the request that is sent."""

    number: int
    run: str
    sent: Sent = field(repr=False)
    key: tuple[object, ...]
    secrets: frozenset[str]


class Line:
    """Questions to the daemon, and the values of secrets as it gave them last."""

    def __init__(self, sock: socket.socket, take: Callable[[Any, list[int]], None], ended: Callable[[str], None]):
        self.channel = Channel(sock, m.for_worker, take, ended, MOST)
        self.broken: LedgerError | None = None
        self._values: dict[tuple[str, str], m.Given] = {}
        self._secrets: dict[tuple[str, str], Secret] = {}  # the same
        self._said: dict[str, tuple[int, int]] = {}  # refusals and bytes of a run that the daemon knows of
        self._claimed: dict[int, Run] = {}  # by the question's number
        self._kinds: list[_Kind | None] = [None] * m.KINDS
        self._known: dict[int, _Kind] = {}  # the same by the identity of what is sent
        self._oldest = 0

    # -- secrets ------------------------------------------------------------------------------------------------------

    async def secret(self, run: Run, name: str) -> Secret:
        """The value that the daemon gave last, asked for where it gave none. Raises SecretUnavailable, LedgerError."""
        if (run.id, name) not in self._values:
            answer = await self._ask(lambda ask: m.Fetch(run.id, name, ask=ask))
            if not isinstance(answer, m.Given):
                raise TypeError(f"got a {type(answer).__name__} for a secret")
            self._keep(run, answer)
        return self._secrets[run.id, name]

    def _keep(self, run: Run, given: m.Given) -> None:
        secret = Secret(given.name, given.value)  # once: it looks at each of its characters
        self._values[run.id, given.name], self._secrets[run.id, given.name] = given, secret
        fresh.get().add(given.name)

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
        self._kinds = [None if kind is not None and kind.run == run_id else kind for kind in self._kinds]
        self._known = {id(kind.sent): kind for kind in self._known.values() if kind.run != run_id}

    # -- requests -----------------------------------------------------------------------------------------------------

    async def again(self, run: Run, sent: Sent, key: tuple[object, ...]) -> int | Deny | None:
        """As claim, of a request that was claimed before with the same `sent` and `key`; None: there was none."""
        kind = self._known.get(id(sent))
        if kind is None or kind.sent is not sent or kind.key != key:
            return None
        versions = self._versions(run, kind.secrets)
        return self._verdict(run, await self._ask(lambda ask: m.Again(kind.number, versions, ask=ask), run))

    async def claim(
        self,
        run: Run,
        sent: Sent,
        key: tuple[object, ...],
        *,
        use: Use,
        secrets: frozenset[str],
        marks: m.Marks,
        fields: m.Fields,
    ) -> int | Deny:
        """The number of a request's intent once it may go, or why it may not.

        Raises StaleSecrets, SecretUnavailable, LedgerError.
        """
        kind, bindings = self._learn(run, sent, key, secrets), [binding.name for binding in use.bindings]
        versions = self._versions(run, secrets)
        answer = await self._ask(
            lambda ask: m.Claim(
                kind, run.id, run.generation, bindings, use.head, use.promised, versions, marks, fields, ask=ask
            ),
            run,
        )
        return self._verdict(run, answer)

    def _learn(self, run: Run, sent: Sent, key: tuple[object, ...], secrets: frozenset[str]) -> int:
        """A number for a kind of claims, in the place of the one that was learnt first."""
        number, old = self._oldest, self._kinds[self._oldest]
        self._oldest = (number + 1) % m.KINDS
        if old is not None and self._known.get(id(old.sent)) is old:
            del self._known[id(old.sent)]
        kind = _Kind(number=number, run=run.id, sent=sent, key=key, secrets=secrets)
        self._kinds[number] = self._known[id(sent)] = kind
        return number

    def _versions(self, run: Run, secrets: frozenset[str]) -> dict[str, int]:
        return {name: self._values[run.id, name].version for name in secrets - fresh.get()}

    def _verdict(self, run: Run, answer: Any) -> int | Deny:
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
                raise StaleSecrets
        raise TypeError(f"got a {type(answer).__name__} for a claim")

    async def _ask(self, make: Callable[[int], m.Message], claimed: Run | None = None) -> Any:
        self._check()
        if claimed is not None:
            self.counted(claimed)
        number, asked = self.channel.question(make)
        if claimed is not None:
            self._claimed[number] = claimed
        try:
            answer = await asked
        except ChannelError as error:
            raise LedgerError("ledger_unavailable", "the daemon is gone") from error
        except asyncio.CancelledError:
            # the answer may be here already, and who waited was cancelled before its turn came
            if claimed is not None and asked.done() and not asked.cancelled() and asked.exception() is None:
                self._broken_off(claimed, asked.result())
            raise
        if isinstance(answer, m.Failed):
            kind = LedgerError if answer.ledger else SecretUnavailable
            raise kind(answer.code, answer.detail, answer.hint)
        return answer

    def answered(self, answer: m.Message) -> None:
        """Give an answer to who waits for it, or each of several."""
        if isinstance(answer, m.Passed):
            for ask, seq in zip(answer.asks, answer.seqs, strict=True):
                self._answered(m.Noted(seq, ask=ask))
        else:
            self._answered(answer)

    def _answered(self, answer: m.Message) -> None:
        """Where nobody waits for it any more, the intent that came of it is closed."""
        run = self._claimed.pop(answer.ask, None)
        if not self.channel.answered(answer) and run is not None:
            self._broken_off(run, answer)

    def _broken_off(self, run: Run, answer: m.Message) -> None:
        if isinstance(answer, m.Noted):
            with suppress(LedgerError):  # the daemon that is gone, or its ledger, has no use for it
                detail = "broken off before it was sent"
                self.post("outcome", {"run": run.id, "intent_seq": answer.seq, "detail": detail})

    # -- lines --------------------------------------------------------------------------------------------------------

    def post(self, ev: str, fields: m.Fields, run: Run | None = None) -> None:
        """Have a line written, a moment later. Raises LedgerError."""
        self._check()
        if run is not None:
            self.counted(run)
        self.channel.add(m.Record(ev, fields))

    def ended(self, ended: m.Ended, run: Run) -> None:
        """Have the outcome of a request written, a moment later. Raises LedgerError."""
        self._check()
        self.counted(run)
        self.channel.add(ended)

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
