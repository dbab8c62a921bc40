"""The offline verdict: the request that a client would send for METHOD URL, judged as the gateway judges it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import assert_never

from credgate.errors import CredgateError
from credgate.roleneeds import sample_decoys
from rules.decide import decide
from rules.inject import Placement, injected, placements
from rules.nearest import Nearest, nearest
from rules.parse import parse_request
from rules.policy import Policy
from rules.request import Request, Via, Wire
from rules.verdict import Allow, Deny, Verdict

_URL = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_PORT = re.compile(r":([0-9]{1,5})$")
USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A verdict and the request in its normal form, None where it has none.

    `injected` names the bindings whose secret this very request would get: a placeholder has to stand in it.
    `nearest`: what comes nearest to a request that something is missing for.
    """

    verdict: Verdict
    request: Request | None
    policy_sha256: str
    injected: frozenset[str] = frozenset()
    nearest: Nearest | None = None


def explain(
    policy: Policy, role: str, method: str, url: str, headers: Sequence[str] = (), body: bytes | None = None
) -> Explained:
    """Judge one request offline, with its body where one is given (JSON or a form, by its look, unless a header says
    which); without one it is taken that a body fits.

    `headers` are "Name: value"; "{ENV}" in a value, the URL or the body stands for the placeholder that a run would
    have put into the variable ENV. Raises CredgateError for a URL or a header that can't be put into a request at all.
    """
    decoys = _decoys(policy, role)
    sent = [_filled(h, policy, decoys) for h in headers]
    url = _filled(url, policy, decoys)
    if body is not None:
        body = _filled(body.decode("utf-8", "surrogateescape"), policy, decoys).encode("utf-8", "surrogateescape")
        sent += [f"Content-Length: {len(body)}"]
        sent += [] if any(h.lower().startswith("content-type:") for h in sent) else [f"Content-Type: {_type_of(body)}"]
    parsed = parse_request(wire_of(method, url, sent))
    if isinstance(parsed, Deny):
        return Explained(verdict=parsed, request=None, policy_sha256=policy.sha256)
    if body is not None:
        parsed = replace(parsed, body=body)
    verdict = decide(policy, role, parsed, decoys)
    names = frozenset(b.name for b in injected(parsed, verdict, decoys)) if isinstance(verdict, Allow) else frozenset()
    close = nearest(policy, role, parsed, verdict) if isinstance(verdict, Deny) else None
    return Explained(verdict=verdict, request=parsed, policy_sha256=policy.sha256, injected=names, nearest=close)


def _type_of(body: bytes) -> str:
    """What a client would say of a body like this: a form's begins with a name, JSON's never does so with "=" in it."""
    is_form = b"=" in body and body.lstrip()[:1] not in (b"{", b"[", b'"')
    return "application/x-www-form-urlencoded" if is_form else "application/json"


