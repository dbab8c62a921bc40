"""How many client connections there may be: of one run, whatever its listeners, and of all together."""

import resource
from collections import Counter

EACH = 3  # descriptors of a client connection: its own, the upstream's, and one more while that is looked for
RESERVED = 256  # descriptors that are not the gateway's: ledger, berths, channels of the runs, control connections
SHARE = 4  # so many runs at least are needed to use all that there is


class Crowd:
    """Counts the connections that are being served. `total`: of all runs together."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._of: Counter[str] = Counter()
        self._all = 0  # of them

    @classmethod
    def below_the_limit(cls) -> "Crowd":
        """As many as this process's limit of open files has room for."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = 1 << 20 if soft == resource.RLIM_INFINITY else soft - RESERVED
        return cls(max(SHARE, room // EACH))

    def enter(self, run: str, most: int) -> bool:
        """Count one more of `run`, which may have `most`; False where it is one too many, and is not counted."""
        if self._all >= self._total or self._of[run] >= min(most, self._total // SHARE):
            return False
        self._of[run] += 1
        self._all += 1
        return True

    def leave(self, run: str) -> None:
        """One of those that entered is gone."""
        self._of[run] -= 1
        self._all -= 1
        if not self._of[run]:
            del self._of[run]
