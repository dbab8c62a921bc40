"""Where a field stands in a JSON document: "model", "metadata.user_id", "messages[0].role", "tools[*].type?".

Keys are separated by dots and hold letters, digits, "_", "-" and "$"; [N] is an entry of an array, counted from 0, and
[*] each of its entries. A last "?" says that the field may be missing; without it a missing field fails the test.
"""

import re
from dataclasses import dataclass

from rules.problems import FieldPathError

__all__ = ["ANY", "FieldPath", "FieldPathError"]

ANY = -1  # [*]
_KEY = r"[A-Za-z0-9_$-]{1,64}"
_INDEX = r"\[(?:\*|0|[1-9][0-9]{0,4})\]"
_WHOLE = re.compile(rf"{_KEY}(?:{_INDEX})*(?:\.{_KEY}(?:{_INDEX})*)*\??")
_STEP = re.compile(rf"({_KEY})|\[(\*|[0-9]+)\]")
_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPath:
    """`steps`: a str is a key of an object, an int an index, ANY each entry. `optional`: it may be missing."""

    text: str
    steps: tuple[str | int, ...]
    optional: bool

    @classmethod
    def parse(cls, text: str) -> "FieldPath":
        """Read a path. Raises FieldPathError."""
        if len(text) > _MAX or not _WHOLE.fullmatch(text):
            raise FieldPathError(
                f"got {text[:80]!a}, expected keys with dots between, [0] or [*] behind an array",
                'as in "metadata.user_id", "messages[0].role" or "tools[*].type"; a last "?": it may be missing',
            )
        steps = tuple(key or _index(index) for key, index in _STEP.findall(text))
        return cls(text=text, steps=steps, optional=text.endswith("?"))


def _index(text: str) -> int:
    return ANY if text == "*" else int(text)
