"""What stands in a worker where the daemon's own process has the vault, the counters and the ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from credgate.gateway.clientcert import certificate_of
from credgate.gateway.exchange import ClientState, Exchange, Key
from credgate.gateway.floods import Fields, Floods
from credgate.gateway.judge import Judge, over
from credgate.gateway.noting import Told as Tell
from credgate.gateway.prepared import Sent
from credgate.gateway.records import Records, pin_of
from credgate.gateway.waiting import BodyWanted
from credgate.known import KnownValues
from credgate.minting.jailcall import LocalAnswer
from credgate.runs import Run
from credgate.secretvalue import Secret
from credgate.workers import messages as m
from credgate.workers.line import Kind, Line, StaleSecrets, Told, Way, fresh
from rules.correlate import Marks
from rules.grants import Use
from rules.request import Outgoing, Wire
from rules.verdict import Deny

_TRIES = 3  # a secret that changes while a request is rewritten with it


class RemoteLedger:
    """Takes the lines that nobody waits for. The intent is Line.claim's."""

    def __init__(self, line: Line, runs: Mapping[str, Run]) -> None:
        self._line, self._runs = line, runs

    def append(self, ev: str, numbered: object = None, /, **fields: object) -> int:
        """Have a line written. Raises LedgerError. Returns 0: its number is nobody's business here.

        An outcome may wait for some milliseconds: should this process die first, the daemon writes one. What has no
        line to be missed by is with the daemon before this returns.
        """
        if numbered is not None:
            raise TypeError(f"a line of {ev!r} has to be claimed")
        plain, run = _plain(fields), self._runs.get(str(fields.get("run")))
        if ev == "outcome":
            self._line.post(ev, plain, run)
        else:
            self._line.push(m.Record(ev, plain), run)
        return 0

    def ended(self, run: Run, exchange: Exchange, pin: str) -> None:
        """Have the outcome of a request that went as it should written, a moment later. Raises LedgerError."""
        x = exchange
        self._line.ended((x.intent_seq, pin, x.status, x.req_bytes, x.resp_bytes, x.ms, x.ids), run)

    async def durable(self, _seq: int) -> None:
        """At once: a claim's answer says that its line is on the disk."""


def _plain(fields: Mapping[str, object]) -> m.Fields:
    """As it can be sent: sets as the ledger would have them, nothing that it would leave out."""
    out: dict[str, object] = {}
    for name, value in fields.items():
        if value is None or value in ("", (), {}):
            continue
        out[name] = (
            sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
        )
    return cast("m.Fields", out)


