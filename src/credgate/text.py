"""Text that others wrote, made harmless for a terminal and for a log."""

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
