"""Bytes of a policy file as TOML, within bounds: who reads such a file at all reads it here."""

import re
import tomllib

from rules.problems import PolicyError, Problem

__all__ = ["MAX_BYTES", "read_toml"]

MAX_BYTES = 4 << 20  # more than 10,000 endpoints, each with a rule or two
# tomllib keeps each prefix of a dotted key until the next table header: 400 KB of "a.a.a" took all memory (measured).
# The deepest key of a policy has five parts.
# Possessive (3.11): no run of blanks or letters is walked twice.
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?:^[ \t]*+(?:\[\[?[ \t]*+)?|[{{,]\s*+)(?:{_PART}[ \t]*+\.[ \t]*+){{8}}", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"


def read_toml(data: bytes) -> dict[str, object]:
    """Parse a policy file. Raises PolicyError with one problem.

    RecursionError: tomllib descends once for each nested array or inline table.
    """
    if len(data) > MAX_BYTES:
        raise _single(f"got {len(data)} bytes, expected at most {MAX_BYTES}")
    if data.startswith(_BOM):
        raise _single("begins with a byte order mark, which TOML does not know", "save the file as UTF-8 without BOM")
    try:
        text = data.decode("utf-8")
        deep = _DEEP_KEY.search(text)
        if deep:
            raise _single(f"line {text.count(chr(10), 0, deep.start()) + 1}: a key of more than 8 parts")
        return tomllib.loads(text)
    except UnicodeDecodeError as fault:
        raise _single(f"not UTF-8 at byte {fault.start}", "save the file as UTF-8") from fault
    except tomllib.TOMLDecodeError as fault:
        raise _single(f"not TOML: {_lower(str(fault))}", "strings need quotes, tables [brackets]") from fault
    except ValueError as fault:  # int of more digits than Python takes
        raise _single("not TOML that anyone would write: a number of thousands of digits") from fault
    except RecursionError as fault:
        raise _single("not TOML that anyone would write: nested too deep") from fault


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _single(message: str, hint: str = "") -> PolicyError:
    return PolicyError((Problem(where="", message=message, hint=hint),))
