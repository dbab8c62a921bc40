"""The private copies of agents' own files of the live runs: made before the jail is, brought back when it has ended."""

import os
import threading

from credgate import stateenter, statereturn
from credgate.copystore import Copy, remove
from credgate.paths import Places
from credgate.statereturn import Back
from jail.plan import JailSpec
from rules.policy import Role
from rules.scrub import Table


class States:
    """By run: the copy, and the lock that says that it lives. Thread-safe."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[Copy, int]] = {}
        self._returning = threading.Lock()  # two runs that end at once add to one file

    def take(self, places: Places, spec: JailSpec, role: Role, known: Table) -> None:
        """Make the copy. Raises CredgateError, OSError; nothing is left then."""
        self._live[spec.run] = stateenter.take(places, spec, role, known)

    def forget(self, run: str) -> None:
        """Throw away the copy of a run that never began; unknown ones are no error. Raises OSError."""
        copy, held = self._live.pop(run, (None, -1))
        if copy is not None:
            os.close(held)
            remove(copy.folder)

    def finish(self, run: str, known: Table) -> Back:
        """The run is dead: its data comes back. What is left in the copy is kept, an empty one thrown away.

        Raises CredgateError, OSError where it can't be looked through; it is kept then.
        """
        copy, held = self._live.pop(run)
        try:
            with self._returning:
                back = statereturn.bring_back(copy, known)
            if not back.left and not back.waiting:
                remove(copy.folder)
            return back
        finally:
            os.close(held)
