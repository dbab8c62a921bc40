"""What ends a run: its own end, and whatever begins the end before that."""

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from credgate import room
from credgate.hostsockets import SocketWatch
from credgate.mountwatch import MountWatch
from credgate.parts import Ending
from credgate.treewalk import WalkError
from jail.errors import JailError

if TYPE_CHECKING:
    from credgate.session import Session

log = logging.getLogger(__name__)


async def until_exit(session: "Session", mounts: MountWatch) -> Ending:
    """Wait for pid 1's exit report, while the launcher's end or a changed mount table begins the end."""
    async with asyncio.TaskGroup() as tasks:
        others = (
            _launcher_leaves(session),
            _mounts_change(session, mounts),
            _limit_passed(session),
            _alarm_kills(session),
            _deadline_passes(session),
            _sockets_appear(session),
            _room_runs_out(session),
        )
        watching = [tasks.create_task(other) for other in others]
        try:
            report = await session.pid1.recv()
        except JailError as error:  # nothing that pid 1 would say: it is no longer ours
            log.error("run %s: pid 1: %s", session.run.id, error)
            report = None
        for task in watching:
            task.cancel()
    if report is None or report.body.get("ev") != "exit":  # pid 1 itself was killed
        return Ending(status=128 + signal.SIGKILL, reason=session.ended_for or "killed")
    kills = report.body.get("filter_kills")
    return Ending(
        status=int(str(report.body["status"])),
        reason=str(report.body["reason"]),
        filter_kills=kills if isinstance(kills, int) else None,
        empty=True,
    )


async def _launcher_leaves(session: "Session") -> None:
    with contextlib.suppress(JailError):
        await session.peer.recv()  # it has nothing to say: whatever comes is its end
    await session.end("killed", grace=0)  # so does pid 1, which sees it as well


async def _limit_passed(session: "Session") -> None:
    await session.end(await session.limits.exceeded())


async def _deadline_passes(session: "Session") -> None:
    """By our clock as well: pid 1 may get no CPU. Its own deadline began before, so it acts first where it can."""
    if session.ends is not None:
        await asyncio.sleep(session.ends - asyncio.get_running_loop().time())
        await session.end("timeout")


async def _alarm_kills(session: "Session") -> None:
    await session.alarms.killed.wait()
    await session.end("alarm")


async def _mounts_change(session: "Session", mounts: MountWatch) -> None:
    await mounts.changed()
    await _end_with_alarm(session, "mount_changed")


async def _sockets_appear(session: "Session") -> None:
    trees = [session.spec.workdir, *(tree.path for tree in session.spec.trees)]
    try:
        found = await SocketWatch(session.run.id, trees).appears()
    except WalkError as error:  # it grew beyond what can be looked through
        found = error.detail
    await _end_with_alarm(session, "host_socket", found)


async def _room_runs_out(session: "Session") -> None:
    """What it writes lands in our state directory, where the ledger lies too."""
    if session.spec.overlay is not None or session.spec.private:
        await room.runs_out(session.parts.places.copies)
        await session.end("disk", grace=0)


async def _end_with_alarm(session: "Session", reason: str, detail: str = "") -> None:
    with session.going_on("record the alarm"):
        session.parts.ledger.append("alarm", run=session.run.id, reason=reason, detail=detail or None, verdict="kill")
    await session.end("alarm")
