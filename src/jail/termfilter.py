"""What a jail may say to the user's terminal. Standard library only: launcher.

A terminal answers some sequences by typing text that the jail chose, gives the clipboard or the screen away by others,
and reads some as commands. So what is not known to be harmless is taken out:
  OSC       an allow-list by number (_osc_passes): titles, colours that are set and not asked for, links to the web and
            to mail, progress, prompt marks. Out are clipboards (52, 5522), files (1337, 5113), notifications (9, 99,
            777), fonts, the working directory (7, 9;9: a new tab would start in it) and every number not named.
  CSI       those without intermediate bytes but printing (i), title reports (20t, 21t), VT52 mode (?2l: another
            grammar) and a locked keyboard (2h); those with intermediates by a list: DECRQCRA (*y) reads the screen,
            "p makes answers 8-bit, and status reports ($w, $u, &u) and macros (*z) carry text.
  ESC       with intermediates the four designations of a character set and DEC's line sizes alone: ESC % leaves UTF-8,
            and ESC SP makes answers 8-bit; single bytes would be controls after either.
  the rest  device-control strings (DCS, APC, PM, SOS: they query, redefine keys, or carry any sequence through tmux)
            and ENQ are out.

A terminal in UTF-8 is assumed, and kept in it: 0x80 to 0x9f are C1 controls only where they are no part of a
character. Ordinary text is never held back; an unfinished character and a control sequence up to its end are. What
passes of an OSC is written whole, so that nothing that follows can go on with it.
"""

import re

# One character of more than one byte that is no C1 control (C2 80 to C2 9F).
CHARACTER = rb"\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
UNFINISHED = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
# A run that means nothing but itself: C0 but ENQ and ESC, ASCII, whole characters.
_PLAIN = re.compile(rb"(?:[\x00-\x04\x06-\x1a\x1c-\x7f]|" + CHARACTER + rb")+")
_TOKEN = re.compile(CHARACTER + rb"|\xc2[\x80-\x9f]|.", re.DOTALL)

_ENQ, _BEL, _CAN, _SUB, _ESC, _DEL, _ST = 0x05, 0x07, 0x18, 0x1A, 0x1B, 0x7F, 0x9C
_ABORT = (_CAN, _SUB)
_CHARACTER = 0x100  # the code of every character that is neither ASCII nor a control
_C1S = range(0x80, 0xA0)
# C1 controls that begin something, by the second byte of their two-byte form.
_C1 = {0x90: "P", 0x98: "X", 0x9B: "[", 0x9D: "]", 0x9E: "^", 0x9F: "_"}
_STRINGS = "PX^_"  # DCS, SOS, PM, APC

_DIGITS = 5  # a longer number may wrap around, in the terminal, to a refused one
_HELD = 256  # bytes of a CSI that are held until it is judged; a longer one is dropped
_HELD_OSC = 4096  # the same of an OSC: links are long
_PALETTE = 8  # the Linux console's OSC R and OSC P with seven digits have no end of their own; they are dropped

_OSC = re.compile(rb"0*([0-9]{1,3})(?:;(.*))?", re.DOTALL)
_TITLES = (b"0", b"1", b"2")
_COLOURS = (b"4", b"5", *(b"%d" % n for n in range(10, 20)), b"21")
_RESETS = (b"104", b"105", *(b"%d" % n for n in range(110, 120)))
_SHAPED = {
    b"8": re.compile(rb"[^;]*;(?:(?:https?://|mailto:).*)?", re.DOTALL | re.IGNORECASE),
    b"9": re.compile(rb"4(?:;[0-9]*){0,2}"),
    b"133": re.compile(rb"[A-Z](?:;[A-Za-z0-9_=;]*)?"),
}

