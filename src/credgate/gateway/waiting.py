"""Bodies that are read before they are judged: bounded by the rule for each, and for all of one run together."""

from dataclasses import dataclass

from credgate.gateway.exchange import ClientState, Exchange
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Deny

MAX_RUN = 64 << 20  # bytes
_MESSAGE = "The body is not what the rule allows."


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWanted:
    """The verdict on a head: it may go on once its body was read, at most `max` bytes, and judged with it."""

    max: int


def refused(why: str) -> Deny:
    """The refusal of a body that a rule can't be held against."""
    return Deny(reason=Reason.BODY_REFUSED, message=_MESSAGE, hint=f"a body that the rule takes; this one: {why}")


def ask(exchange: Exchange, limit: int, request: Request) -> BodyWanted | Deny:
    """Ask for the body of a request whose head was judged; content-length alone may say that it is too long."""
    exchange.body_max = limit
    lengths = (value for name, value in request.headers if name.lower() == b"content-length")
    if any(int(value) > limit for value in lengths):
        return refused(f"over max = {limit} bytes")
    return BodyWanted(max=limit)


def hold(state: ClientState, exchange: Exchange, size: int) -> Deny | None:
    """Count bytes that are about to be kept; Deny: they must not be."""
    if exchange.held + size > exchange.body_max:
        return refused(f"over max = {exchange.body_max} bytes")
    if state.run.held + size > MAX_RUN:
        return refused(f"more than {MAX_RUN >> 20} MiB of this run's bodies wait to be judged")
    exchange.held += size
    state.held += size
    state.run.held += size
    return None


def keep(state: ClientState, exchange: Exchange, size: int) -> str:
    """Of a WebSocket's message that is not whole `size` bytes are kept. A text: they must not be."""
    more = size - exchange.held
    if state.run.held + more > MAX_RUN:
        return f"more than {MAX_RUN >> 20} MiB of this run's bodies wait to be judged"
    exchange.held += more
    state.held += more
    state.run.held += more
    return ""


def let_go(state: ClientState, exchange: Exchange) -> None:
    """An exchange is over, and its body forgotten."""
    state.held -= exchange.held
    state.run.held -= exchange.held
    exchange.held = 0


def let_all_go(state: ClientState) -> None:
    """A client connection is over, with all of its exchanges."""
    state.run.held -= state.held
    state.held = 0
