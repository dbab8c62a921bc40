"""What stands inside a Basic credential (RFC 7617)."""

import base64
import binascii
import re

__all__ = ["basic_text"]

_BASIC = re.compile(rb"\s*basic\s+(.*)", re.IGNORECASE | re.DOTALL)


def basic_text(value: bytes) -> str:
    """What stands inside a Basic credential, read as leniently as any server might; "" for another scheme."""
    found = _BASIC.match(value)
    if found is None:
        return ""
    alphabet = found[1].translate(bytes.maketrans(b"-_", b"+/"), b" \t\r\n=")
    try:
        return base64.b64decode(alphabet + b"=" * (-len(alphabet) % 4)).decode("latin-1")
    except binascii.Error:
        return ""
