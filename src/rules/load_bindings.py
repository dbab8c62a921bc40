"""[binding.NAME] tables into values."""

import json
from collections.abc import Mapping

from rules import load_units
from rules.envnames import ENV_NAME, refused
from rules.load_places import read_format, read_place
from rules.load_signing import AWS_DECOY, load_signing
from rules.placeholders import JWT, ShapeError, check_claims, check_shape
from rules.policy import Binding, Foreign, Mode, Placeholder, PlaceKind, Rate
from rules.tables import Table, closest, show

BINDING_KEYS = (
    *("secret", "endpoint", "rules", "place", "format", "mode", "placeholder", "foreign", "response"),
    *("ttl", "max_uses", "rate", "sign"),
)
BINDING_LATER: tuple[str, ...] = ()
_MAX_USES = 10**9


def load_bindings(tables: Mapping[str, Table]) -> dict[str, Binding]:
    """Return the bindings; that their names lead somewhere is checked later."""
    return {name: _binding(name, table) for name, table in tables.items()}


def _binding(name: str, table: Table) -> Binding:
    place = read_place(table)
    scrub, alarm, drop_set_cookie = _response(table, place.kind)
    mode = table.choice("mode", Mode, Mode.OVERWRITE)
    return Binding(
        name=name,
        secret=table.text("secret", required=True),
        endpoint=table.text("endpoint", required=True),
        rules=frozenset(table.texts("rules", required=True, empty=False)),
        place=place.kind,
        header=place.header,
        slot=place.slot,
        json_path=place.json_path,
        format=read_format(table, place),
        mode=mode,
        placeholder=_placeholder(table, mode, place.kind),
        foreign=table.choice("foreign", Foreign, Foreign.STRIP, but=(Foreign.ALLOW,)),
        scrub=scrub,
        scrub_alarm=alarm,
        drop_set_cookie=drop_set_cookie,
        ttl=_ttl(table),
        max_uses=table.number("max_uses", 0, low=1, high=_MAX_USES) or None,
        rates=_rates(table),
        sign=load_signing(table, place.kind, mode),
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
    inner = table.table("placeholder", known=("env", "shape", "claims"))
    shape = _shape(inner)
    return Placeholder(env=_decoy_env(inner), shape=shape, claims=claims_of(inner, shape))


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


def claims_of(table: Table, shape: str) -> str:
    """Read the payload of a token, as JSON."""
    if table.has("claims") and shape != JWT:
        table.fault("claims", f"got some beside the shape {show(shape)}", 'write shape = "jwt", or take them out')
    try:
        text = json.dumps(dict(table.mapping("claims")), allow_nan=False, separators=(",", ":"))
        check_claims(text)
    except ShapeError as fault:
        table.fault("claims", fault.detail, fault.hint)
    except (TypeError, ValueError):
        table.fault("claims", "got a date or a number that JSON does not have", "write it as text")
    else:
        return "" if text == "{}" else text
    return ""


def _response(table: Table, place: PlaceKind) -> tuple[bool, bool, bool]:
    """Read `response`; return whether answers are scrubbed, with an alarm, and whether Set-Cookie is dropped."""
    inner = table.table("response", known=("scrub", "alarm", "set_cookie"))
    # A target that is shown a signature or a certificate never has the secret, and S3's clients ask for parts.
    scrub = inner.flag("scrub", default=place not in (PlaceKind.SIGV4, PlaceKind.CERTIFICATE))
    word = inner.text("set_cookie", "drop")
    if word not in ("drop", "keep"):
        inner.fault("set_cookie", f'got {show(word)}, expected "drop" or "keep"', closest(word, ("drop", "keep")))
    return scrub, inner.flag("alarm", default=True), word != "keep"
