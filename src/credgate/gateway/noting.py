"""How the lines of a known request are written: here, or by the process that has the ledger."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from credgate.gateway import standing
from credgate.gateway.exchange import ClientState, Exchange
from credgate.gateway.ledgers import TellsSyncs
from credgate.ledger.form import Form
from credgate.ledger.linking import Given
from credgate.ledger.record import LedgerError
from rules.grants import Use
from rules.verdict import Deny

if TYPE_CHECKING:
    from credgate.gateway.prepared import Sent
    from credgate.gateway.records import Records

type Told = Callable[[Exception | None], object]


class Notes[W](Protocol):
    """`W` is what is known of the lines of one kind of requests."""

    def find(self, state: ClientState, sent: "Sent", pin: str, note: str) -> W | None:
        """Those of a request that was sent so before, to that address; None where it wasn't."""

    def note(self, state: ClientState, exchange: Exchange, use: Use, way: W, told: Told) -> bool:
        """Spend a request and have its intent written. `told` is called later, and has to ask `is_noted` then.

        False: nothing was done, and whoever judges it finds why.
        """

    def is_noted(self, seq: int, /) -> bool:
        """Whether an intent is on the disk, by its number. With 0 there is none: it has to be judged anew."""

    def went(self, state: ClientState, exchange: Exchange, way: W) -> None:
        """As Records.outcome, of a request that is known to have gone as it should."""


class Own(msgspec.Struct, eq=False, frozen=True):
    """The forms of both lines, and the values of the first."""

    intent: Form
    values: Given
    outcome: Form


class OwnNotes:
    """Of a ledger of this process."""

    __slots__ = ("_ledger", "_records")

    def __init__(self, records: "Records", ledger: TellsSyncs) -> None:
        self._ledger, self._records = ledger, records

    def find(self, state: ClientState, sent: "Sent", pin: str, note: str) -> Own | None:
        """As Notes."""
        known = self._records.known_intent(state, pin, note, sent)
        return None if known is None else Own(*known, self._records.outcome_form(state.run.id, pin))

    def note(self, state: ClientState, exchange: Exchange, use: Use, way: Own, told: Told) -> bool:
        """As Notes."""
        if isinstance(standing.charge(state.run, use), Deny):
            return False
        try:
            exchange.intent_seq = self._records.put(way.intent, way.values)
        except LedgerError:  # closed for good: the ordinary way says so, and what was spent is no matter
            return False
        state.exchanges.add(exchange)
        self._ledger.tell(told)
        return True

    def is_noted(self, seq: int, /) -> bool:
        """As Notes."""
        return seq > 0 and self._ledger.has(seq)

    def went(self, state: ClientState, exchange: Exchange, way: Own) -> None:
        """As Notes."""
        self._records.went(state, exchange, way.outcome)
