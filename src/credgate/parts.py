"""What sessions are made of and what they say: the daemon's parts, how a jail ended, the words of a refusal."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from credgate.copies import Copies
from credgate.errors import CredgateError
from credgate.evidence import Evidence
from credgate.gateway.server import Gateway
from credgate.ledger.writer import Ledger
from credgate.paths import Places
from credgate.prepare import Person
from credgate.reserved import Reserved
from credgate.runs import Run
from credgate.spares import Spares
from credgate.stand import StandProcess
from credgate.states import States
from credgate.trees import Claims
from credgate.trust import Trust
from jail import fdpass
from jail.errors import JailError
from jail.keeper_client import KeeperProcess
from jail.starter_client import StarterProcess
from resolver.client import ResolverProcess
from resolver.errors import ResolverError

REFUSED = 125


class Refusal(CredgateError):
    """The run does not start; exit_status 125 (126, 127 where the command is at fault)."""

    def __init__(self, code: str, detail: str, hint: str = "", exit_status: int = REFUSED) -> None:
        super().__init__(code, detail, hint, exit_status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the daemon lends to every session."""

    places: Places
    person: Person
    ledger: Ledger
    gateway: Gateway
    resolver: ResolverProcess
    keeper: KeeperProcess
    starter: StarterProcess
    trust: Trust
    stand: StandProcess
    reserved: Reserved
    spares: Spares = field(default_factory=Spares)
    claims: Claims = field(default_factory=Claims)
    copies: Copies = field(default_factory=Copies)
    states: States = field(default_factory=States)


@dataclass(slots=True, kw_only=True)
class Ending:
    """How the jail ended: `status` as the shell says it (128+n for a signal), `reason` of the contract's list."""

    status: int
    reason: str
    filter_kills: int | None = None  # as pid 1 counted them; None where it could not say
    empty: bool = False  # pid 1 said that nothing but itself is left of the jail


def record_end(
    ledger: Ledger, run: Run, ending: Ending, seen: Evidence, files: Mapping[str, object] | None = None
) -> None:
    """The last lines of a run: what it tried outside its route, where it did, and how it ended. Raises LedgerError.

    files: of what it left behind, as exitreport.fields gives them.
    """
    counted = {name: str(count) for name, count in seen.attempts().items()}
    if seen.off_route or counted or seen.filter_kills:
        ledger.append(
            "off_route",
            run=run.id,
            count=seen.off_route,
            counters=counted,
            filter_kills=seen.filter_kills,
            detail=seen.sentence(),
        )
    ended = {"role": run.role, "status": ending.status, "reason": ending.reason, "count": seen.off_route}
    ledger.append("run.end", run=run.id, **ended, **(files or {}))


def refused(error: CredgateError | JailError | ResolverError) -> fdpass.Json:
    """The message to the launcher; its words are those of the error."""
    status = error.exit_status if isinstance(error, CredgateError) else REFUSED
    return {"ev": "refused", "code": error.code, "detail": error.detail, "hint": error.hint, "exit": status}


def failure(body: fdpass.Json) -> Refusal:
    """What pid 1 or the workload said went wrong, as a refusal."""
    if body.get("ev") != "failed":
        return Refusal("jail_protocol", f"got {str(body)[:200]} from the jail")
    status = body.get("status", REFUSED)
    exit_status = status if isinstance(status, int) else REFUSED
    return Refusal(str(body.get("code")), str(body.get("detail")), str(body.get("hint", "")), exit_status)


async def together[A, B](one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both results; a failure is raised as itself, once the other has ended too."""
    done = await asyncio.gather(one, other, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    first, second = done
    return first, second
