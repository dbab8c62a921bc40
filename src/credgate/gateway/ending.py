"""How a client connection ends that its run, its rights or a fault of ours ends: nothing more sent, everything told."""

import logging
import traceback
from typing import TYPE_CHECKING

from credgate.gateway.exchange import ClientState
from credgate.ledger.record import LedgerError
from rules.reasons import Reason

if TYPE_CHECKING:
    from credgate.gateway.hooks import Hooks

logger = logging.getLogger(__name__)


class Ending:
    """What both kinds of a client connection have in common. `kill` is the guard behind every guard."""

    state: ClientState
    dead = False  # nothing that comes is looked at any more
    _hooks: "Hooks"

    def kill(self) -> None:
        """Close the client's connection and every upstream one at once, with nothing more sent on any."""
        raise NotImplementedError

    def end(self, reason: Reason, detail: str) -> None:
        """Kill, and say so in the ledger: for each exchange on its way, else for the connection."""
        if self.dead:
            return
        self.kill()
        records = self._hooks.judge.records
        try:
            pending = tuple(self.state.exchanges)
            for exchange in pending:
                records.outcome(self.state, exchange, reason=reason, detail=detail)
            if not pending:
                records.connection(self.state, reason, detail=detail)
        except LedgerError as error:
            logger.error("gateway: %s, and the ledger can't be written: %s", detail, error.code)

    def close(self, detail: str) -> None:
        """End this connection because its run ended, or what it was allowed was taken back."""
        if self.dead:
            return
        self.kill()
        self._record_ends(detail)

    def _record_ends(self, detail: str) -> None:
        """Give every exchange on its way its outcome."""
        try:
            for exchange in tuple(self.state.exchanges):
                self._hooks.judge.records.outcome(self.state, exchange, detail=detail)
        except LedgerError as error:
            logger.error("gateway: %s, and the ledger can't be written: %s", detail, error.code)

    def _record_if_dead(self) -> None:
        """Where all ended while something was at work, what that began goes no further."""
        if self.dead:
            self._record_ends("client closed the connection")


def where(error: BaseException) -> str:
    """File and line, without the error's text, which may quote what came over the wire."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
