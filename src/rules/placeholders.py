"""Decoys: what the jail gets in place of a secret, in the shape of the real thing. Pure, given a source of random
numbers.

A shape is literal text with holes:
* {N}             N random characters of base62 (0-9, A-Z, a-z)
* {N:ALPHABET}    of another alphabet: see ALPHABETS
* {crc32}         six check characters over the random ones since the last literal text
* jwt             the whole shape: a JSON web token (RFC 7519) that can be read, with a signature that verifies nowhere
"""

import base64
import json
import math
import re
import string
import zlib
from collections.abc import Callable, Mapping

from rules.problems import ShapeError

__all__ = ["ALPHABETS", "JWT", "ShapeError", "check_claims", "check_shape", "make_decoy"]

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
ALPHABETS: Mapping[str, str] = {
    "base62": _BASE62,
    "base64": _BASE62 + "+/",
    "base64url": _BASE62 + "-_",
    "base32": string.ascii_uppercase + "234567",  # RFC 4648 6; AWS's key ids
    "hex": "0123456789abcdef",
    "HEX": "0123456789ABCDEF",
    "digits": string.digits,
    "upper": string.ascii_uppercase,
    "lower": string.ascii_lowercase,
    "alnum": string.digits + string.ascii_lowercase,
}
JWT = "jwt"
MIN_RANDOM = 16
MIN_BITS = 64  # neither guessed nor met by chance in what an agent sends
MAX_LENGTH = 512
MAX_CLAIMS = 2048  # bytes of JSON
_HOLE = re.compile(r"\{(?:(?P<size>[0-9]{1,3})(?::(?P<alphabet>[A-Za-z0-9]+))?|(?P<check>crc32))\}")
# characters that stand unescaped in a header, a query and a shell's environment alike
_LITERAL = re.compile(r"[A-Za-z0-9._~:/+=-]*")
_CHECK = 6
_HEADER = {"alg": "RS256", "typ": "JWT"}
_SIGNATURE = 342  # characters of 256 bytes in base64url, as RSA of 2048 bits signs
_ISSUED, _EXPIRES = 1_700_000_000, 4_102_444_800  # November 2023; the year 2100, after which nobody asks


def check_shape(shape: str) -> None:
    """Raise ShapeError unless make_decoy takes this shape."""
    if shape == JWT:
        return
    holes = list(_HOLE.finditer(shape))
    if not _LITERAL.fullmatch(_HOLE.sub("", shape)):
        raise ShapeError(
            f"shape {shape!r} holds more than text, {{N}}, {{N:ALPHABET}} and {{crc32}}", 'write it as "ghp_{36}"'
        )
    unknown = [hole["alphabet"] for hole in holes if hole["alphabet"] and hole["alphabet"] not in ALPHABETS]
    if unknown:
        raise ShapeError(f"shape {shape!r} names no alphabet with {unknown[0]!r}", f"one of: {', '.join(ALPHABETS)}")
    sizes = [(int(hole["size"]), _alphabet(hole)) for hole in holes if hole["size"]]
    count, bits = sum(size for size, _ in sizes), sum(size * math.log2(len(letters)) for size, letters in sizes)
    if count < MIN_RANDOM or bits < MIN_BITS:
        raise ShapeError(
            f"shape {shape!r} has {count} random characters of {int(bits)} bits, "
            f"expected {MIN_RANDOM} or more and {MIN_BITS} bits",
            f'write it as "prefix_{{{MIN_RANDOM}}}", of digits 20',
        )
    checks = sum(bool(hole["check"]) for hole in holes)
    if count + checks * _CHECK + len(_HOLE.sub("", shape)) > MAX_LENGTH:
        raise ShapeError(f"shape {shape!r} is longer than {MAX_LENGTH} characters", "take a smaller number")


def check_claims(claims: str) -> None:
    """Raise ShapeError unless a "jwt" shape takes these claims, a JSON object."""
    if len(claims.encode()) > MAX_CLAIMS:
        raise ShapeError(f"claims of {len(claims.encode())} bytes, expected at most {MAX_CLAIMS}", "take some out")


def make_decoy(shape: str, random: Callable[[int], int], claims: str = "") -> str:
    """A decoy of this shape. `random(n)` gives a number from 0 to n - 1, e.g. secrets.randbelow. Raises ShapeError.

    `claims` is a JSON object that goes into the payload of a "jwt".
    """
    check_shape(shape)
    if shape == JWT:
        return _token(claims, random)
    out, fresh, at = "", "", 0
    for hole in _HOLE.finditer(shape):
        if hole.start() > at:
            out, fresh = out + shape[at : hole.start()], ""
        word = _check(fresh) if hole["check"] else _word(int(hole["size"]), _alphabet(hole), random)
        out, fresh, at = out + word, fresh + word, hole.end()
    return out + shape[at:]


def _alphabet(hole: re.Match[str]) -> str:
    return ALPHABETS[hole["alphabet"] or "base62"]


def _word(length: int, alphabet: str, random: Callable[[int], int]) -> str:
    return "".join(alphabet[random(len(alphabet))] for _ in range(length))


def _check(text: str) -> str:
    """CRC-32 in base62, padded with zeros to six: the end of a token of GitHub's and npm's.

    By their public description ("Behind GitHub's new authentication token formats", github.blog, April 2021).
    """
    left, out = zlib.crc32(text.encode("ascii")), ""
    for _ in range(_CHECK):
        left, digit = divmod(left, len(_BASE62))
        out = _BASE62[digit] + out
    return out


def _token(claims: str, random: Callable[[int], int]) -> str:
    """Clients read expiry and account out of a token that they can't verify; a real key never signs this one."""
    said = {"iat": _ISSUED, "exp": _EXPIRES, **json.loads(claims or "{}")}
    said["jti"] = _word(22, ALPHABETS["base64url"], random)
    return f"{_part(_HEADER)}.{_part(said)}.{_word(_SIGNATURE, ALPHABETS['base64url'], random)}"


def _part(value: Mapping[str, object]) -> str:
    raw = json.dumps(value, separators=(",", ":")).encode("ascii")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
