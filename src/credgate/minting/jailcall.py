"""The jail's own refresh call: a client that believes its token to be over asks the provider. It is answered here.

What a jail sends to the token endpoint of one of its mints goes no further, whatever it is. The decoy refresh token of
the run is answered with decoys; anything else (another grant, somebody else's token) is refused.
"""

import json
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from credgate.gateway.decoded import Undecodable, decoded
from credgate.gateway.exchange import Exchange
from credgate.gateway.refusal import HEADER, Refusal
from credgate.gateway.waiting import BodyWanted, ask, refused
from credgate.runs import Run
from rules.mint_refs import endpoint_of, mint_of
from rules.mints import OAuthRefresh, decoy_key
from rules.paths import readings_of
from rules.placeholders import JWT
from rules.policy import Binding, Mode
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Deny

MAX_BODY = 16 << 10
# Seconds. The decoy counts as long as the run lives; a client that believes so does not ask again and again.
LIFETIME = 30 * 86400
_SCOPE = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")  # what RFC 6749 3.3 has no place for
OVERWRITTEN = "replaced-by-the-gateway"  # where a binding overwrites whatever the client sends


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAnswer(Refusal):
    """An answer of ours that is no refusal: 200 with a JSON document, for one mint."""

    document: bytes
    mint: str

    def body(self) -> bytes:
        """The document."""
        return self.document

    def fields(self, *, h2: bool, close: bool) -> tuple[tuple[bytes, bytes], ...]:
        """Headers of the answer (RFC 6749 5.1: never kept)."""
        end = ((b"connection", b"close"),) if close and not h2 else ()
        return (
            (HEADER, b"answered"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.document)),
            (b"cache-control", b"no-store"),
            *end,
        )


def answer(
    run: Run, exchange: Exchange, request: Request, body: bytes | None
) -> LocalAnswer | BodyWanted | Deny | None:
    """What to say to a request at the token endpoint of one of the run's mints; None for every other request."""
    mint = _mint_at(run, request)
    if mint is None:
        return None
    if request.method != "POST":
        return _no("POST with grant_type=refresh_token")
    if body is None:
        return ask(exchange, MAX_BODY, request)
    try:
        said = _parse(decoded(request.headers, body, MAX_BODY))
    except Undecodable as why:
        return refused(str(why))
    decoy = run.decoys.get(decoy_key(mint.name), "")
    if said.get("grant_type") != "refresh_token" or not decoy or said.get("refresh_token") != decoy:
        return _no("the refresh token that this run was given, with grant_type=refresh_token")
    document = _tokens(_binding_of(run, mint), run, mint, said.get("scope", "")) | {"refresh_token": decoy}
    spoken = Deny(reason=Reason.INTERNAL, message="", status=200)
    return LocalAnswer(deny=spoken, document=json.dumps(document).encode(), mint=mint.name)


def _no(what: str) -> Deny:
    return Deny(
        reason=Reason.FOREIGN_CREDENTIAL, message="Tokens of this provider are made outside the jail.", hint=what
    )


def _mint_at(run: Run, request: Request) -> OAuthRefresh | None:
    """The role's mint whose token endpoint this is, whether the role reaches that host otherwise or not."""
    policy = run.policy
    if not policy.mints:  # for each request: most policies have none
        return None
    for name in dict.fromkeys(policy.bindings[binding].secret for binding in run.role_rule.bindings):
        mint = mint_of(policy, policy.secrets[name])
        if not isinstance(mint, OAuthRefresh) or request.scheme != "https":
            continue
        endpoint = endpoint_of(policy, mint)
        if endpoint is None or not endpoint.host.matches(request.host) or endpoint.port != request.port:
            continue
        if mint.path.rstrip("/").lower() in readings_of(request.path):  # however its server reads paths
            return mint
    return None


def _tokens(binding: Binding | None, run: Run, mint: OAuthRefresh, scope: str) -> dict[str, object]:
    """RFC 6749 5.1, and 3.3: the scope that was asked for. A decoy that can be read is an ID token too (OpenID Connect
    Core 1.0, 12.2): clients read the account out of either.
    """
    token = OVERWRITTEN if binding is None else run.decoys.get(binding.name, OVERWRITTEN)
    document: dict[str, object] = {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME}
    if scope := _SCOPE.sub("", scope) or " ".join(mint.scopes):
        document["scope"] = scope
    if binding is not None and binding.placeholder is not None and binding.placeholder.shape == JWT:
        document["id_token"] = token
    return document


def _binding_of(run: Run, mint: OAuthRefresh) -> Binding | None:
    for name in run.role_rule.bindings:
        binding = run.policy.bindings[name]
        if binding.mode is Mode.PLACEHOLDER and mint_of(run.policy, run.policy.secrets[binding.secret]) == mint:
            return binding
    return None


def _parse(body: bytes) -> dict[str, str]:
    """A form or a JSON object; of a name that stands there twice nothing is believed."""
    try:
        text = body.decode("utf-8")
        found = json.loads(text, object_pairs_hook=list) if text.lstrip().startswith("{") else parse_qsl(text)
    except (ValueError, RecursionError):
        return {}
    names = [name for name, _ in found]
    return {n: v for n, v in found if isinstance(v, str) and names.count(n) == 1} if len(names) <= 32 else {}