def wire_of(method: str, url: str, headers: Sequence[str] = ()) -> Wire:
    """Return what a client that honours the proxy variables sends: CONNECT for https, absolute-form for http.

    Nothing is normalised on the way, so that a spelling which the gateway refuses is refused here too.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise CredgateError(
            "url_invalid", f"got {url!r}, expected https://HOST/PATH or http://HOST/PATH", "quote it", USAGE
        )
    authority, target = _raw(found[2]), _raw(found[3] or "/")
    fields = [_field(h) for h in headers]
    if not any(name.lower() == b"host" for name, _ in fields):
        fields.insert(0, (b"Host", authority))
    common = _Common(
        method=_raw(method), target=target if target.startswith(b"/") else b"/" + target, headers=tuple(fields)
    )
    return _tunnelled(common, found[2]) if found[1].lower() == "https" else _absolute(common, authority)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _absolute(common: _Common, authority: bytes) -> Wire:
    return Wire(
        via=Via.ABSOLUTE,
        http_version="HTTP/1.1",
        method=common.method,
        target=common.target,
        headers=common.headers,
        tls=False,
        authority=authority,
        scheme=b"http",
    )


def _tunnelled(common: _Common, authority: str) -> Wire:
    host, port = _split(authority, 443)
    return Wire(
        via=Via.CONNECT,
        http_version="HTTP/1.1",
        method=common.method,
        target=common.target,
        headers=common.headers,
        tls=True,
        connect_host=_raw(host),
        connect_port=port,
        sni=host,
    )


def _split(authority: str, default: int) -> tuple[str, int]:
    found = _PORT.search(authority)
    if found is None:
        return authority, default
    return authority[: found.start()], int(found[1])


def _field(text: str) -> tuple[bytes, bytes]:
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise CredgateError("header_invalid", f"got the header {name!r}", "write --header 'NAME: VALUE'", USAGE)
    return _raw(name), _raw(value.strip())


def _decoys(policy: Policy, role: str) -> dict[str, str]:
    """Sample placeholders, a different one for each binding of the role."""
    seed: Iterator[int] = count(1)
    return sample_decoys(policy, role, lambda n: next(seed) % n)


def _filled(text: str, policy: Policy, decoys: Mapping[str, str]) -> str:
    for name, decoy in decoys.items():
        placeholder = policy.bindings[name].placeholder
        if placeholder is not None:
            text = text.replace(f"{{{placeholder.env}}}", decoy)
    return text


def as_json(explained: Explained) -> dict[str, object]:
    """Return the keys of `policy explain --json`."""
    return {
        **_verdict_json(explained),
        "normalized": _normalized(explained.request),
        "policy_sha256": explained.policy_sha256,
    }


def _verdict_json(explained: Explained) -> dict[str, object]:
    verdict = explained.verdict
    match verdict:
        case Allow():
            inject = [_placement_json(p, explained) for p in placements(verdict)]
            binding = verdict.bindings[0].name if verdict.bindings else None
            found: dict[str, object] = {"verdict": "allow", "reason": None, "rule": verdict.rule}
            found |= {"binding": binding, "inject": inject}
            if verdict.sent is not None:
                found |= {"route": verdict.route, "sent_to": _normalized(verdict.sent)}
            return found | ({"body_max": verdict.body_max} if verdict.body_max else {})
        case Deny():
            return {
                "verdict": "deny",
                "reason": verdict.reason.value,
                "rule": verdict.rule or None,
                "binding": None,
                "inject": [],
                "status": verdict.status,
                "message": verdict.message,
                "hint": verdict.hint or None,
                "nearest": _nearest_json(explained.nearest),
            }
        case _:
            assert_never(verdict)


def _nearest_json(close: Nearest | None) -> dict[str, str] | None:
    return None if close is None else {"rule": close.rule, "why": close.why}


def _placement_json(placement: Placement, explained: Explained) -> dict[str, object]:
    return {
        "place": placement.place,
        "secret": placement.secret,
        "binding": placement.binding,
        "mode": placement.mode.value,
        "injected": placement.binding in explained.injected,
    }


def _normalized(request: Request | None) -> dict[str, object] | None:
    if request is None:
        return None
    return {
        "method": request.method,
        "scheme": request.scheme,
        "host": request.host,
        "port": request.port,
        "path": request.path,
    }


def _placement_text(placement: Placement, explained: Explained) -> str:
    text = (
        f"  inject   secret {placement.secret} into {placement.place} (binding {placement.binding}, {placement.mode})"
    )
    return text if placement.binding in explained.injected else f"{text}: not here, its placeholder is missing"


def as_text(explained: Explained) -> str:
    """Return the verdict for people, one fact a line."""
    match explained.verdict:
        case Allow() as allow:
            lines = ["allow", f"  rule     {allow.rule}"]
            if allow.sent is not None:
                lines.append(f"  route    {allow.route}")
                lines.append(f"  sent to  {allow.sent.scheme}://{allow.sent.host}:{allow.sent.port}{allow.sent.path}")
            lines += [_placement_text(p, explained) for p in placements(allow)]
            if allow.body_max:
                lines.append(f"  body     is read first, at most {allow.body_max} bytes, and has to fit: --body FILE")
            if not allow.bindings:
                lines.append("  inject   nothing: no binding names this rule")
        case Deny() as deny:
            lines = [f"deny: {deny.reason}", f"  why      {deny.message}"]
            lines += [f"  rule     {deny.rule}"] if deny.rule else []
            lines += [f"  missing  {deny.hint}"] if deny.hint else []
            close = explained.nearest
            lines += [f"  nearest  {close.rule}: {close.why}"] if close is not None else []
        case _:
            assert_never(explained.verdict)
    if explained.request is not None:
        r = explained.request
        lines.append(f"  request  {r.method} {r.scheme}://{r.host}:{r.port}{r.path}")
    return "\n".join([*lines, f"  policy   sha256 {explained.policy_sha256}"])
