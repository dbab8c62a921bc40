"""What the user's terminal may answer to a jail. Standard library only: launcher.

Answers that are strings (clipboard, titles, colours, settings) are taken out: they tell what is not the jail's, or
repeat what another program was told. Answers of numbers alone (cursor position, device attributes, modes) pass:
common terminal libraries do not start without them.
"""

import re

from jail.termfilter import CHARACTER, UNFINISHED

# The start of an answer, in its 7-bit form and in both of the 8-bit one. ESC ] alone is Alt-] typed by hand; an
# answer goes on with one of these bytes. A character is matched before, for it may hold the byte of a C1 control.
_START = re.compile(
    rb"(?:" + CHARACTER + rb")"
    rb"|((?:\x1b\]|\xc2?\x9d)[0-9lL]|(?:\x1bP|\xc2?\x90)[0-9>!]|(?:\x1b_|\xc2?\x9f)G)"
)
_HEAD = re.compile(rb"(?:\x1b[\]P_]?|\xc2?[\x9d\x90\x9f])\Z")
# An answer holds no control, so that any key but a printable one ends it as well.
_END = re.compile(rb"(?:" + CHARACTER + rb")|(\xc2?\x9c|[\x00-\x1f])")


class AnswerFilter:
    """Bytes of the terminal on their way to the jail, without the answers that are strings.

    What may be the start of an answer, or of a character, is held: `waiting` says so. The caller lets it go by
    flush() when nothing has come for a moment: then it was a key.
    """

    def __init__(self) -> None:
        self._within = False
        self._held = b""

    @property
    def waiting(self) -> bool:
        """Bytes are held that are a key if nothing follows."""
        return bool(self._held)

    def flush(self) -> bytes:
        """What was held, where it is no part of an answer."""
        held, self._held = self._held, b""
        # ESC within an answer that stays alone is the Escape key, which ends it.
        keep = held if not self._within or held.startswith(b"\x1b") else b""
        self._within = self._within and not keep
        return keep

    def feed(self, chunk: bytes) -> bytes:
        """What the jail may read of this chunk and of what was held."""
        data, self._held = self._held + chunk, b""
        cut = self._unfinished(data)
        data, self._held = data[:cut], data[cut:]
        out, at = bytearray(), self._end(data, 0) if self._within else 0
        while at < len(data):
            start = next((m for m in _START.finditer(data, at) if m.group(1)), None)
            if start is None:
                out += data[at:]
                break
            out += data[at : start.start()]
            self._within = True
            at = self._end(data, start.end())
        return bytes(out)

    def _unfinished(self, data: bytes) -> int:
        """Where the part begins that can't be judged yet."""
        found = re.search(rb"\x1b[\]P_]?\Z", data) or _tail(data)
        return found.start() if found else len(data)

    def _end(self, data: bytes, at: int) -> int:
        """Where the answer ends; the end of `data` where it goes on."""
        end = next((m for m in _END.finditer(data, at) if m.group(1)), None)
        if end is None:
            return len(data)
        self._within = False
        if end.group() == b"\x1b":
            return end.end() + 1 if data[end.end() :].startswith(b"\\") else end.start()
        return end.end() if end.group() == b"\x07" or end.group().endswith(b"\x9c") else end.start()


def _tail(data: bytes) -> "re.Match[bytes] | None":
    """An unfinished character at the end, or a C1 control that may begin an answer and is no part of a character."""
    whole = 0
    for found in re.finditer(CHARACTER, data[-8:]):
        whole = found.end()
    base = max(0, len(data) - 8) + whole
    return UNFINISHED.search(data, base) or _HEAD.search(data, base)
