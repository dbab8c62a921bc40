"""What the resolver tells, as the ledger has it."""

import logging
from typing import TYPE_CHECKING

from credgate.errors import CredgateError
from credgate.ledger.writer import Ledger

if TYPE_CHECKING:
    from credgate.session import Session

log = logging.getLogger(__name__)


class ResolverEvents:
    """Writes what the resolver tells into the ledger. A ledger that is broken stops the gateway by itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sessions: dict[str, Session] = {}  # the daemon's

    def __call__(self, event: dict[str, object]) -> None:
        """One record of the resolver's."""
        ev = "alarm" if event.get("alarm") else "dns"
        run, name = event.get("run"), event.get("name")
        session = self.sessions.get(str(run)) if ev == "alarm" else None
        detail = f"{event.get('detail') or 'too many names'}"
        count = event.get("count")
        try:
            self._ledger.append(
                ev,
                run=str(run) if run else None,
                verdict=session.alarms.recorded(str(event.get("code")), detail) if session is not None else None,
                reason=str(event.get("code")),
                host=str(name) if name else None,
                qtype=str(event["qtype"]) if event.get("qtype") else None,
                detail=str(event["detail"]) if event.get("detail") else None,
                count=count if isinstance(count, int) else None,
            )
        except CredgateError as error:
            log.error("dns event not recorded: %s", error.detail)
