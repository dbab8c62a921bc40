"""What a request that a rule allows may hold of credentials: its own run's placeholders in their places, and of the
client's own only what can be taken out, or nothing where the policy says so.
"""

from collections.abc import Collection, Mapping

from rules.cookies import cookies_of, is_plain
from rules.credentials import credentials_of
from rules.decoys import holds_decoy, misplaced, strange
from rules.places import Key, held, key_of, place_text
from rules.policy import Foreign, Mode, PlaceKind
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Allow, Deny, Verdict

__all__ = ["check_credentials"]

_FIXED = frozenset({PlaceKind.PATH, PlaceKind.JSON, PlaceKind.FORM})  # what stands there can't be taken out
_ONE_READING = frozenset({PlaceKind.HEADER, PlaceKind.BASIC, PlaceKind.SIGV4, PlaceKind.CERTIFICATE})


def check_credentials(request: Request, allow: Allow, decoys: Mapping[str, str], others: Collection[str]) -> Verdict:
    """The verdict itself, or why not. `decoys` by binding's name are the run's own, `others` those of other runs."""
    if misplaced(request, allow, decoys) or strange(request, allow, others):
        return Deny(
            reason=Reason.PLACEHOLDER_MISPLACED,
            message="A placeholder stands where its secret does not belong.",
            hint="the run's own placeholder, in the place that its binding names, once, to that endpoint alone",
        )
    for binding in (b for b in allow.bindings if b.place not in _ONE_READING):
        trouble = held(request, binding, allow.endpoint).trouble
        if trouble:
            return Deny(
                reason=Reason.PLACE_AMBIGUOUS,
                message="The place of a secret can be read in more than one way.",
                hint=f"one {place_text(binding)} for binding {binding.name!r}; here: {trouble}",
            )
    if _foreign(request, allow, decoys):
        return Deny(
            reason=Reason.FOREIGN_CREDENTIAL,
            message="The request holds a credential of its own.",
            hint='foreign = "strip" takes it out of headers, query and cookies; not out of a path or a body',
        )
    return allow


def _foreign(request: Request, allow: Allow, decoys: Mapping[str, str]) -> bool:
    """Whether a credential of the client's own refuses the request; the strictest of endpoint and bindings counts."""
    if not allow.bindings and allow.endpoint.foreign is Foreign.ALLOW:
        return False
    strict = Foreign.DENY in {allow.endpoint.foreign, *(binding.foreign for binding in allow.bindings)}
    if not strict and not any(b.mode is Mode.PLACEHOLDER and b.place in _FIXED for b in allow.bindings):
        return False
    filled = {b.name for b in allow.bindings if held(request, b, allow.endpoint).values}
    ours = {b.name for b in allow.bindings if holds_decoy(request, b, allow, decoys.get(b.name, ""))}
    left = [b for b in allow.bindings if b.name in filled - ours]
    if any(b.mode is Mode.PLACEHOLDER and b.place in _FIXED for b in left):
        return True
    if not strict:
        return False
    if any(b.place is not PlaceKind.PATH for b in left):  # a segment holds something in any case
        return True
    return not {key_of(b) for b in allow.bindings if b.name in ours}.issuperset(_sent(request, allow))


def _sent(request: Request, allow: Allow) -> set[Key]:
    """The client's credentials, by their places. Beside a secret's cookie those that are none may stand."""
    found = {(credential.place, credential.name) for credential in credentials_of(request)}
    if any(b.place is PlaceKind.COOKIE for b in allow.bindings):
        found.discard(("header", "cookie"))
        found |= {("cookie", cookie.name) for cookie in cookies_of(request.headers) if not is_plain(cookie)}
    return found
