"""What a jail may say to the user's terminal, and what the terminal may answer. Standard library only: launcher.

Out: clipboard access (OSC 52 and its kin), device-control strings (they query, redefine keys, or carry any sequence
through tmux), title reports, answerback and printing are taken out: a terminal answers some of those by typing text
that the jail chose. In: answers that are strings (clipboard, titles, colours) are taken out. Answers of numbers alone
(cursor position, device attributes, modes) pass: common terminal libraries do not start without them.

A terminal in UTF-8 is assumed: 0x80 to 0x9f are C1 controls only where they are no part of a character. Ordinary text
is never held back; an unfinished character and the head of a control sequence are.
"""

import re

# A run that means nothing but itself: C0 but ENQ and ESC, ASCII, whole characters but the C1 ones (C2 80 to C2 9F).
_PLAIN = re.compile(
    rb"(?:[\x00-\x04\x06-\x1a\x1c-\x7f]|\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]"
    rb"|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})+"
)
_TOKEN = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|.",
    re.DOTALL,
)
_UNFINISHED = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")

_ENQ, _BEL, _CAN, _SUB, _ESC, _DEL, _ST = 0x05, 0x07, 0x18, 0x1A, 0x1B, 0x7F, 0x9C
_ABORT = (_CAN, _SUB)
_CHARACTER = 0x100  # the code of every character that is neither ASCII nor a control
# C1 controls, by the second byte of their two-byte form.
_C1 = {0x90: "P", 0x98: "X", 0x9B: "[", 0x9D: "]", 0x9E: "^", 0x9F: "_"}
_STRINGS = "PX^_"  # DCS, SOS, PM, APC

# 50: fonts; 51: an editor's calls; 52 and 5522: clipboard; 1337: files and clipboard.
_OSC_DROPPED = (50, 51, 52, 1337, 5522)
# Colours: to set one passes, to ask for one (a "?") does not.
_OSC_ASKED = (4, 5, *range(10, 20), 21)
_DIGITS = 5  # a longer number may wrap around, in the terminal, to a dropped one
_HELD = 256  # bytes of a sequence that are held until it is judged; a longer one is dropped
_REPORTS = (20, 21)  # CSI Ps t: answered with the icon label or title, which the jail set


