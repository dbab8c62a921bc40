"""The end of a run, step by step: death, records, and everything that was its own taken down."""

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from credgate import exitreport
from credgate.apart import LOOKS
from credgate.copies import CopyEnd
from credgate.evidence import Evidence
from credgate.parts import Ending, record_end, together
from credgate.peer import wake
from credgate.policyfile import Origin
from credgate.refusedsummary import Summary, summary_of
from credgate.statereturn import Back
from credgate.turnedaway import SHOWN, sentences, turned_away

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
    if session.spare is not None:
        session.spare.drop()
    if ending.empty:  # pid 1 asks for nothing: who served the others can go while the kernel takes it down
        await together(_dead(session), _nothing_listens(session))
    else:
        await _dead(session)
        await _nothing_listens(session)
    if not session.ended_for:
        ending.reason = session.limits.reason(ending.status, ending.reason)
    seen = session.evidence(ending)  # it is dead: what the kernel counted of it changes no more
    with session.going_on("remove what was made in the work tree"):
        session.parts.reserved.drop(session.run.id)
    left = await _remains(session)
    with session.going_on("record the end"):
        if session.recorded:
            record_end(session.parts.ledger, session.run, ending, seen, left.fields())
    session.berth.close()
    session.parts.claims.drop(session.run.id)
    await _tell_end(session, ending, seen, left)
    # Nothing is in group and berth any more, and nobody waits for their end.
    if session.limits.base is not None:
        with session.going_on("remove the control group"):
            await asyncio.to_thread(session.limits.close)
    with session.going_on("end the berth"):
        await asyncio.to_thread(session.parts.keeper.release, session.berth.id)
    session.peer.close()


async def _dead(session: "Session") -> None:
    with session.going_on("confirm the death of pid 1"):
        await _confirm_death(session)


async def _nothing_listens(session: "Session") -> None:
    with session.going_on("close the listeners"):
        await session.parts.gateway.close(session.run.id)
    with session.going_on("take the names back"):
        await session.parts.resolver.remove(session.run.id)
    if session.listener is not None:
        session.listener.close()
        with session.going_on("remove the socket for children"):
            os.unlink(session.spec.children)  # noqa: PTH108 - surrogates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    """What a run left behind, on the host and in its copies; None for what there was not to be looked at."""

    files: exitreport.ExitReport | None = None
    copied: CopyEnd | None = None
    back: Back | None = None

    def fields(self) -> dict[str, object]:
        """For the ledger's run.end."""
        return {**exitreport.fields(self.files), **({} if self.back is None else self.back.fields())}

    def to_json(self) -> dict[str, object]:
        """For the launcher: `left` are its sentences for people."""
        body: dict[str, object] = {} if self.files is None else {"files": self.files.to_json()}
        body |= {} if self.copied is None else {"copy": {"changed": self.copied.changed}}
        body |= {} if self.back is None else {"state": self.back.to_json()}
        said = [*([] if self.files is None else self.files.sentences())]
        said += [] if self.copied is None else [self.copied.sentence()]
        said += [] if self.back is None else self.back.sentences()
        return body | ({"left": said} if body else {})


async def _remains(session: "Session") -> _Remains:
    files: exitreport.ExitReport | None = None
    with session.going_on("look for what the host would execute"):
        if session.ready and session.spec.host_written:
            files = await LOOKS.do(session.run.id, partial(exitreport.exit_report, session.look))
    copied = await _copied(session) if session.spec.overlay is not None else None
    return _Remains(files=files, copied=copied, back=await _back(session) if session.spec.private else None)


async def _back(session: "Session") -> Back | None:
    """What of the agent's own files came back; None where the run never began."""
    states, run = session.parts.states, session.run.id
    if not session.ready:
        with session.going_on("throw the copy of the agent's files away"):
            await asyncio.to_thread(states.forget, run)
        return None
    found: list[Back] = []
    with session.going_on("bring the agent's files back"):
        found.append(await LOOKS.do(run, partial(states.finish, run, session.parts.gateway.known.table())))
    return found[0] if found else Back(run=run, unseen=True)


async def _copied(session: "Session") -> CopyEnd | None:
    """What became of the run's copy of its work tree; None where the run never began."""
    if not session.ready:
        with session.going_on("throw the copy away"):
            await asyncio.to_thread(session.parts.copies.forget, session.run.id)
        return None
    changed: int | None = None
    with session.going_on("look through the copy"):
        changed = await LOOKS.do(session.run.id, partial(session.parts.copies.finish, session.run.id))
    return CopyEnd(session.run.id, changed)


async def _refused(session: "Session") -> Summary:
    """What was refused, and the rules that would allow it; nothing is read where nothing was."""
    run = session.run
    if not session.ready or run.denied <= run.unasked:
        return Summary()
    named = str(session.chosen.path) if session.chosen.origin is Origin.FLAG else ""
    return await LOOKS.do(run.id, partial(summary_of, session.parts.places, run, named))


async def _turned_away(session: "Session") -> dict[str, object]:
    """Secrets that a target refused: for people, and for the exit line."""
    if not session.run.turned_away:
        return {}
    found = await asyncio.to_thread(turned_away, session.parts.places, session.run)
    told = [each.to_json() for each in found[:SHOWN]]
    return {"turned_away": told, "renew": sentences(found, session.run.policy)} if found else {}


async def _tell_end(
    session: "Session",
    ending: Ending,
    seen: Evidence,
    left: _Remains,
) -> None:
    refused = await _refused(session)
    if refused.lines:  # a message of its own: each of the two has room for what a jail can make long
        await session.tell({"ev": "refusals", "lines": list(refused.lines), "entries": list(refused.entries)})
    body = {"ev": "ended", "run": session.run.id, "status": ending.status, "reason": ending.reason}
    body |= await _turned_away(session)
    told = {"requests": session.run.requests(), "seen": seen.sentence(), **seen.to_json()}
    await session.tell(body | left.to_json() | told)


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
