"""What the gateway writes into the ledger: which request, which verdict, how it ended. No header values, no bodies."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from credgate.gateway.digests import digests_of
from credgate.gateway.exchange import ClientState, Exchange
from credgate.gateway.floods import WINDOW, Fields, Floods
from credgate.gateway.ledgers import Appends, TakesEnds, TakesForms, TellsSyncs
from credgate.gateway.linefields import Pipe, pipe_fields, request_fields, run_fields, wire_fields
from credgate.gateway.refusal import Refusal
from credgate.known import KnownValues
from credgate.ledger.form import Form, fragment
from credgate.ledger.linking import Given, Values
from credgate.ledger.record import LedgerError, clean_fields
from credgate.runs import TURNED_AWAY
from rules.correlate import DEFAULT, Marks
from rules.reasons import Reason
from rules.request import Wire
from rules.scrub import Table

if TYPE_CHECKING:
    from credgate.gateway.prepared import Sent

_MOST_FORMS = 1024
_OWN_WORDS = ("method", "path", "query_names")  # of an intent, what differs from one request to the next
_COUNTED = ("ids", "intent_seq", "ms", "req_bytes", "resp_bytes", "status")  # likewise of an outcome
logger = logging.getLogger(__name__)

# Refusals that mean more than a wrong request: something in the jail tries what it was lent where it does not belong.
ALARMING = frozenset({Reason.PLACEHOLDER_MISPLACED, Reason.SECRET_MISPLACED})


class Records:
    """Writes for one ledger. Every method raises LedgerError when the line can't be written."""

    def __init__(self, ledger: Appends, known: KnownValues, floods: Floods | None = None) -> None:
        self.ledger = ledger
        self._known = known
        # one that stands in another process takes plain fields
        self._forms = ledger if isinstance(ledger, TakesForms) else None
        self.tells = ledger if isinstance(ledger, TellsSyncs) else None  # asked once: such a look takes 10 us
        self._ends = ledger if isinstance(ledger, TakesEnds) else None
        self._known_forms: dict[tuple[object, ...], Form] = {}
        self._floods = Floods() if floods is None else floods
        self._sweeping: asyncio.TimerHandle | None = None

    def intent(
        self, state: ClientState, exchange: Exchange, bindings: tuple[str, ...], secrets: tuple[str, ...], marks: Marks
    ) -> int:
        """Say that a request will be forwarded; returns the line's number, which is in what `marks` adds to it.

        With a secret the line may still be in memory: it counts once `ledger.durable` of it has returned.
        """
        if self._forms is None or exchange.sent is None:
            return self.ledger.append(
                "intent",
                lambda seq: {"ua_tag": marks.ua_tag(seq), "ids": marks.ids(seq)},
                **self.intent_fields(state, exchange, bindings, secrets),
            )
        form, values = self._intent_form(state, exchange, exchange.sent, marks)
        return self._forms.put(form, values, held=bool(bindings))

    def _intent_form(self, state: ClientState, exchange: Exchange, sent: "Sent", marks: Marks) -> tuple[Form, Given]:
        """The line but for its number, the same for each sending of the same head on the same way: a form that requests
        of one kind share, and the values of this one.
        """
        key = _way(state, pin_of(exchange), "" if exchange.target is None else exchange.target.note)
        if sent.form is None or sent.form[0] != key:
            fields = self.intent_fields(state, exchange, tuple(sent.names), tuple(sent.names.values()))
            form, words = self._split("intent", fields, _OWN_WORDS, ("ids", "ua_tag"))
            sent.form = (key, form, _numbered(words, marks))
        return sent.form[1:]

    def known_intent(self, state: ClientState, pin: str, note: str, sent: "Sent") -> tuple[Form, Given] | None:
        """The same of a request that was sent so before; None where it wasn't."""
        form = sent.form
        return None if form is None or self._forms is None or form[0] != _way(state, pin, note) else form[1:]

    def put(self, form: Form, values: Given, *, held: bool = True) -> int:
        """As intent, by what `known_intent` or `claim` returned; `held` where a secret is in it."""
        forms = self._forms
        return (self._own if forms is None else forms).put(form, values, held=held)

    def claim(self, fields: Mapping[str, object], marks: Marks) -> tuple[Form, Given]:
        """What intents of another process of the gateway are written by; `fields` as intent_fields gives them.

        Raises TypeError for a field that no intent has.
        """
        form, words = self._split("intent", fields, _OWN_WORDS, ("ids", "ua_tag"))
        return form, _numbered(words, marks)

    def put_all(self, form: Form, many: Sequence[Given], into: list[int], *, held: bool) -> None:
        """As `put`, of requests of one kind. `into`, which is empty, gets the number of each line that is made, also
        where this raises: after a LedgerError none of those that aren't `held` may be in the file.
        """
        put, last = self._own.put, len(many) - 1
        for place, values in enumerate(many):
            into.append(put(form, values, held=held or place < last))

    def ended(self, run: str, pin: str, counted: Sequence[Values], into: list[int], *, held: bool) -> None:
        """As outcome, of requests that another process of the gateway sent and that went as they should.

        `counted`: of each the values of _COUNTED. Raises TypeError for too many ids; `into` as in put_all. `held`: the
        lines may be in memory until the next one that isn't, or a sync.
        """
        self.put_all(self.outcome_form(run, pin), counted, into, held=held)

    @property
    def _own(self) -> TakesForms:
        if self._forms is None:
            raise RuntimeError("a ledger of another process")
        return self._forms

    def _split(
        self, ev: str, fields: Mapping[str, object], own: tuple[str, ...], more: tuple[str, ...] = ()
    ) -> tuple[Form, tuple[bytes | None, ...]]:
        """The form that lines of one kind share, and the words of this one: None for one that doesn't apply."""
        cleaned = clean_fields(ev, {name: fields[name] for name in own if name in fields})
        words = tuple([fragment(name, cleaned[name]) if name in cleaned else None for name in own])
        shared = {name: value for name, value in fields.items() if name not in own}
        return self._form(ev, shared, (*own, *more)), words

    def _form(self, ev: str, fields: Mapping[str, object], holes: tuple[str, ...]) -> Form:
        """The form of lines with these fields, made once."""
        key = (ev, *fields.items())
        form = self._known_forms.get(key)
        if form is None:
            if len(self._known_forms) >= _MOST_FORMS:
                self._known_forms.clear()
            form = self._known_forms[key] = Form(ev, fields, holes)
        return form

    def outcome_form(self, run: str, pin: str) -> Form:
        """Of plain outcomes."""
        form = self._known_forms.get((run, pin))
        if form is None:
            form = self._known_forms[run, pin] = self._form("outcome", {"run": run, "pin": pin}, _COUNTED)
        return form

    @staticmethod
    def intent_fields(
        state: ClientState, exchange: Exchange, bindings: tuple[str, ...], secrets: tuple[str, ...]
    ) -> dict[str, object]:
        """What that line holds before it has a number."""
        allow = exchange.allow
        return {
            **run_fields(state),
            **request_fields(exchange),
            "verdict": "allow",
            "rule": "" if allow is None else allow.rule,
            "route": "" if allow is None else allow.route,
            "asked": exchange.asked,
            "binding": ",".join(bindings),
            "secret": ",".join(secrets),
            "cred_fp": exchange.cred_fp,
            "pin": pin_of(exchange),
            "detail": "" if exchange.target is None else exchange.target.note,
        }

    def outcome(
        self, state: ClientState, exchange: Exchange, *, reason: Reason | None = None, detail: str = ""
    ) -> None:
        """Say how a forwarded request ended: once, however many ends it has."""
        exchange.disarm()
        state.exchanges.discard(exchange)
        if exchange.finished:
            return
        exchange.finished = True
        state.run.turned_away += exchange.status in TURNED_AWAY
        if reason in ALARMING:
            state.run.alarm(reason.value, detail)
        more = {} if _is_plain(exchange, reason, detail) else _outcome_words(exchange, reason, detail)
        if self._ends is not None and not any(more.values()):
            self._ends.ended(state.run, exchange, pin_of(exchange))
            return
        if self._forms is None or any(more.values()):
            self._ended(state, exchange, more)
            return
        self._forms.put(self.outcome_form(state.run.id, pin_of(exchange)), _counted(exchange))

    def went(self, state: ClientState, exchange: Exchange, form: Form) -> None:
        """As outcome, of a request that is known to have gone as it should; `form` as outcome_form gives it."""
        exchange.finished = True
        state.exchanges.discard(exchange)
        state.run.turned_away += exchange.status in TURNED_AWAY
        forms = self._forms
        (self._own if forms is None else forms).put(form, _counted(exchange))

    def _ended(self, state: ClientState, exchange: Exchange, more: dict[str, object]) -> None:
        self.ledger.append(
            "outcome",
            run=state.run.id,
            intent_seq=exchange.intent_seq,
            pin=pin_of(exchange),
            status=exchange.status or None,
            req_bytes=exchange.req_bytes,
            resp_bytes=exchange.resp_bytes,
            ms=exchange.ms,
            ids=exchange.ids,
            **more,
        )

    def deny(
        self, state: ClientState, exchange: Exchange, refusal: Refusal, wire: Wire | None, detail: str = ""
    ) -> None:
        """Say that a request was refused. `wire` gives the names where the request has no normal form."""
        exchange.finished = True
        if refusal.deny.reason in ALARMING:
            told = refusal.deny.hint if refusal.deny.reason is Reason.SECRET_MISPLACED else refusal.deny.message
            state.run.alarm(refusal.deny.reason.value, told)
        held = self._refused(
            state,
            **self._masked(request_fields(exchange) if exchange.request else wire_fields(wire)),
            reason=refusal.deny.reason.value,
            rule=refusal.deny.rule,
            status=refusal.deny.status,
            detail=detail or refusal.deny.hint,
            request_id=refusal.request_id,
        )
        if held:  # the answer names the line that this refusal is counted in
            exchange.refusal = replace(refusal, request_id=held)

    def answered(self, state: ClientState, exchange: Exchange, mint: str) -> None:
        """Say that the jail's own refresh call was answered here. No host: no target has a record of it."""
        exchange.finished = True
        self.ledger.append(
            "mint", **run_fields(state), verdict="answered", rule=f"mint.{mint}", detail="the jail's own refresh call"
        )

    def connection(self, state: ClientState, reason: Reason, *, detail: str = "", request_id: str = "") -> None:
        """Say that a connection was refused that never came to a request."""
        self._refused(
            state,
            reason=reason.value,
            **self._masked({"host": state.connect_host.decode("latin-1")}),
            port=state.port,
            detail=detail,
            request_id=request_id,
        )

    def _masked(self, fields: dict[str, object]) -> dict[str, object]:
        """What a jail chose, without the secrets that it may have put there."""
        table = self._known.table()
        return {name: _clean(table, value) for name, value in fields.items()}

    def _refused(self, state: ClientState, **more: object) -> str:
        """Write a denial, or count it among those that are alike: then the id of the line that will stand for it."""
        fields = {"ev": "deny", **run_fields(state), "verdict": "deny", **more}
        held = self._floods.hold(state.run.id, fields, asyncio.get_running_loop().time())
        if not held:
            self._write(fields)
        self._arm()
        return held

    def _write(self, fields: Fields) -> None:
        self.ledger.append(str(fields["ev"]), **{name: value for name, value in fields.items() if name != "ev"})

    def _arm(self) -> None:
        if self._sweeping is None and not self._floods.empty:
            self._sweeping = asyncio.get_running_loop().call_later(WINDOW, self._sweep)

    def _sweep(self) -> None:
        """Write what was counted in windows that are over."""
        self._sweeping = None
        try:
            for fields in self._floods.due(asyncio.get_running_loop().time()):
                self._write(fields)
        except LedgerError as error:  # nothing passes then, and the ledger says so itself
            logger.error("gateway: counted refusals are not recorded: %s", error.code)
        self._arm()

    def settle(self, run: str) -> None:
        """Write what is still counted of a run that ends."""
        for fields in self._floods.end(run):
            self._write(fields)

    def tunnel(self, state: ClientState, pipe: "Pipe") -> None:
        """Say that opaque bytes will pass; `pipe` gets the line's number."""
        pipe.seq = self.ledger.append(
            "tunnel", **run_fields(state), **pipe_fields(pipe), verdict="allow", pin=pipe.pin, detail=pipe.note
        )

    def tunnel_end(self, state: ClientState, pipe: "Pipe", *, reason: Reason | None, detail: str) -> None:
        """Say how many did, and how it ended."""
        self.ledger.append(
            "tunnel",
            run=state.run.id,
            **pipe_fields(pipe),
            intent_seq=pipe.seq,
            reason=reason.value if reason else "",
            detail=detail,
            pin=pipe.pin,
            req_bytes=pipe.req_bytes,
            resp_bytes=pipe.resp_bytes,
            ms=int((time.monotonic() - pipe.started) * 1000),
        )

    def broken_off(self, state: ClientState, sni: str) -> None:
        """Say that a client did not finish TLS with us: most often one that does not know our CA."""
        self.ledger.append(
            "tunnel", **run_fields(state), port=state.port, sni=sni, detail="the client broke off the TLS handshake"
        )


