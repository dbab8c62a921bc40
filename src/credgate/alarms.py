"""What an alarm does: a line in the ledger, a line for whoever started the run, and the consequence its role chose.

A jail can provoke alarms as fast as it can ask: of each kind one is told in ten seconds, the others are counted.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from credgate.errors import CredgateError
from rules.policy import OnAlarm

if TYPE_CHECKING:
    from credgate.session import Session
    from jail import fdpass

log = logging.getLogger(__name__)

QUIET = 10.0  # seconds between two words about one kind of alarm
LAST_WORD = 0.2  # seconds in which the refusal that raised an alarm may still reach its client before all is cut


class Alarms:
    """The alarms of one session; called by the gateway with kind and detail. Never raises for what it is told."""

    def __init__(self, session: "Session") -> None:
        self.killed = asyncio.Event()  # the session ends itself
        self._session = session
        self._told: dict[str, float] = {}
        self._since: Counter[str] = Counter()  # alarms of a kind since one was told

    def __call__(self, kind: str, detail: str) -> None:
        """One alarm of the gateway's: ledger, message, consequence."""
        action = self._session.run.role_rule.on_alarm
        self._since[kind] += 1
        acted = self._act(action)  # a consequence is never without its line
        if self._is_due(kind) or acted:
            self._record(kind, detail, action.value, self._since.pop(kind))
            self._tell(kind, detail, action.value)

    def recorded(self, kind: str, detail: str) -> str:
        """One alarm that somebody else writes down; returns the word for its `verdict`."""
        action = self._session.run.role_rule.on_alarm
        acted = self._act(action)
        if self._is_due(kind) or acted:
            self._tell(kind, detail, action.value)
        return action.value

    def notify(self, kind: str, detail: str) -> None:
        """One alarm that the jail had no part in: ledger and message, whatever the role says."""
        self._record(kind, detail, OnAlarm.NOTIFY.value, 1)
        self._tell(kind, detail, OnAlarm.NOTIFY.value)

    def _is_due(self, kind: str) -> bool:
        now = time.monotonic()
        if now - self._told.get(kind, -QUIET) < QUIET:
            return False
        self._told[kind] = now
        return True

    def _record(self, kind: str, detail: str, verdict: str, count: int) -> None:
        run = self._session.run
        try:
            self._session.parts.ledger.append(
                "alarm",
                run=run.id,
                role=run.role,
                reason=kind,
                detail=detail,
                verdict=verdict,
                count=count if count > 1 else None,
            )
        except CredgateError as error:  # the gateway refuses everything then
            log.error("run %s: alarm %s is not recorded: %s", run.id, kind, error.detail)

    def _tell(self, kind: str, detail: str, action: str) -> None:
        body: fdpass.Json = {"ev": "alarm", "run": self._session.run.id, "kind": kind, "detail": detail}
        try:  # at once or not at all: the launcher may be stopped, and the ledger has it
            self._session.caller.put({**body, "action": action})
        except OSError as error:
            log.info("run %s: the launcher was not told of an alarm: %s", self._session.run.id, error.strerror)

    def _act(self, action: OnAlarm) -> bool:
        """Do what the role chose; whether that changed anything."""
        run = self._session.run
        match action:
            case OnAlarm.NOTIFY:
                return False
            case OnAlarm.PAUSE:
                if run.paused:
                    return False
                run.paused = True
            case OnAlarm.KILL:
                if self.killed.is_set():
                    return False
                run.revoked = True
                self.killed.set()
        self._session.parts.gateway.tell(run)
        asyncio.get_running_loop().call_later(LAST_WORD, self._cut)
        return True

    def _cut(self) -> None:
        for session in self._session.live():
            session.parts.gateway.cut(session.run.id, "an alarm stopped the run")
