"""The values that this daemon has fetched or minted: what must not come back, and must leave at its place alone.

In memory only, for the whole daemon: a value of one run is no less secret to another.
"""

import logging
import threading

from rules.needles import MIN_LENGTH, basic_needles, needles
from rules.scrub import Table

log = logging.getLogger(__name__)

_KEPT = 16  # values of one name: rotation brings new ones without end, and old ones stay good for a while


def is_searchable(value: str) -> bool:
    """Whether a value can be told from what merely looks like it."""
    return len(value) >= MIN_LENGTH


class KnownValues:
    """Thread-safe. A table made before a value was added does not hold it: ask for one for each request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needles: dict[str, dict[tuple[str, str], frozenset[bytes]]] = {}  # by name, the newest last
        self._newest: dict[str, tuple[str, str]] = {}
        self._short: set[str] = set()  # names that were said to be left out
        self.current: Table | None = Table({})  # what `table()` would return; None: it has to be made first

    def add(self, name: str, value: str, *, basic: str = "") -> None:
        """Take a value of the secret `name`; `basic` is the whole text of a Basic credential that it stands in.

        A value that is too short to be told from other text is left out (`is_searchable`).
        """
        key = (value, basic)
        if self._newest.get(name) == key:  # as it is for nearly every request
            return
        if not is_searchable(value):
            self._name_short(name)
            return
        with self._lock:
            self._newest[name] = key
            kept = self._needles.setdefault(name, {})
            if key in kept:
                kept[key] = kept.pop(key)
                return
            kept[key] = needles(value) | (basic_needles(basic) if basic else frozenset())
            while len(kept) > _KEPT:
                del kept[next(iter(kept))]
            self.current = None

    def _name_short(self, name: str) -> None:
        with self._lock:
            said = name in self._short
            self._short.add(name)
        if not said:
            log.warning("secret %r has fewer than %d characters: nothing is searched for it", name, MIN_LENGTH)

    def table(self) -> Table:
        """All spellings of all values, as they are now."""
        with self._lock:
            if self.current is None:
                sets = ((name, forms) for name, kept in self._needles.items() for forms in kept.values())
                self.current = Table({form: name for name, forms in sets for form in forms})
            return self.current

    def is_clean(self, table: Table, data: bytes) -> bool:
        """Whether `table` is what `table()` would return, and nothing in the data could be a secret."""
        return self.current is table and not table.candidates(data)

    def __repr__(self) -> str:
        return f"<KnownValues of {len(self._needles)} names>"
