"""[secret.NAME] and [binding.NAME] tables into values."""

import re
from collections.abc import Mapping

from rules import load_units
from rules.credentials import CORRELATION_HEADERS, PROVENANCE_HEADERS
from rules.envnames import ENV_NAME, refused
from rules.load_signing import AWS_DECOY, load_signing
from rules.placeholders import ShapeError, check_shape
from rules.policy import Binding, Foreign, Mode, Placeholder, PlaceKind, Rate, SecretRule, SourceKind
from rules.tables import Table, closest, show

SECRET_KEYS = ("source",)
BINDING_KEYS = (
    *("secret", "endpoint", "rules", "place", "format", "mode", "placeholder", "foreign", "response"),
    *("ttl", "max_uses", "rate", "sign"),
)
BINDING_LATER: tuple[str, ...] = ()
_MAX_USES = 10**9
SOURCES_LATER = ("command", "vault")
PLACES_LATER = ("query", "cookie", "path", "json", "form")

# RFC 9110, 5.6.2, lower case, without "_": CGI and WSGI servers see no difference between it and "-"
_TOKEN = re.compile(r"[!#$%&'*+.^`|~0-9a-z-]{1,64}")
_KEYRING = re.compile(r"[A-Za-z0-9._@-]{1,64}/[A-Za-z0-9._@/-]{1,128}")
# Headers that frame the message, belong to one hop (RFC 9110, 7.6.1), name the target, or are set by the gateway.
_FRAMING = (
    "connection keep-alive proxy-connection te trailer transfer-encoding upgrade http2-settings host content-length "
    "content-type content-encoding content-range accept-encoding expect date user-agent max-forwards range "
    "x-http-method x-http-method-override x-method-override x-original-method x-original-url x-rewrite-url "
    "x-original-uri x-override-url"
)
UNFIT_HEADERS = frozenset(_FRAMING.split()) | CORRELATION_HEADERS | PROVENANCE_HEADERS


def load_secrets(tables: Mapping[str, Table]) -> dict[str, SecretRule]:
    """Return the secrets' names and sources."""
    return {name: _secret(name, table) for name, table in tables.items()}


def _secret(name: str, table: Table) -> SecretRule:
    text = table.text("source", required=True)
    kind, colon, ref = text.partition(":")
    kinds = [k.value for k in SourceKind]
    if text and kind in SOURCES_LATER:
        table.fault("source", f"not yet: {kind}: is not built", f"use {', '.join(k + ':' for k in kinds)}")
    elif text and (not colon or kind not in kinds):
        table.fault("source", f'got {show(text)}, expected "KIND:WHERE"', closest(kind, kinds))
    elif text:
        hint = _ref_hint(SourceKind(kind), ref)
        if hint:
            table.fault("source", f"got {show(text)}", hint)
        return SecretRule(name=name, kind=SourceKind(kind), ref=ref)
    return SecretRule(name=name, kind=SourceKind.KEYRING, ref="")


def _ref_hint(kind: SourceKind, ref: str) -> str:
    match kind:
        case SourceKind.KEYRING:
            return "" if _KEYRING.fullmatch(ref) else 'write "keyring:SERVICE/NAME", as in "keyring:credgate/github"'
        case SourceKind.ENV:
            return "" if ENV_NAME.fullmatch(ref) else 'write "env:NAME", NAME being a variable of the caller'
        case SourceKind.FILE:
            whole = ref.startswith(("/", "~/")) and ".." not in ref.split("/")
            return "" if whole else 'write "file:/whole/path" or "file:~/path"'


def load_bindings(tables: Mapping[str, Table]) -> dict[str, Binding]:
    """Return the bindings; that their names lead somewhere is checked later."""
    return {name: _binding(name, table) for name, table in tables.items()}


def _binding(name: str, table: Table) -> Binding:
    place, header = _place(table)
    scrub, drop_set_cookie = _response(table)
    mode = table.choice("mode", Mode, Mode.OVERWRITE)
    return Binding(
        name=name,
        secret=table.text("secret", required=True),
        endpoint=table.text("endpoint", required=True),
        rules=frozenset(table.texts("rules", required=True, empty=False)),
        place=place,
        header=header,
        format=_format(table, place, header),
        mode=mode,
        placeholder=_placeholder(table, mode, place),
        foreign=table.choice("foreign", Foreign, Foreign.STRIP, but=(Foreign.ALLOW,)),
        scrub=scrub,
        drop_set_cookie=drop_set_cookie,
        ttl=_ttl(table),
        max_uses=table.number("max_uses", 0, low=1, high=_MAX_USES) or None,
        rates=_rates(table),
        sign=load_signing(table, place, mode),
    )


def _ttl(table: Table) -> int | None:
    text = table.text("ttl")
    seconds = load_units.parse_duration(text)
    if text and seconds is None:
        table.fault("ttl", f"got {show(text)}", load_units.duration_hint(text))
    return seconds


