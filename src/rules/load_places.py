"""`place` and `format` of a binding."""

import re
from dataclasses import dataclass

from rules.credentials import CORRELATION_HEADERS, PROVENANCE_HEADERS
from rules.fieldpaths import ANY, FieldPath, FieldPathError
from rules.policy import PlaceKind
from rules.tables import Table, closest, show

__all__ = ["UNFIT_HEADERS", "PlaceRead", "read_format", "read_place"]

# RFC 9110, 5.6.2, lower case, without "_": CGI and WSGI servers see no difference between it and "-"
_TOKEN = re.compile(r"[!#$%&'*+.^`|~0-9a-z-]{1,64}")
_SLOTS = {
    PlaceKind.QUERY: (re.compile(r"[A-Za-z0-9._~$-]{1,64}"), '"query:api_key"'),
    PlaceKind.PATH: (re.compile(r"[a-z][a-z0-9_]{0,31}"), '"path:token", and paths = ["/{token}/..."] in the rule'),
    PlaceKind.COOKIE: (re.compile(r"[!#%&'*+.^_`|~0-9A-Za-z-]{1,64}"), '"cookie:session"'),
    PlaceKind.FORM: (re.compile(r"[A-Za-z0-9._~$-]{1,64}"), '"form:client_secret"'),
}
# Headers that frame the message, belong to one hop (RFC 9110, 7.6.1), name the target, or are set by the gateway.
_FRAMING = (
    "connection keep-alive proxy-connection te trailer transfer-encoding upgrade http2-settings host content-length "
    "content-type content-encoding content-range accept-encoding expect date user-agent max-forwards range "
    "x-http-method x-http-method-override x-method-override x-original-method x-original-url x-rewrite-url "
    "x-original-uri x-override-url"
)
UNFIT_HEADERS = frozenset(_FRAMING.split()) | CORRELATION_HEADERS | PROVENANCE_HEADERS
_BARE = frozenset({PlaceKind.BASIC, PlaceKind.SIGV4, PlaceKind.CERTIFICATE})
_EXPECTED = (
    'expected "basic", "sigv4", "certificate" or one of "header:NAME", "query:NAME", "path:NAME", "cookie:NAME", '
    '"json:FIELD", "form:NAME"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRead:
    """`place` taken apart: what of it Binding's `header`, `slot` and `json_path` hold."""

    kind: PlaceKind = PlaceKind.HEADER
    header: str = ""
    slot: str = ""
    json_path: FieldPath | None = None


def read_place(table: Table) -> PlaceRead:
    """Read `place`."""
    text = table.text("place", required=True)
    word, colon, rest = text.partition(":")
    kinds = [kind.value for kind in PlaceKind]
    if text and (word not in kinds or bool(colon) is (word in _BARE)):
        table.fault("place", f"got {show(text)}, {_EXPECTED}", closest(word, kinds))
    elif text:
        return _named(table, PlaceKind(word), rest)
    return PlaceRead(header="authorization")


def _named(table: Table, kind: PlaceKind, rest: str) -> PlaceRead:
    if kind in _BARE:
        return PlaceRead(kind=kind, header="" if kind is PlaceKind.CERTIFICATE else "authorization")
    if kind is PlaceKind.HEADER:
        _check_header(table, rest)
        return PlaceRead(kind=kind, header=rest)
    if kind is PlaceKind.JSON:
        return PlaceRead(kind=kind, slot=rest, json_path=_field(table, rest))
    pattern, example = _SLOTS[kind]
    if not pattern.fullmatch(rest):
        table.fault("place", f"got {show(rest)} behind {kind}:, expected a plain name", f"as in {example}")
        return PlaceRead(kind=kind)
    return PlaceRead(kind=kind, slot=rest)


def _field(table: Table, text: str) -> FieldPath | None:
    try:
        path = FieldPath.parse(text)
    except FieldPathError as fault:
        table.fault("place", fault.detail, 'as in "json:auth.token" or "json:keys[0]"')
        return None
    if path.optional or ANY in path.steps:
        table.fault("place", f"got {show(text)}, expected one field, without [*] and ?", 'as in "json:auth.token"')
        return None
    return path


def _check_header(table: Table, header: str) -> None:
    if header != header.lower() and _TOKEN.fullmatch(header.lower()):
        table.fault("place", f"got {show(header)}, expected a header in lower case", f'write "header:{header.lower()}"')
    elif not _TOKEN.fullmatch(header):
        table.fault("place", f"got {show(header)}, expected the name of a header", 'as in "header:authorization"')
    elif header in UNFIT_HEADERS or header.startswith(("credgate-", "proxy-", "sec-")):
        table.fault("place", f"{header} carries no secret: it frames or routes the message", 'as in "header:x-api-key"')
    elif header in {"cookie", "cookie2", "set-cookie"}:
        table.fault("place", f"{header} is not written as a whole", 'name one cookie: "cookie:NAME"')


def read_format(table: Table, place: PlaceRead) -> str:
    """Read the format. Basic has no default: the user name differs from target to target."""
    if place.kind in {PlaceKind.SIGV4, PlaceKind.CERTIFICATE}:
        return ""
    if place.kind is PlaceKind.BASIC:
        text = table.text("format", required=True)
        if text and ":" not in text:
            hint = 'write "USER:{secret}", as in "x-access-token:{secret}"'
            table.fault("format", f"got {show(text)}, expected user and password with a colon between", hint)
    else:
        text = table.text("format", "Bearer {secret}" if place.header == "authorization" else "{secret}")
    if text and text.count("{secret}") != 1:
        table.fault("format", f"got {show(text)}, expected {{secret}} exactly once", 'as in "Bearer {secret}"')
    elif any(brace in text.replace("{secret}", "") for brace in "{}"):
        table.fault("format", f"got {show(text)}, expected no other braces than those of {{secret}}")
    elif text != text.strip() or not text.isascii():
        table.fault("format", f"got {show(text)}, expected ASCII without a space at either end")
    return text
