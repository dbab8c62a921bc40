"""A client's cookies: taken apart as servers do, and which of them may go along beside a secret's. Pure.

No list can name every session cookie there is, so it is the other way round: a cookie goes along only where neither its
name nor the length of its value fits a credential. A value of under 16 characters is no session of any target that
matters; a language, a theme or a flag is shorter.
"""

import re
from dataclasses import dataclass

from rules.queries import likeness

__all__ = ["MAX_PLAIN", "Cookie", "cookies_of", "is_plain", "is_value"]

MAX_PLAIN = 15  # characters of a value that is no credential
# RFC 6265 4.1.1, without what RFC 2965 and servers that still read it give a meaning: a quote, a name with "$"
_VALUE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_NAME = re.compile(r"[!#%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_TELLING = re.compile(
    r"auth|bearer|cred|csrf|jwt|key|login|otp|pass|pwd|remember|secret|sess|sid|sign|sso|token|user|xsrf"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """One cookie, as it stands in the header; a piece without "=" has no name."""

    name: str
    value: str


def cookies_of(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[Cookie, ...]:
    """Every cookie of a request's headers, in order; HTTP/2 spreads them over several (RFC 9113 8.2.3)."""
    values = (value.decode("latin-1") for name, value in headers if name.lower() == b"cookie")
    pieces = (piece.strip(" \t") for value in values for piece in value.split(";"))
    return tuple(_cookie(piece) for piece in pieces if piece)


def _cookie(piece: str) -> Cookie:
    name, equals, value = piece.partition("=")
    return Cookie(name=name.strip(" \t"), value=value.strip(" \t")) if equals else Cookie(name="", value=piece)


def is_plain(cookie: Cookie) -> bool:
    """Whether this cookie is no credential."""
    if not _NAME.fullmatch(cookie.name) or _TELLING.search(likeness(cookie.name)):
        return False
    return len(cookie.value) <= MAX_PLAIN and is_value(cookie.value)


def is_value(text: str) -> bool:
    """Whether a text can be a cookie's value, unquoted."""
    return _VALUE.fullmatch(text) is not None