def _rates(table: Table) -> tuple[Rate, ...]:
    text = table.text("rate")
    rate = load_units.parse_rate(text)
    if text and rate is None:
        table.fault("rate", f"got {show(text)}, expected a whole number, / and one of s, m, h, d", 'as in "60/m"')
    return (Rate(count=rate[0], seconds=rate[1]),) if rate else ()


def _place(table: Table) -> tuple[PlaceKind, str]:
    text = table.text("place", required=True)
    kind, _, header = text.partition(":")
    if text in ("basic", "sigv4"):
        return PlaceKind(text), "authorization"
    if text == "certificate":
        return PlaceKind.CERTIFICATE, ""
    if kind == "header":
        _check_header(table, header)
        return PlaceKind.HEADER, header
    if kind in PLACES_LATER:
        table.fault("place", f"not yet: the place {kind} is not built", 'use "header:NAME" or "basic"')
    elif text:
        hint = closest(kind, ("header", "basic", "sigv4", "certificate"))
        table.fault("place", f'got {show(text)}, expected "header:NAME", "basic", "sigv4" or "certificate"', hint)
    return PlaceKind.HEADER, "authorization"


def _check_header(table: Table, header: str) -> None:
    if header != header.lower() and _TOKEN.fullmatch(header.lower()):
        table.fault("place", f"got {show(header)}, expected a header in lower case", f'write "header:{header.lower()}"')
    elif not _TOKEN.fullmatch(header):
        table.fault("place", f"got {show(header)}, expected the name of a header", 'as in "header:authorization"')
    elif header in UNFIT_HEADERS or header.startswith(("credgate-", "proxy-", "sec-")):
        table.fault("place", f"{header} carries no secret: it frames or routes the message", 'as in "header:x-api-key"')
    elif header in {"cookie", "set-cookie"}:
        table.fault("place", f"not yet: a secret in {header} is not built", 'use another "header:NAME" or "basic"')


def _format(table: Table, place: PlaceKind, header: str) -> str:
    """Read the format. Basic has no default: the user name differs from target to target."""
    if place in {PlaceKind.SIGV4, PlaceKind.CERTIFICATE}:
        return ""
    if place is PlaceKind.BASIC:
        text = table.text("format", required=True)
        if text and ":" not in text:
            hint = 'write "USER:{secret}", as in "x-access-token:{secret}"'
            table.fault("format", f"got {show(text)}, expected user and password with a colon between", hint)
    else:
        text = table.text("format", "Bearer {secret}" if header == "authorization" else "{secret}")
    if text and text.count("{secret}") != 1:
        table.fault("format", f"got {show(text)}, expected {{secret}} exactly once", 'as in "Bearer {secret}"')
    elif any(brace in text.replace("{secret}", "") for brace in "{}"):
        table.fault("format", f"got {show(text)}, expected no other braces than those of {{secret}}")
    elif text != text.strip() or not text.isascii():
        table.fault("format", f"got {show(text)}, expected ASCII without a space at either end")
    return text


def _placeholder(table: Table, mode: Mode, place: PlaceKind) -> Placeholder | None:
    written = table.has("placeholder")
    if place is PlaceKind.SIGV4 and mode is Mode.PLACEHOLDER and not written:
        return AWS_DECOY
    if mode is Mode.PLACEHOLDER and not written:
        hint = 'add: placeholder = { env = "GITHUB_TOKEN", shape = "ghp_{36}" }'
        table.fault("placeholder", 'missing, but mode is "placeholder"', hint)
    if mode is Mode.OVERWRITE and written:
        hint = 'write mode = "placeholder", or take the placeholder out'
        table.fault("placeholder", 'got one, but mode is "overwrite"', hint)
    if not written:
        return None
    inner = table.table("placeholder", known=("env", "shape"))
    return Placeholder(env=_decoy_env(inner), shape=_shape(inner))


def _decoy_env(table: Table) -> str:
    name = table.text("env", required=True)
    why = refused(name) if name else ""
    if why and (not ENV_NAME.fullmatch(name) or "credential" not in why):
        table.fault("env", f"got {show(name)}: {why}", 'as in "GITHUB_TOKEN"')
    return name


def _shape(table: Table) -> str:
    text = table.text("shape", required=True)
    if text:
        try:
            check_shape(text)
        except ShapeError as fault:
            table.fault("shape", fault.detail, fault.hint)
    return text


def _response(table: Table) -> tuple[bool, bool]:
    """Read `response`; return whether answers are scrubbed, and whether Set-Cookie is dropped."""
    inner = table.table("response", known=("scrub", "set_cookie"))
    scrub = inner.flag("scrub", default=True)
    word = inner.text("set_cookie", "drop")
    if word not in ("drop", "keep"):
        inner.fault("set_cookie", f'got {show(word)}, expected "drop" or "keep"', closest(word, ("drop", "keep")))
    return scrub, word != "keep"
