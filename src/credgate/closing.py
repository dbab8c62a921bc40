"""The end of a run, step by step: death, records, and everything that was its own taken down."""

import asyncio
import os
from typing import TYPE_CHECKING

from credgate import exitreport
from credgate.copies import CopyEnd
from credgate.evidence import Evidence
from credgate.parts import Ending, record_end
from credgate.peer import wake
from credgate.refusedsummary import Summary, summary_of

if TYPE_CHECKING:
    from credgate.session import Session

INSIST = 1.5  # seconds that pid 1 has beyond its own time before the jail is killed from outside
DEATH = 10.0  # seconds for the kernel to take a pid namespace down after its KILL


async def close(session: "Session", ending: Ending) -> None:
    """Death first, confirmed; then nothing listens for this run; then the last record, then the launcher hears.

    A step that fails (the keeper died, the disk is full) is logged, and keeps none of the others from being done.
    """
    session.run.revoked = True
    if session.mounts is not None:
        session.mounts.close()
    session.pid1.close()
    session.work.close()
    with session.going_on("confirm the death of pid 1"):
        await _confirm_death(session)
    if not session.ended_for:
        ending.reason = session.limits.reason(ending.status, ending.reason)
    with session.going_on("remove the control group"):
        await asyncio.to_thread(session.limits.close)
    with session.going_on("close the listeners"):
        await session.parts.gateway.close(session.run.id)
    with session.going_on("take the names back"):
        await session.parts.resolver.remove(session.run.id)
    seen = await session.evidence(ending)
    with session.going_on("remove what was made in the work tree"):
        session.parts.reserved.drop(session.run.id)
    left: exitreport.ExitReport | None = None
    with session.going_on("look for what the host would execute"):
        if session.ready and session.spec.host_written:
            left = await asyncio.to_thread(exitreport.exit_report, session.look)
    copied = await _copied(session) if session.spec.overlay is not None else None
    with session.going_on("record the end"):
        record_end(session.parts.ledger, session.run, ending, seen, exitreport.fields(left))
    session.berth.close()
    if session.listener is not None:
        session.listener.close()
        with session.going_on("remove the socket for children"):
            os.unlink(session.spec.children)  # noqa: PTH108 - surrogates
    with session.going_on("end the berth"):
        await asyncio.to_thread(session.parts.keeper.release, session.berth.id)
    session.parts.claims.drop(session.run.id)
    await _tell_end(session, ending, seen, left, copied)
    session.peer.close()


async def _copied(session: "Session") -> CopyEnd | None:
    """What became of the run's copy of its work tree; None where the run never began."""
    if not session.ready:
        with session.going_on("throw the copy away"):
            await asyncio.to_thread(session.parts.copies.forget, session.run.id)
        return None
    changed: int | None = None
    with session.going_on("look through the copy"):
        changed = await asyncio.to_thread(session.parts.copies.finish, session.run.id)
    return CopyEnd(session.run.id, changed)


async def _refused(session: "Session") -> Summary:
    """What was refused, and the rules that would allow it; nothing is read where nothing was."""
    run = session.run
    if not session.ready or run.denied <= run.unasked:
        return Summary()
    return await asyncio.to_thread(summary_of, session.parts.places, run, run.since)


async def _tell_end(
    session: "Session",
    ending: Ending,
    seen: Evidence,
    left: exitreport.ExitReport | None,
    copied: CopyEnd | None,
) -> None:
    refused = await _refused(session)
    body = {"ev": "ended", "run": session.run.id, "status": ending.status, "reason": ending.reason}
    if left is not None:
        body |= {"files": left.to_json(), "left": left.sentences()}
    if copied is not None:
        body |= {"copy": {"changed": copied.changed}, "left": [copied.sentence()]}
    told = {"requests": session.run.requests(), "seen": seen.sentence(), **seen.to_json()}
    await session.tell(body | told | {"refused": list(refused.lines), "refusals": list(refused.entries)})


async def _confirm_death(session: "Session") -> None:
    """Wait until pid 1 is dead (its namespace is empty then). Raises Refusal where the kernel does not show it."""
    if session.pidfd < 0:
        return
    loop = asyncio.get_running_loop()
    dead: asyncio.Future[None] = loop.create_future()
    loop.add_reader(session.pidfd, wake, dead)
    # its channels are closed: it kills at once where it can
    session.last_resort.arm(session.pid, session.pidfd, INSIST)
    try:
        async with asyncio.timeout(DEATH):
            await dead
    finally:
        loop.remove_reader(session.pidfd)
        await session.last_resort.disarm()
        os.close(session.pidfd)
        session.pidfd = -1
