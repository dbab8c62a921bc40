"""Sizes ("4GiB") and durations ("8h") of the policy file: one spelling each, no fractions, no guessed units."""

import re

_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_BYTES = 1 << 60  # 1 EiB: the kernel's numbers have 63 bits
_MOST_SECONDS = 100 * 365 * 86400
_RATE = re.compile(r"([1-9][0-9]{0,5})/([smhd])")
_QUANTITY = re.compile(r"([1-9][0-9]{0,9})([A-Za-z]+)")


def parse_size(text: str) -> int | None:
    """Return bytes, or None where `text` is not a whole number followed by B, KiB, MiB, GiB or TiB, or above 1 EiB."""
    return _parse(text, _SIZES, _MOST_BYTES)


def parse_duration(text: str) -> int | None:
    """Return seconds, or None where `text` is not a whole number followed by s, m, h or d, or above 100 years."""
    return _parse(text, _SECONDS, _MOST_SECONDS)


def parse_rate(text: str) -> tuple[int, int] | None:
    """Return a count and the seconds it is for, or None where `text` is not a whole number, "/" and s, m, h or d."""
    found = _RATE.fullmatch(text)
    return (int(found[1]), _SECONDS[found[2]]) if found else None


def size_hint(text: str) -> str:
    """Return the right spelling for a size that did not parse."""
    if _parse(text, _SIZES):
        return f"at most {_MOST_BYTES >> 40}TiB"
    found = re.match(r"\s*([0-9]+)\s*([kKmMgGtT])", text)
    if found:
        return f'write "{int(found[1])}{found[2].upper()}iB": units are B, KiB, MiB, GiB, TiB'
    return "a whole number and B, KiB, MiB, GiB or TiB without a space, as in 4GiB"


def duration_hint(text: str) -> str:
    """Return the right spelling for a duration that did not parse."""
    if _parse(text, _SECONDS):
        return f"at most {_MOST_SECONDS // 86400}d"
    found = re.match(r"\s*([0-9]+)\s*([smhdSMHD])", text)
    if found and not re.search(r"[0-9]", text[found.end() :]):
        return f'write "{int(found[1])}{found[2].lower()}": units are s, m, h, d'
    return "a whole number and one of s, m, h, d without a space, as in 90m"


def _parse(text: str, units: dict[str, int], most: int | None = None) -> int | None:
    found = _QUANTITY.fullmatch(text)
    if found is None or not text.isascii() or found[2] not in units:
        return None
    value = int(found[1]) * units[found[2]]
    return value if most is None or value <= most else None
