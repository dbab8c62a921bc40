"""A request as it leaves: the client's credentials out, each binding's secret in. Pure."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rules.credentials import CORRELATION_HEADERS, CREDENTIAL_HEADERS, PROVENANCE_HEADERS, fold_name
from rules.policy import Binding, Foreign, Mode, PlaceKind
from rules.problems import InjectError
from rules.request import Outgoing, Request
from rules.upgrades import upgrade_fields
from rules.verdict import Allow

__all__ = [
    "InjectError",
    "Placement",
    "authority",
    "basic_text",
    "decoy_in_place",
    "header_of",
    "injected",
    "placements",
    "rewrite",
]

# RFC 9110 7.6.1, and what older clients send to proxies. Framing is the gateway's own to write.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "upgrade", "http2-settings"})
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_BASIC = re.compile(rb"\s*basic\s+(.*)", re.IGNORECASE | re.DOTALL)
# Whose secret stands in no field: the gateway signs what this module made of the request, or shows a certificate.
_ELSEWHERE = frozenset({PlaceKind.SIGV4, PlaceKind.CERTIFICATE})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DEFAULT_PORT = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What would be injected where: `place` as the policy writes it, and the secret's name."""

    place: str
    secret: str
    binding: str
    mode: Mode


def placements(allow: Allow) -> tuple[Placement, ...]:
    """Where each binding of an Allow would put its secret."""
    return tuple(
        Placement(place=_place_text(binding), secret=binding.secret, binding=binding.name, mode=binding.mode)
        for binding in allow.bindings
    )


def injected(request: Request, allow: Allow, decoys: Mapping[str, str]) -> tuple[Binding, ...]:
    """The bindings whose secret this very request gets; the others' secrets need not be fetched."""
    return tuple(
        binding
        for binding in allow.bindings
        if binding.mode is Mode.OVERWRITE or decoy_in_place(request, binding, decoys.get(binding.name, ""))
    )


def rewrite(request: Request, allow: Allow, secrets: Mapping[str, str], decoys: Mapping[str, str]) -> Outgoing:
    """What to send. `secrets` by secret's name, `decoys` by binding's name.

    Raises InjectError where a needed secret is missing or cannot stand in its place; nothing may be sent then.
    """
    keep_credentials = allow.endpoint.foreign is Foreign.ALLOW and not allow.bindings
    written = tuple(
        (_wire_name(b), _value(b, secrets)) for b in injected(request, allow, decoys) if b.place not in _ELSEWHERE
    )
    dropped = _named_by_connection(request) | {header_of(binding) for binding in allow.bindings}
    kept = [
        _canonical_host(request, name, value)
        for name, value in request.headers
        if not _is_dropped(fold_name(name), dropped, keep_credentials)
    ]
    if request.http_version.startswith("HTTP/2"):
        # gRPC asks for trailers by te, which RFC 9113 8.2.2 lets pass; the host is in :authority
        kept = [field for field in kept if field[0] != b"host"] + [f for f in request.headers if f[0] == b"te"]
    if request.upgrade:  # WebSocket: decide lets no other one come to here
        kept = list(upgrade_fields(tuple(kept), keep_credentials))
    return Outgoing(target=request.target, fields=(*kept, *written))


def authority(request: Request) -> bytes:
    """The Host header or :authority to send: the name in normal form, the port only where it is not the scheme's."""
    port = "" if request.port == _DEFAULT_PORT[request.scheme] else f":{request.port}"
    return f"{request.host}{port}".encode("ascii")


def decoy_in_place(request: Request, binding: Binding, decoy: str) -> bool:
    """Whether the client put this decoy, once, where the binding's secret goes."""
    if not decoy:
        return False
    values = [value for key, value in request.headers if fold_name(key) == header_of(binding)]
    if len(values) != 1:
        return False
    text = basic_text(values[0]) if binding.place is PlaceKind.BASIC else values[0].decode("latin-1")
    return text.count(decoy) == 1


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


def _place_text(binding: Binding) -> str:
    return f"header:{binding.header}" if binding.place is PlaceKind.HEADER else binding.place.value


def header_of(binding: Binding) -> str:
    """The header that a binding writes, as the tables of credentials spell names."""
    return "authorization" if binding.place is PlaceKind.BASIC else fold_name(binding.header.encode("ascii"))


def _wire_name(binding: Binding) -> bytes:
    return b"authorization" if binding.place is PlaceKind.BASIC else binding.header.lower().encode("ascii")


def _value(binding: Binding, secrets: Mapping[str, str]) -> bytes:
    secret = secrets.get(binding.secret)
    if not secret:
        raise InjectError(f"secret {binding.secret!r} has no value", f"credgate secret set {binding.secret}")
    text = binding.format.replace("{secret}", secret)
    if _CONTROL.search(text):
        raise InjectError(f"secret {binding.secret!r} holds a line break or another control character", _SET_AGAIN)
    # asked before, not caught after: the codec's exception would carry the value
    if max(text) > "\xff":
        raise InjectError(f"secret {binding.secret!r} holds characters that no header can carry", _SET_AGAIN)
    raw = text.encode("latin-1")
    return b"Basic " + base64.b64encode(raw) if binding.place is PlaceKind.BASIC else raw


_SET_AGAIN = "set it again, from a file without a last line break: printf %s VALUE | credgate secret set NAME"


def _named_by_connection(request: Request) -> frozenset[str]:
    values = (value for name, value in request.headers if name.lower() == b"connection")
    return frozenset(fold_name(part.strip()) for value in values for part in value.split(b",")) - _FRAMING - {"host"}


def _is_dropped(name: str, dropped: frozenset[str], keep_credentials: bool) -> bool:
    if name in dropped or name in _HOP_BY_HOP or name.startswith("proxy-"):
        return True
    if name in CORRELATION_HEADERS or name in PROVENANCE_HEADERS:
        return True
    return name in CREDENTIAL_HEADERS and not keep_credentials


def _canonical_host(request: Request, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return (name, authority(request)) if name.lower() == b"host" else (name, value)
