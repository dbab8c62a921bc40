"""Why no rule is proposed for a refusal, in words for the user: one sentence for each reason."""

from collections.abc import Mapping

from rules.reasons import Reason

__all__ = ["PROPOSABLE", "WHY", "why_not"]

# A rule may let these pass, if what the ledger keeps of the request is enough to write it.
PROPOSABLE = frozenset(
    {Reason.HOST_UNLISTED, Reason.PORT_UNLISTED, Reason.NO_RULE, Reason.QUERY_REFUSED, Reason.PATH_AMBIGUOUS}
)

_NOTHING = "no rule lets it pass"
_LIMIT = "a bound of the role or the binding, not a rule"
_TARGET = "no rule is missing: the target could not be had"
_PLACE = "no rule is missing: see where the secret or its placeholder belongs"

WHY: Mapping[Reason, str] = {
    Reason.MALFORMED: _NOTHING,
    Reason.HOST_INVALID: _NOTHING,
    Reason.ADDRESS_LITERAL: "addresses are never rules; use the name of the host",
    Reason.HOST_UNLISTED: "a new endpoint would need an address or a name that is not in the ledger",
    Reason.PORT_UNLISTED: "refused before its path was known: list the port on an endpoint, and run it again",
    Reason.IDENTITY_MISMATCH: _NOTHING,
    Reason.METADATA: "metadata names and addresses stay closed, whatever the policy says",
    Reason.PATH_AMBIGUOUS: "a path that can be read in two ways; no rule lets it pass",
    Reason.METHOD_INVALID: _NOTHING,
    Reason.DENY_RULE: "a deny rule covers it, and deny wins over allow",
    Reason.NO_RULE: "its path or query is not whole in the ledger",
    Reason.QUERY_REFUSED: "its query is not whole in the ledger",
    Reason.UPGRADE_REFUSED: "what would go through the socket is not in the ledger; write upgrade = true by hand",
    Reason.BODY_REFUSED: "bodies are not in the ledger; see what the rule's body asks for",
    Reason.SIGNATURE_REFUSED: "no rule is missing: see sign in the binding",
    Reason.BINDING_AMBIGUOUS: "no rule is missing: two bindings write one place",
    Reason.PLACE_AMBIGUOUS: _PLACE,
    Reason.FOREIGN_CREDENTIAL: "no rule is missing: the client sent a credential of its own",
    Reason.PLACEHOLDER_MISPLACED: _PLACE,
    Reason.SECRET_MISPLACED: "a real secret stood in the request",
    Reason.SECRET_UNAVAILABLE: "no rule is missing: credgate secret test NAME",
    Reason.ADDRESS_BLOCKED: "the name leads to a closed range; only address = [...], written by hand, opens one",
    Reason.RESOLVE_FAILED: _TARGET,
    Reason.UPSTREAM_UNREACHABLE: _TARGET,
    Reason.UPSTREAM_TLS: _TARGET,
    Reason.UPSTREAM_RESET: _TARGET,
    Reason.UPSTREAM_RESENT: _TARGET,
    Reason.UPSTREAM_INVALID: _TARGET,
    Reason.UPSTREAM_TIMEOUT: _TARGET,
    Reason.RESPONSE_UNREADABLE: "no rule is missing: the answer could not be searched for secrets",
    Reason.NOT_HTTP: 'only HTTP passes; an opaque target is an endpoint with protocol = "tcp"',
    Reason.PROOF_MISSING: _NOTHING,
    Reason.REVOKED: _LIMIT,
    Reason.PAUSED: _LIMIT,
    Reason.EXPIRED: _LIMIT,
    Reason.USES_EXHAUSTED: _LIMIT,
    Reason.RATE_EXCEEDED: _LIMIT,
    Reason.BUDGET_EXHAUSTED: _LIMIT,
    Reason.LEDGER_UNAVAILABLE: "the ledger could not be written",
    Reason.WORKER_DIED: "a fault of our own",
    Reason.INTERNAL: "a fault of our own",
}


def why_not(reason: str) -> str:
    """The sentence for a code of the ledger; one for codes of another version."""
    return next((why for known, why in WHY.items() if known == reason), _NOTHING)