def _way(state: ClientState, pin: str, note: str) -> tuple[str, ...]:
    return (state.run.proof, pin, note)


def _numbered(words: tuple[bytes | None, ...], marks: Marks) -> Given:
    """The values of an intent, `ids` and `ua_tag` behind its words."""
    begin = marks.ua_tag_begin.encode("ascii")
    tag = (begin,) if begin else None
    if marks.names <= DEFAULT:
        return (*words, None, tag)
    return lambda seq: (*words, marks.ids(seq), tag)


def _counted(exchange: Exchange) -> Values:
    """What differs from one outcome to the next, in the order of _COUNTED."""
    return (
        exchange.ids or None,
        exchange.intent_seq,
        int((time.monotonic() - exchange.started) * 1000),
        exchange.req_bytes,
        exchange.resp_bytes,
        exchange.status or None,
    )


def _is_plain(exchange: Exchange, reason: Reason | None, detail: str) -> bool:
    """Whether there is nothing that _outcome_words would say: asked without making the words."""
    said = reason or detail or exchange.why or exchange.scrubbed or exchange.tunnels
    return not (said or exchange.digests or exchange.quoted or exchange.refusal)


def _outcome_words(exchange: Exchange, reason: Reason | None, detail: str) -> dict[str, object]:
    """What is said of an exchange beyond its numbers: nothing, mostly."""
    words = (detail or exchange.why, *(f"scrubbed: {what}" for what in exchange.scrubbed))
    return {
        "reason": reason.value if reason else "",
        "detail": "; ".join(filter(None, words)),
        **digests_of(exchange, reason),
        "placeholder_skipped": () if exchange.quoted is None else tuple(sorted(exchange.quoted.found)),
        "request_id": exchange.refusal.request_id if exchange.refusal else "",
        "tunnels": exchange.tunnels,
    }


def _clean(table: Table, value: object) -> object:
    if isinstance(value, str):
        return table.clean(value.encode("utf-8", "surrogateescape"))[0].decode("utf-8", "surrogateescape")
    return tuple(_clean(table, one) for one in value) if isinstance(value, tuple) else value


def pin_of(exchange: Exchange) -> str:
    """What the ledger says of the address that it goes to."""
    return exchange.pin if exchange.target is None else exchange.target.pin(exchange.pin)