class RemoteFloods(Floods):
    """Counts here, and has the daemon count with it: what is not written yet must not be lost with this process."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[str, Fields], None]) -> None:
        Floods.__init__(self)
        self._tell = tell

    def hold(self, run: str, fields: Fields, now: float) -> str:
        """As Floods.hold."""
        held = Floods.hold(self, run, fields, now)
        if held:
            self._tell(held, fields)
        return held


def records(line: Line, runs: Mapping[str, Run], known: KnownValues) -> Records:
    """What a worker writes its records with."""

    def tell(held: str, fields: Fields) -> None:
        kept = {name: value for name, value in fields.items() if name not in ("ev", "query_names", "sni")}
        line.push(m.Held(held, _plain(kept)), runs.get(str(fields.get("run"))))

    ledger: Any = RemoteLedger(line, runs)  # has of a ledger what records need
    return Records(ledger, known, RemoteFloods(tell))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteJudge(Judge):
    """Judges as Judge does. Values of secrets are as the daemon gave them last, and it looks once more at the claim."""

    is_here: ClassVar[bool] = False

    line: Line

    def notes(self) -> "RemoteNotes":
        """As Judge.notes."""
        return RemoteNotes(self.line)

    async def _judge(
        self, state: ClientState, exchange: Exchange, wire: Wire, connected: frozenset[Key], body: bytes | None
    ) -> Outgoing | BodyWanted | LocalAnswer | Deny:
        fresh.set(set())
        for _ in range(_TRIES):
            try:
                return await Judge._judge(self, state, exchange, wire, connected, body)
            except StaleSecrets as stale:
                fresh.get().update(stale.names)
        raise RuntimeError("the secrets of a request change all the time")

    async def fetch(self, run: Run, name: str) -> Secret:
        """As Judge.fetch."""
        secret = await self.line.secret(run, name)
        self.known.add(name, secret.reveal())
        return secret

    def kept(self, run: Run, name: str) -> Secret | None:
        """As Judge.kept, as far as this process knows: the daemon looks at each claim."""
        return self.line.kept(run, name)

    def asking(self, run: Run, name: str) -> Callable[[], Secret | None]:
        """As Judge.asking."""
        return partial(self.line.kept, run, name)

    def doubt(self, run: Run, sent: Mapping[str, Secret]) -> None:
        """As Judge.doubt: what is minted is the daemon's."""
        self.line.doubt(run, sent)

    async def _noted(
        self,
        state: ClientState,
        exchange: Exchange,
        marks: Marks,
        bindings: Mapping[str, str],
        use: Use,
    ) -> Deny | None:
        closed = over(state, use)
        if closed is not None:
            return closed
        claimed = await self._claim(state, exchange, marks, bindings, use)
        if isinstance(claimed, Deny):
            return claimed
        exchange.intent_seq = claimed
        state.exchanges.add(exchange)
        return over(state, use)

    async def _claim(
        self, state: ClientState, exchange: Exchange, marks: Marks, bindings: Mapping[str, str], use: Use
    ) -> int | Deny:
        """The line of a request's intent, or why it may not go."""
        run, sent = state.run, exchange.sent
        if sent is None:
            raise RuntimeError("claimed before it was rewritten")
        # what decides the line beside the request itself, as of the daemon's own requests: see Records
        note = "" if exchange.target is None else exchange.target.note
        key = Way(run.generation, run.proof, pin_of(exchange), note)

        def ask(told: Told) -> None:
            kind = None if fresh.get() else self.line.known(run, sent, key)
            if kind is not None and self.line.again(run, kind, told):
                return
            self.line.claim(
                run,
                sent,
                key,
                told,
                use=use,
                secrets=frozenset(bindings.values()) | _of_connection(exchange),
                marks=m.Marks(names=[name.value for name in marks.names], client_key=marks.client_key),
                fields=_plain(self.records.intent_fields(state, exchange, tuple(bindings), tuple(bindings.values()))),
            )

        return await self.line.answer(run, ask)


class RemoteNotes:
    """As OwnNotes, of a ledger that another process has."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def find(self, state: ClientState, sent: Sent, pin: str, note: str) -> Kind | None:
        """As Notes."""
        return self._line.known(state.run, sent, Way(state.run.generation, state.run.proof, pin, note))

    def note(self, state: ClientState, exchange: Exchange, _use: Use, way: Kind, told: Tell) -> bool:
        """As Notes."""

        def answered(answer: int | Deny | Exception) -> None:
            if isinstance(answer, int):
                exchange.intent_seq = answer
                state.exchanges.add(exchange)
            told(None)

        return self._line.again(state.run, way, answered)

    def is_noted(self, seq: int, /) -> bool:
        """As Notes: the daemon tells no number before."""
        return seq > 0

    def went(self, state: ClientState, exchange: Exchange, way: Kind) -> None:
        """As Notes."""
        x, run = exchange, state.run
        x.finished = True
        state.exchanges.discard(x)
        self._line.ended((x.intent_seq, way.key.pin, x.status, x.req_bytes, x.resp_bytes, x.ms, x.ids), run)


def _of_connection(exchange: Exchange) -> frozenset[str]:
    """Names of the secrets that the upstream connection itself needs."""
    allow = exchange.allow
    if allow is None:
        return frozenset()
    shown, proxy = certificate_of(allow), allow.endpoint.proxy
    names = {"" if shown is None else shown.secret, "" if proxy is None else proxy.secret}
    return frozenset(names - {""})
