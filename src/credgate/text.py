"""Text that others wrote, made harmless for a terminal and for a log."""

TYPE_CHECKING = False  # `credgate run` starts with this, and each module costs
if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN = 5  # names of a list in one line

# Cc: C0, C1, DEL. Cf: bidi overrides, zero-width, soft hyphen. Cs: lone surrogates, which UTF-8 can't hold.
# Zl and Zp end a line for some readers. Co and Cn: glyphs that nobody can compare.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})


def _escaped(char: str) -> str:
    if char <= "\xff":
        return f"\\x{ord(char):02x}"
    return f"\\u{ord(char):04x}" if char <= "\uffff" else f"\\U{ord(char):08x}"


def escape(text: str) -> str:
    """Replace what a terminal could act on, or what can't be seen, by its escape, as Python writes it."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata  # noqa: PLC0415  a library of its own, and `credgate run` starts without needing it

    return "".join(_escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in text)


def cut(text: str, most: int) -> str:
    """The text, or its beginning where it would take more than `most` bytes in JSON; then it says so."""
    if len(text) * 12 <= most:  # a pair of surrogates is the dearest character
        return text
    import json  # noqa: PLC0415 - likewise

    kept = text
    while len(json.dumps(kept)) > most:
        kept = kept[: len(kept) * 3 // 4]
    return kept if kept == text else f"{kept}~cut"


def some(names: "Sequence[str]", count: int = -1) -> str:
    """The first names of a list for one line, and how many more there are of `count` (default: of the list)."""
    shown = names[:SHOWN]
    rest = (len(names) if count < 0 else count) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
