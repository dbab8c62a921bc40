"""That a refresh token is on its way, on the disk before it is: after a crash nobody else can tell.

A provider that rotates refresh tokens (RFC 9700 2.2.2) takes each one once, and may take a second use for a theft that
ends the whole chain. So a token whose use had no known end is not sent again by itself.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from credgate.paths import Places, private_dir, read_private, sync_dir, write_private

_MAX_FILE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The entry of one place of a keyring, "SERVICE/NAME". Its methods block: they wait for the disk.

    All raise PlaceError; an entry that can't be read counts as one of every token.
    """

    places: Places
    ref: str

    def is_uncertain(self, value: str) -> bool:
        """Whether this very token was on its way once, and how it ended is not known."""
        try:
            document = json.loads(read_private(self._file, _MAX_FILE))
        except FileNotFoundError:
            return False
        except (ValueError, RecursionError):
            return True
        return not isinstance(document, dict) or document.get("token") in (None, digest(value))

    def begin(self, value: str) -> None:
        """Note that the token is about to be sent."""
        private_dir(self._file.parent)
        document = {"v": 1, "ref": self.ref, "token": digest(value)}
        write_private(self._file, json.dumps(document).encode() + b"\n")

    def settle(self) -> None:
        """Note that what became of it is known, and kept."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return
        sync_dir(self._file.parent)

    @property
    def _file(self) -> Path:
        name = hashlib.sha256(self.ref.encode()).hexdigest()[:32]
        return self.places.state / "minting" / f"{name}.json"


def digest(value: str) -> str:
    """Tells two tokens apart, and no more: a token's entropy is far beyond what could be tried."""
    return hashlib.sha256(b"credgate-refresh\0" + value.encode()).hexdigest()
