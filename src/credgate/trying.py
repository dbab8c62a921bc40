"""The attempts of a jail that stands: its workload makes them; what only the host can tell is looked at from here."""

import asyncio
import os
from typing import TYPE_CHECKING

from credgate.stand import words
from jail.guards import COPIED
from jail.plan import JailSpec
from jail.probes import DONE
from jail.probes.files import copied_name

if TYPE_CHECKING:
    from credgate.session import Session

GUARD = "copy_write"


async def tried(session: "Session") -> dict[str, str]:
    """A word for each guard of the session. Raises Refusal for a jail that doesn't answer, OSError."""
    await session.work.send({"op": "probe"})
    told = words((await session.expect(session.work, "probed")).body.get("words"))
    if any(guard.id == GUARD for guard in session.guards):
        name = copied_name(session.parts.stand.context)
        told[GUARD] = await asyncio.to_thread(landed, session.spec, name, told.get(GUARD, ""))
        await session.work.send({"op": "clear"})
        await session.expect(session.work, "cleared")
    return told


def landed(spec: JailSpec, name: str, said: str) -> str:
    """The word for where a file lies that the jail made at the top of its work tree; `said`: the jail's own word.

    That counts where the file is nowhere, and never as one of ours. Raises OSError.
    """
    if os.path.lexists(f"{spec.workdir}/{name}"):
        return DONE
    if spec.overlay is not None and os.path.lexists(f"{spec.overlay.upper}/{name}"):
        return COPIED
    return said if said not in (DONE, COPIED) else "ENOENT"
