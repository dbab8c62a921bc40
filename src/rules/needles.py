"""The spellings in which a secret may come back: what a scrubber looks for. Pure.

Each is a fixed string of bytes, so that one automaton finds all of them at once. Left out are encodings of encodings,
a change of case, and pieces of a value: the path rule is the guard, this is depth behind it.
"""

import base64
from collections.abc import Iterator
from urllib.parse import quote

MIN_LENGTH = 8  # characters of a value; a shorter one stands in too much that is no secret

# What encoders leave as it is beside letters, digits and "-._": RFC 3986 2.3, Python's quote, encodeURIComponent and
# encodeURI of ECMAScript, and forms (application/x-www-form-urlencoded, which writes "~" in hex).
_SAFE = ("~", "~/", "~!'()*", "~;/?:@&=+$,#!'()*", "*")
# Sets that encoders of JSON write as \uXXXX beside what they must, and whether with capitals: none; Go and Rails; PHP
# with its HEX flags; .NET.
_JSON_SETS = (("", False), ("<>&", False), ("<>&", True), ("<>&'\"", True), ("<>&'\"+`", True))
_JSON_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HTML = tuple(
    str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': quotes, "'": apostrophe})
    for quotes in ("&quot;", "&#34;", '"')
    for apostrophe in ("&#39;", "&#x27;", "'")
)


def needles(value: str) -> frozenset[bytes]:
    """All spellings of a value, each at least MIN_LENGTH bytes; none for a value that is shorter."""
    if len(value) < MIN_LENGTH:
        return frozenset()
    found = {form for raw in _bytes_of(value) for form in _of_bytes(raw)}
    found.update(form.encode() for form in _of_text(value))
    return frozenset(form for form in found if len(form) >= MIN_LENGTH)


def basic_needles(text: str) -> frozenset[bytes]:
    """The base64 of a whole Basic credential, "USER:SECRET": at its border some bits are of both."""
    forms = (encode(raw).rstrip(b"=") for raw in _bytes_of(text) for encode in _ENCODERS)
    return frozenset(form for form in forms if len(form) >= MIN_LENGTH)


def _bytes_of(text: str) -> Iterator[bytes]:
    """UTF-8, and as a header would carry it."""
    yield text.encode()
    if not text.isascii() and max(text) <= "\xff":
        yield text.encode("latin-1")


def _of_bytes(raw: bytes) -> Iterator[bytes]:
    yield raw
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    yield from _base64(raw)
    for safe in _SAFE:
        form = quote(raw, safe=safe) if "~" in safe else quote(raw, safe=safe).replace("~", "%7E")
        for text in (form, form.replace("%20", "+")):
            yield text.encode()
            yield _lower_hex(text)
    yield b"".join(b"%%%02X" % byte for byte in raw)
    yield b"".join(b"%%%02x" % byte for byte in raw)


def _lower_hex(quoted: str) -> bytes:
    first, *rest = quoted.split("%")
    return "%".join((first, *(part[:2].lower() + part[2:] for part in rest))).encode()


_ENCODERS = (base64.b64encode, base64.urlsafe_b64encode)


def _base64(raw: bytes) -> Iterator[bytes]:
    """The characters that depend on nothing but the value, for each place that it may have in a group of three."""
    for ahead in range(3):
        first, end = -(-8 * ahead // 6), 8 * (ahead + len(raw)) // 6
        for encode in _ENCODERS:
            yield encode(b"\0" * ahead + raw)[first:end]


def _of_text(value: str) -> Iterator[str]:
    for table in _HTML:
        yield value.translate(table)
    for capitals in (False, True):
        yield "".join(_unit(char, capitals=capitals) for char in value)
    for chars, capitals in _JSON_SETS:
        for slash in ("/", "\\/"):
            for ascii_only in (False, True):
                yield "".join(_json(char, chars, slash, ascii_only=ascii_only, capitals=capitals) for char in value)


def _json(char: str, chars: str, slash: str, *, ascii_only: bool, capitals: bool) -> str:
    if char in chars or (ascii_only and char > "\x7e"):
        return _unit(char, capitals=capitals)
    if char in _JSON_SHORT:
        return _JSON_SHORT[char]
    if char < " ":
        return _unit(char, capitals=capitals)
    return slash if char == "/" else char


def _unit(char: str, *, capitals: bool) -> str:
    r"""A character as \uXXXX, as a pair of surrogates where it takes two (RFC 8259 7)."""
    raw = char.encode("utf-16-be")
    form = "\\u{:04X}" if capitals else "\\u{:04x}"
    return "".join(form.format(int.from_bytes(raw[at : at + 2])) for at in range(0, len(raw), 2))
