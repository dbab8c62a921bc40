"""What of a ledger the gateway's records ask for, be it one of this process or of another."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from credgate.gateway.exchange import Exchange
    from credgate.ledger.form import Form
    from credgate.ledger.linking import Given
    from credgate.ledger.syncing import Told
    from credgate.runs import Run


class Appends(Protocol):
    """What of a ledger is asked for here, be it one of this process or of another."""

    def append(
        self, ev: str, numbered: Callable[[int], Mapping[str, object]] | None = None, /, **fields: object
    ) -> int:
        """As Ledger.append."""
        ...

    async def durable(self, seq: int, /) -> None:
        """As Ledger.durable."""
        ...


@runtime_checkable
class TakesForms(Protocol):
    """A ledger of this process."""

    def put(self, form: "Form", values: "Given", *, held: bool = False) -> int:
        """As Ledger.put."""
        ...


@runtime_checkable
class TakesEnds(Protocol):
    """A ledger of another process, which is told of plain outcomes in fewer words."""

    def ended(self, run: "Run", exchange: "Exchange", pin: str) -> None:
        """A request went as it should."""
        ...


@runtime_checkable
class TellsSyncs(Protocol):
    """A ledger of this process, which needs no coroutine to say that a line is on the disk."""

    def tell(self, told: "Told") -> None:
        """As Ledger.tell."""
        ...

    def has(self, seq: int) -> bool:
        """As Ledger.has."""
        ...
