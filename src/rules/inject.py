"""A request as it leaves: the client's credentials out, each binding's secret in. Pure.

What was judged is sent byte for byte, but for the places that a binding writes and the credentials that are taken out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rules.basic import basic_text
from rules.cookies import cookies_of, is_plain
from rules.credentials import (
    CORRELATION_HEADERS,
    CREDENTIAL_HEADERS,
    PROVENANCE_HEADERS,
    fold_name,
    is_credential_query,
)
from rules.jsonfield import FieldError, Found, find, with_value
from rules.places import field_of, held, key_of, place_text, segment_of, text_of
from rules.policy import Binding, Endpoint, Foreign, Mode, PlaceKind
from rules.problems import InjectError
from rules.queries import likeness, rewritten
from rules.request import Outgoing, Request
from rules.upgrades import upgrade_fields
from rules.values import header_value, plain_text, segment_text, spelt
from rules.verdict import Allow

__all__ = [
    "InjectError",
    "Placement",
    "authority",
    "basic_text",
    "decoy_in_place",
    "injected",
    "path_for_records",
    "placements",
    "rewrite",
]

# RFC 9110 7.6.1, and what older clients send to proxies. Framing is the gateway's own to write.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "upgrade", "http2-settings"})
_FRAMING = frozenset({"content-length", "transfer-encoding"})
# Of a body that is written anew: its coding is gone, and a digest of the client's would be of other bytes (RFC 9530).
_OF_THE_BODY = _FRAMING | {"content-encoding", "content-md5", "digest", "content-digest", "repr-digest", "want-digest"}
_IN_HEADER = (PlaceKind.HEADER, PlaceKind.BASIC, PlaceKind.SIGV4)
_IN_BODY = (PlaceKind.JSON, PlaceKind.FORM)
# Whose secret stands in no field: the gateway signs what this module made of the request, or shows a certificate.
_ELSEWHERE = frozenset({PlaceKind.SIGV4, PlaceKind.CERTIFICATE})
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
        Placement(place=place_text(binding), secret=binding.secret, binding=binding.name, mode=binding.mode)
        for binding in allow.bindings
    )


def injected(request: Request, allow: Allow, decoys: Mapping[str, str]) -> tuple[Binding, ...]:
    """The bindings whose secret this very request gets; the others' secrets need not be fetched."""
    return tuple(
        binding
        for binding in allow.bindings
        if binding.mode is Mode.OVERWRITE
        or decoy_in_place(request, binding, allow.endpoint, decoys.get(binding.name, ""))
    )


def decoy_in_place(request: Request, binding: Binding, endpoint: Endpoint, decoy: str) -> bool:
    """Whether the client put this decoy, once, where the binding's secret goes."""
    if not decoy:
        return False
    values = held(request, binding, endpoint).values
    return len(values) == 1 and values[0].count(decoy) == 1


def rewrite(request: Request, allow: Allow, secrets: Mapping[str, str], decoys: Mapping[str, str]) -> Outgoing:
    """What to send. `secrets` by secret's name, `decoys` by binding's name.

    Raises InjectError where a needed secret is missing or cannot stand in its place; nothing may be sent then.
    """
    texts = {b.name: plain_text(b, secrets) for b in injected(request, allow, decoys) if b.place not in _ELSEWHERE}
    body = _body(request, allow, texts)
    fields = _fields(request, allow, texts)
    if body is not None:
        kept = tuple(f for f in fields if fold_name(f[0]) not in _OF_THE_BODY)
        fields = (*kept, (b"content-length", b"%d" % len(body)))
    return Outgoing(target=_target(request, allow, texts), fields=fields, body=body)


def authority(request: Request) -> bytes:
    """The Host header or :authority to send: the name in normal form, the port only where it is not the scheme's."""
    port = "" if request.port == _DEFAULT_PORT[request.scheme] else f":{request.port}"
    return f"{request.host}{port}".encode("ascii")


def path_for_records(request: Request, allow: Allow) -> str:
    """The path without what a binding writes into it: the binding's name in braces, which no path can hold."""
    segments = request.path.split("/")
    for binding in _of(allow, PlaceKind.PATH):
        index = segment_of(request, binding, allow.endpoint)
        if index is not None:
            segments[index + 1] = f"{{{binding.name}}}"
    return "/".join(segments)


