"""One field of a JSON text: what it holds, and the text with another value in it, every other byte as it was. Pure.

For texts alone that rules.bodies has read: one reading, no key twice. A key that differs from the path's in case alone
makes the field ambiguous, since some decoders take it for the same.
"""

import json
import re
from dataclasses import dataclass

from rules.fieldpaths import ANY

__all__ = ["FieldError", "Found", "find", "with_value"]

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class FieldError(Exception):
    """The field can be neither found nor added. The text says why, without a byte of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a field's value stands: `start` to `end` in the text; `missing` steps say what is to be put there instead.

    With `missing` the place is the end of the object that lacks the first of them, behind its last member.
    """

    start: int
    end: int
    value: object = None
    missing: tuple[str, ...] = ()
    first: bool = False  # the object that lacks it is empty


def find(text: str, steps: tuple[str | int, ...]) -> Found:
    """Find the field at `steps`. Raises FieldError where there is nothing to find or to add it to."""
    try:
        return _find(text, _skip(text, 0), steps)
    except (ValueError, IndexError, RecursionError):
        raise FieldError("not JSON with one reading") from None


def with_value(text: str, found: Found, value: str) -> str:
    """The text with this string at a found place; objects on the way that are missing are added."""
    written = json.dumps(value)
    for step in reversed(found.missing[1:]):
        written = f"{{{json.dumps(step)}:{written}}}"
    if found.missing:
        written = f"{'' if found.first else ','}{json.dumps(found.missing[0])}:{written}"
    return text[: found.start] + written + text[found.end :]


def _find(text: str, at: int, steps: tuple[str | int, ...]) -> Found:
    if not steps:
        value, end = _DECODER.raw_decode(text, at)
        return Found(start=at, end=end, value=value)
    step = steps[0]
    if step == ANY:
        raise FieldError("a path that means several fields")
    if isinstance(step, int):
        return _find(text, _entry(text, at, step), steps[1:])
    return _in_object(text, at, step, steps)


def _in_object(text: str, at: int, key: str, steps: tuple[str | int, ...]) -> Found:
    if text[at] != "{":
        raise FieldError("no object where the path needs one")
    here, behind, last, folded = -1, _skip(text, at + 1), at + 1, key.casefold()
    empty = text[behind] == "}"
    while text[behind] != "}":
        name, behind = _DECODER.raw_decode(text, behind)
        if not isinstance(name, str):
            raise FieldError("not JSON with one reading")
        value = _skip(text, _skip(text, behind) + 1)
        if name == key:
            here = value
        elif name.casefold() == folded:
            raise FieldError("a key that differs from the field's in case alone")
        _, last = _DECODER.raw_decode(text, value)
        behind = _skip(text, last)
        behind = _skip(text, behind + 1) if text[behind] == "," else behind
    if here >= 0:
        return _find(text, here, steps[1:])
    rest = tuple(step for step in steps if isinstance(step, str))
    if len(rest) < len(steps):
        raise FieldError("no array where the path needs one")
    return Found(start=last, end=last, missing=rest, first=empty)


def _entry(text: str, at: int, index: int) -> int:
    if text[at] != "[":
        raise FieldError("no array where the path needs one")
    at = _skip(text, at + 1)
    for _ in range(index):
        if text[at] == "]":
            break
        _, end = _DECODER.raw_decode(text, at)
        end = _skip(text, end)
        at = _skip(text, end + 1) if text[end] == "," else end
    if text[at] == "]":
        raise FieldError("an array with fewer entries than the path needs")
    return at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
