"""A secret's text as its place spells it. Pure. No error here shows a value: it names the secret alone."""

import base64
import re
from collections.abc import Mapping
from urllib.parse import quote

from rules.cookies import is_value
from rules.paths import Path, normal_form
from rules.policy import Binding, PlaceKind
from rules.problems import InjectError
from rules.queries import encoded

__all__ = ["header_value", "plain_text", "segment_text", "spelt"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNPAIRED = re.compile(r"[\x00\ud800-\udfff]")
_PCHAR = "-._~!$&'()*+,=:@"  # RFC 3986 3.3 without ";", which servers cut path parameters at
_AGAIN = "set it again, from a file without a last line break: printf %s VALUE | credgate secret set NAME"
_ELSEWHERE = "the target takes it in another place, or it is another secret's"


def plain_text(binding: Binding, secrets: Mapping[str, str]) -> str:
    """The binding's format with its secret in it. Raises InjectError."""
    secret = secrets.get(binding.secret)
    if not secret:
        raise InjectError(f"secret {binding.secret!r} has no value", f"credgate secret set {binding.secret}")
    text = binding.format.replace("{secret}", secret)
    quoted = binding.place in (PlaceKind.JSON, PlaceKind.FORM)
    if (_UNPAIRED if quoted else _CONTROL).search(text):
        raise InjectError(f"secret {binding.secret!r} holds a line break or another control character", _AGAIN)
    if binding.place is PlaceKind.BASIC and ":" in secret and ":" not in binding.format.partition("{secret}")[0]:
        raise InjectError(f"secret {binding.secret!r} holds a colon, which ends the user of a Basic credential", _AGAIN)
    return text


def header_value(binding: Binding, text: str) -> bytes:
    """As a header's value, for `basic` in base64. Raises InjectError."""
    # asked before, not caught after: the codec's exception would carry the value
    if max(text) > "\xff":
        raise InjectError(f"secret {binding.secret!r} holds characters that no header can carry", _AGAIN)
    raw = text.encode("latin-1")
    return b"Basic " + base64.b64encode(raw) if binding.place is PlaceKind.BASIC else raw


def spelt(binding: Binding, text: str) -> str:
    """As a parameter of a query or a form, or as a cookie. Raises InjectError."""
    if _UNPAIRED.search(text):
        raise InjectError(f"secret {binding.secret!r} holds characters that are none", _AGAIN)
    if binding.place is not PlaceKind.COOKIE:
        return encoded(text)
    if not is_value(text):  # there is no escape that every server undoes
        raise InjectError(f"secret {binding.secret!r} holds characters that no cookie can carry", _ELSEWHERE)
    return text


def segment_text(binding: Binding, text: str) -> str:
    """As one segment of a path, with one reading. Raises InjectError."""
    written = "" if _UNPAIRED.search(text) else quote(text, safe=_PCHAR)
    normal = normal_form(f"/{written}".encode("ascii"))
    if not written or not isinstance(normal, Path) or normal.encoded_slash:
        raise InjectError(f"secret {binding.secret!r} holds what a segment of a path can't carry", _ELSEWHERE)
    return written
