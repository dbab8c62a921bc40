"""Whether a message that a client sends by WebSocket is what the rules of its handshake allow. Pure.

A secret is injected once, with the handshake, so what is asked of a message is fixed then: for each binding whose rules
all have a body term it must fit one of those rules, and where no binding was injected one of the rules that matched.
"""

from rules import bodies
from rules.policy import BodyTerm, BodyType

__all__ = ["Messages", "max_of", "misfit"]

# Each part asks for itself, and is content with any one of its terms. Without a part nothing is asked.
type Messages = tuple[tuple[BodyTerm, ...], ...]

# The protocols of GraphQL over WebSocket put a request into an envelope: graphql-transport-ws, and graphql-ws (Apollo's
# older one) with other words.
_ENVELOPE = frozenset({"type", "id", "payload"})
_CARRIES = frozenset({"subscribe", "start"})
_BARE = frozenset({"connection_init", "ping", "pong", "complete", "stop", "connection_terminate"})


def max_of(asked: Messages) -> int:
    """Bytes of the longest message that can fit."""
    return max(term.max for part in asked for term in part)


def misfit(asked: Messages, message: bytes) -> str:
    """Why a text message is not what is asked for, in the policy's words; "" where it is."""
    document = bodies.parse(message)
    for part in asked:
        why = [_over(term, message) or _misfit(term, document) for term in part]
        if all(why):
            return why[0]
    return ""


def _over(term: BodyTerm, message: bytes) -> str:
    return f"over max = {term.max} bytes" if len(message) > term.max else ""


def _misfit(term: BodyTerm, document: bodies.Document | bodies.Unreadable) -> str:
    if term.type is BodyType.FORM:
        return "no message is a form"
    value = document.value if isinstance(document, bodies.Document) else None
    if term.type is not BodyType.GRAPHQL or not isinstance(value, dict) or "type" not in value:
        return bodies.misfit(term, document)
    return _misfit_enveloped(term, value)


def _misfit_enveloped(term: BodyTerm, value: dict[str, object]) -> str:
    if not _ENVELOPE.issuperset(value):
        return f"other keys than {', '.join(sorted(_ENVELOPE))} around a GraphQL request"
    kind = value["type"] if isinstance(value["type"], str) else ""
    if kind in _CARRIES:
        return bodies.misfit(term, bodies.Document(size=0, value=value.get("payload")))
    if kind in _BARE:  # servers take credentials from connection_init's
        return "a payload beside a type that carries no request" if value.get("payload") else ""
    return "a type that no protocol of GraphQL over WebSocket has for clients"
