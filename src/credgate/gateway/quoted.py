"""Placeholders of the run that pass in a body. There they open nothing and are no fault (an agent quotes its own
transcript), but the ledger says so: who reads it may want to know where a placeholder went.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import quote


class Quoted:
    """One body on its way out. `found`: names of the bindings whose placeholder was in it so far."""

    def __init__(self, decoys: Mapping[str, str]) -> None:
        pairs = {(name, text) for name, decoy in decoys.items() if decoy for text in (decoy, quote(decoy, safe=""))}
        self._left = [(name, text.encode()) for name, text in pairs]
        self._longest = max((len(text) for _, text in self._left), default=0)
        self._tail = b""
        self.found: set[str] = set()

    def feed(self, pieces: Iterable[bytes]) -> None:
        """Look at the next bytes, and at what they make together with the last ones.

        All of them at once: chunks of one byte are forty thousand in a read, and each would be searched by itself.
        """
        data = b"".join(pieces) if self._left else b""
        if not data:
            return
        border = self._tail + data[: self._longest]
        self.found |= {name for name, text in self._left if text in data or text in border}
        self._left = [(name, text) for name, text in self._left if name not in self.found]
        self._tail = (self._tail + data[-self._longest :])[-self._longest :]