_CSI = re.compile(rb"([<=>?]*)([0-9:;]*)([ -/]*)")
# Intermediates and final. Cursor style, scrolling, soft reset, mode reports (numbers), rectangles that are filled and
# copied, status line, columns and rows, stacks of attributes, protected characters, bells.
_CSI_PASSED = frozenset(
    intermediates + bytes([final])
    for intermediates, finals in (
        (b" ", b"q@Atu"),
        (b"!", b"p"),
        (b"$", b"prtvxz{}~|"),
        (b"*", b"|x"),
        (b"'", b"}~"),
        (b"#", b"pq{}"),
        (b'"', b"q"),
    )
    for final in finals
)
_REPORTS = (b"20", b"21")  # CSI Ps t: answered with the icon label or title, which the jail set
_DESIGNATES = b"()*+#"


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
            elif UNFINISHED.match(data, at):
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
            self._execute(code, token)
        elif code > _DEL:
            self._again(code, token)
        elif code not in (_ESC, _DEL):
            self._enter(chr(code))

    def _execute(self, code: int, token: bytes) -> None:
        """A C0 control within a sequence, which only CAN and SUB end."""
        self._out += b"" if code == _ENQ else token
        if code in _ABORT:
            self._state = self._ground

    def _again(self, code: int, token: bytes) -> None:
        self._state = self._ground
        self._ground(code, token)

    def _enter(self, kind: str) -> None:
        self._held = b""
        if kind == "[":
            self._state = self._csi
        elif kind == "]":
            self._state = self._osc
        elif kind in _STRINGS:
            self._state = self._swallow
        elif kind < "0":
            self._held = kind.encode()
            self._state = self._intermediate
        else:
            self._out += b"\x1b" + kind.encode()
            self._state = self._ground

    def _intermediate(self, code: int, token: bytes) -> None:
        """ESC and bytes from SP to "/", up to the byte that ends it."""
        if code == _ESC or code > _DEL:
            self._again(code, token)
        elif code < 0x20:
            self._execute(code, token)
        elif code < 0x30:
            self._held += token if len(self._held) <= _HELD else b""
        elif code != _DEL:
            self._state = self._ground
            if len(self._held) == 1 and self._held in _DESIGNATES:
                self._out += b"\x1b" + self._held + token

    def _csi(self, code: int, token: bytes) -> None:
        if code == _ESC or code > _DEL:
            self._again(code, token)
        elif code < 0x20:
            self._execute(code, token)
        elif code < 0x40:
            self._held += token if len(self._held) <= _HELD else b""
        elif code != _DEL:
            self._state = self._ground
            if _csi_passes(self._held, token):
                self._out += b"\x1b[" + self._held + token

    def _osc(self, code: int, token: bytes) -> None:
        """Held to its end; a control in it is left out, as terminals do, and the start of another drops it."""
        if code == _ESC:
            self._state = self._osc_escape
        elif code in (_BEL, _ST):
            self._osc_ends(b"\x07" if code == _BEL else b"\x1b\\")
        elif code in _ABORT:
            self._state = self._ground
        elif code in _C1:
            self._enter(_C1[code])
        elif code in _C1S or len(self._held) > _HELD_OSC:
            self._state = self._swallow
        elif code >= 0x20 and code != _DEL:
            self._held += token
            if self._held == b"R" or (self._held[:1] == b"P" and len(self._held) == _PALETTE):
                self._state = self._ground

    def _osc_escape(self, code: int, token: bytes) -> None:
        """ESC within an OSC: its end if a backslash follows, else the start of another sequence, and it is dropped."""
        if code == ord("\\"):
            self._osc_ends(b"\x1b\\")
        else:
            self._state = self._escape
            self._escape(code, token)

    def _osc_ends(self, end: bytes) -> None:
        self._state = self._ground
        if len(self._held) <= _HELD_OSC and _osc_passes(self._held):
            self._out += b"\x1b]" + self._held + end

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


def _csi_passes(held: bytes, final: bytes) -> bool:
    found = _CSI.fullmatch(held)
    if found is None or len(held) > _HELD:
        return False
    private, parameters, intermediates = found.groups()
    if intermediates:
        return intermediates + final in _CSI_PASSED
    first, *_ = numbers = [part.lstrip(b"0") for part in re.split(rb"[:;]", parameters)]
    if final in b"thl" and any(len(number) > _DIGITS for number in numbers):
        return False
    if final in b"hl" and b"2" in numbers:  # ?2l begins VT52 mode, 2h locks the keyboard
        return False
    if final in b"sr" and private and b"2" in numbers:  # both bring saved modes back
        return False
    return final != b"i" and not (final == b"t" and first in _REPORTS)


def _osc_passes(body: bytes) -> bool:
    found = _OSC.fullmatch(body)
    if found is None:
        return False
    number, rest = found.group(1), found.group(2) or b""
    if number in _TITLES or number in _RESETS:
        return True
    if number in _COLOURS:
        return b"?" not in rest
    return number in _SHAPED and _SHAPED[number].fullmatch(rest) is not None