class OutputFilter:
    """Bytes of the jail on their way to the terminal. State is kept over chunks; memory is bounded."""

    def __init__(self) -> None:
        self._state = self._ground
        self._held = b""
        self._out = bytearray()
        self._character = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may be written now, of this chunk and of what was held back."""
        data, self._character, self._out = self._character + chunk, b"", bytearray()
        at = 0
        while at < len(data):
            run = _PLAIN.match(data, at) if self._state == self._ground else None
            if run:
                self._out += run.group()
                at = run.end()
            elif _UNFINISHED.match(data, at):
                self._character = data[at:]
                break
            else:
                at += self._take(data, at)
        return bytes(self._out)

    def _take(self, data: bytes, at: int) -> int:
        found = _TOKEN.match(data, at)
        token = found.group() if found else data[at : at + 1]
        self._state(_code(token), token)
        return len(token)

    def _ground(self, code: int, token: bytes) -> None:
        if code == _ESC:
            self._state = self._escape
        elif code in _C1:
            self._enter(_C1[code])
        elif code != _ENQ:
            self._out += token

    def _escape(self, code: int, token: bytes) -> None:
        """After ESC. Terminals execute a C0 control here and go on with the sequence."""
        if code < 0x20 and code != _ESC:
            self._out += b"" if code == _ENQ else token
            self._state = self._ground if code in _ABORT else self._escape
        elif code > _DEL:
            self._again(code, token)
        elif code not in (_ESC, _DEL):
            self._enter(chr(code))

    def _again(self, code: int, token: bytes) -> None:
        self._state = self._ground
        self._ground(code, token)

    def _enter(self, kind: str) -> None:
        self._held = b""
        if kind == "[":
            self._state = self._csi
        elif kind == "]":
            self._state = self._osc_number
        elif kind in _STRINGS:
            self._state = self._swallow
        else:
            self._out += b"\x1b" + kind.encode()
            self._state = self._ground

    def _csi(self, code: int, token: bytes) -> None:
        if code == _ESC or code in _ABORT or code > _DEL:
            self._again(code, token)
        elif code < 0x20:
            self._out += b"" if code == _ENQ else token
        elif code < 0x40:
            self._held += token if len(self._held) <= _HELD else b""
        elif code != _DEL:
            self._state = self._ground
            if _csi_passes(self._held, chr(code)):
                self._out += b"\x1b[" + self._held + token

    def _osc_number(self, code: int, token: bytes) -> None:
        """Digits after OSC; other controls in between are ignored, as terminals do."""
        if 0x30 <= code <= 0x39:
            self._held = (self._held + token).lstrip(b"0")[: _DIGITS + 1] or b"0"
        elif code >= 0x20 or code in (_BEL, _ESC, *_ABORT):
            self._osc_judged(code, token)

    def _osc_judged(self, code: int, token: bytes) -> None:
        """The number is known. Its head is let out only with the byte behind it: were that one the start of something
        that is dropped, what follows the dropped part would go on with the number (ESC ] 5, then 2).
        """
        number = int(self._held or b"0")
        if code in (_ESC, _ST, *_ABORT, *_C1):
            self._again(code, token)
            return
        if number in _OSC_DROPPED or len(self._held) > _DIGITS:
            self._state = self._swallow
        else:
            self._held = b"\x1b]" + self._held
            self._state = self._osc_asked if number in _OSC_ASKED else self._ground
            if self._state == self._ground:
                self._out += self._held
        self._state(code, token)

    def _osc_asked(self, code: int, token: bytes) -> None:
        if code == _ESC or code in (_BEL, _ST) or code in _ABORT:
            if b"?" not in self._held and len(self._held) <= _HELD:
                self._out += self._held
                self._again(code, token)
            else:
                self._state = self._swallow
                self._swallow(code, token)
        elif len(self._held) <= _HELD:
            self._held += token

    def _swallow(self, code: int, token: bytes) -> None:
        if code in (_BEL, _ST) or code in _ABORT:
            self._state = self._ground
        elif code == _ESC:
            self._state = self._swallow_escape
        elif code in _C1:
            self._enter(_C1[code])

    def _swallow_escape(self, code: int, token: bytes) -> None:
        """ESC within a dropped string: its end if a backslash follows, else the start of another sequence."""
        if code == ord("\\"):
            self._state = self._ground
        else:
            self._state = self._escape
            self._escape(code, token)


def _code(token: bytes) -> int:
    if len(token) == 1:
        return token[0]
    return token[1] if token[0] == 0xC2 and token[1] < 0xA0 else _CHARACTER  # C2 9D is U+009D, a C1 control


def _csi_passes(parameters: bytes, final: str) -> bool:
    if len(parameters) > _HELD or final == "i":  # media copy: prints
        return False
    digits = re.match(rb"0*([0-9]*)", parameters)
    number = digits.group(1) if digits else b""
    return final != "t" or (len(number) <= _DIGITS and int(number or b"0") not in _REPORTS)


# The start of an answer. ESC ] alone is Alt-] typed by hand; an answer's next byte comes with it in one write.
_ANSWER = re.compile(rb"\x1b(?:\][0-9lL]|P[0-9>!]|_G)")
_CONTROL = re.compile(rb"[\x00-\x1f]")


class AnswerFilter:
    """Bytes of the terminal on their way to the jail, without the answers that are strings."""

    def __init__(self) -> None:
        self._within = False
        self._escape = False

    def feed(self, chunk: bytes) -> bytes:
        """What the jail may read of this chunk."""
        out, at = bytearray(), 0
        if self._escape:
            self._escape = False
            at = 1 if chunk.startswith(b"\\") else 0
            out += b"" if at else b"\x1b"
        elif self._within:
            at = self._end(chunk, 0)
        while found := _ANSWER.search(chunk, at):
            out += chunk[at : found.start()]
            at = self._end(chunk, found.end())
        return bytes(out + chunk[at:])

    def _end(self, chunk: bytes, at: int) -> int:
        """Where the answer ends: an answer holds no control, so that any key but a printable one ends it as well."""
        found = _CONTROL.search(chunk, at)
        self._within = found is None
        if found is None:
            return len(chunk)
        if found.group() == b"\x07":
            return found.end()
        if found.group() == b"\x1b":
            self._escape = found.end() == len(chunk)
            return found.end() + 1 if chunk[found.end() :].startswith(b"\\") else found.start() + self._escape
        return found.start()