def _of(allow: Allow, *kinds: PlaceKind) -> tuple[Binding, ...]:
    return tuple(binding for binding in allow.bindings if binding.place in kinds)


def _keeps(allow: Allow) -> bool:
    """Whether the client's own credentials go along."""
    return allow.endpoint.foreign is Foreign.ALLOW and not allow.bindings


# -- the target ------------------------------------------------------------------------------------------------------


def _target(request: Request, allow: Allow, texts: Mapping[str, str]) -> str:
    path, mark, query = request.target.partition("?")
    segments = path.split("/")
    for binding in _of(allow, PlaceKind.PATH):
        index = segment_of(request, binding, allow.endpoint)
        if index is None:
            raise InjectError(f"binding {binding.name!r} has no one segment in this path")
        if binding.name in texts:
            segments[index + 1] = segment_text(binding, texts[binding.name])
    path = "/".join(segments)
    bound = _of(allow, PlaceKind.QUERY)
    if not bound and (_keeps(allow) or not any(map(is_credential_query, request.query_names))):
        return f"{path}{mark}{query}"
    places = {likeness(binding.slot) for binding in bound}
    placed = [(b.slot, spelt(b, texts[b.name])) for b in bound if b.name in texts]
    query = rewritten(query, lambda name: is_credential_query(name) or likeness(name) in places, placed)
    return f"{path}?{query}" if query else path


# -- the headers -----------------------------------------------------------------------------------------------------


def _fields(request: Request, allow: Allow, texts: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    bound = _of(allow, *_IN_HEADER)
    written = tuple((_wire_name(b), header_value(b, texts[b.name])) for b in bound if b.name in texts)
    dropped = _named_by_connection(request) | {key_of(binding)[1] for binding in bound}
    kept = [
        _canonical_host(request, name, value)
        for name, value in request.headers
        if not _is_dropped(fold_name(name), dropped, _keeps(allow))
    ]
    if request.http_version.startswith("HTTP/2"):
        # gRPC asks for trailers by te, which RFC 9113 8.2.2 lets pass; the host is in :authority
        kept = [field for field in kept if field[0] != b"host"] + [f for f in request.headers if f[0] == b"te"]
    if request.upgrade:  # WebSocket: decide lets no other one come to here
        kept = list(upgrade_fields(tuple(kept), _keeps(allow)))
    return (*kept, *_cookie(request, allow, texts), *written)


def _wire_name(binding: Binding) -> bytes:
    return b"authorization" if binding.place is PlaceKind.BASIC else binding.header.lower().encode("ascii")


def _cookie(request: Request, allow: Allow, texts: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    """The one Cookie header of a request that a binding writes a cookie into; without one all cookies are dropped."""
    bound = _of(allow, PlaceKind.COOKIE)
    if not bound:
        return ()
    ours = {likeness(binding.slot) for binding in bound}
    kept = [c for c in cookies_of(request.headers) if is_plain(c) and likeness(c.name) not in ours]
    pairs = [f"{cookie.name}={cookie.value}" for cookie in kept]
    pairs += [f"{b.slot}={spelt(b, texts[b.name])}" for b in bound if b.name in texts]
    return ((b"cookie", "; ".join(pairs).encode("ascii")),) if pairs else ()


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


# -- the body --------------------------------------------------------------------------------------------------------


def _body(request: Request, allow: Allow, texts: Mapping[str, str]) -> bytes | None:
    bound = [binding for binding in _of(allow, *_IN_BODY) if binding.name in texts]
    if not bound:
        return None
    if request.body is None:
        raise InjectError("a body was not read that a secret goes into")
    text = text_of(request)
    fields = [(b.slot, spelt(b, texts[b.name])) for b in bound if b.place is PlaceKind.FORM]
    if fields:
        text = rewritten(text, lambda _: False, fields)
    for binding in bound:
        if binding.json_path is not None:
            found = field_of(request, binding.json_path.steps) if text is text_of(request) else None
            text = _with_field(text, binding, texts[binding.name], found)
    return text.encode("utf-8")


def _with_field(text: str, binding: Binding, value: str, found: Found | FieldError | None) -> str:
    """`found`: where the field stands, if that is known."""
    steps = () if binding.json_path is None else binding.json_path.steps
    try:
        found = find(text, steps) if found is None else found
    except FieldError as why:
        found = why
    if isinstance(found, FieldError):
        raise InjectError(f"binding {binding.name!r}: {found}")
    return with_value(text, found, value)
