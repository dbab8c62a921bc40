"""Decoys: what the jail gets in place of a secret. Pure, given a source of random numbers."""

import re
import string
from collections.abc import Callable

from rules.problems import ShapeError

__all__ = ["ShapeError", "check_shape", "make_decoy"]

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_HOLE = re.compile(r"\{([0-9]{1,3})\}")
# characters that stand unescaped in a header, a query and a shell's environment alike
_LITERAL = re.compile(r"[A-Za-z0-9._~:/+=-]*")
MIN_RANDOM = 16  # 95 bits: neither guessed nor met by chance in what an agent sends
MAX_LENGTH = 512


def check_shape(shape: str) -> None:
    """Raise ShapeError unless make_decoy takes this shape."""
    if not _LITERAL.fullmatch(_HOLE.sub("", shape)):
        raise ShapeError(f"shape {shape!r} holds more than text and {{N}}", 'write it as "ghp_{36}"')
    holes = [int(size) for size in _HOLE.findall(shape)]
    if sum(holes) < MIN_RANDOM:
        raise ShapeError(
            f"shape {shape!r} has {sum(holes)} random characters, expected {MIN_RANDOM} or more",
            f'write it as "prefix_{{{MIN_RANDOM}}}"',
        )
    if sum(holes) + len(_HOLE.sub("", shape)) > MAX_LENGTH:
        raise ShapeError(f"shape {shape!r} is longer than {MAX_LENGTH} characters", "take a smaller number")


def make_decoy(shape: str, random: Callable[[int], int]) -> str:
    """A decoy of this shape. `random(n)` gives a number from 0 to n - 1, e.g. secrets.randbelow. Raises ShapeError."""
    check_shape(shape)
    return _HOLE.sub(lambda hole: _word(int(hole[1]), random), shape)


def _word(length: int, random: Callable[[int], int]) -> str:
    return "".join(_ALPHABET[random(len(_ALPHABET))] for _ in range(length))
