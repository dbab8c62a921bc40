"""What follows from an answer's head, kept for the next answer that has the very same bytes for a head.

It hangs on the request as it was sent (`prepared.Sent`): the same request, allowed by the same rule, with the same
secrets in it. What else decides it, the policy and the table of what is searched for, is compared by identity; neither
changes in place. Kept is only a head in which nothing was found, whose answer has an end of its own.
"""

import msgspec

from credgate.gateway.exchange import Exchange
from credgate.gateway.framing import Chunked, Counted
from rules.policy import Policy
from rules.scrub import Table

MOST = 4 << 10  # bytes of a head
UNAUTHORIZED = 401  # has a credential doubted, each time


class Again(msgspec.Struct, eq=False, frozen=True, kw_only=True):
    """One head. `lines` is what the client gets of it, but for the last line end."""

    raw: bytes  # with its empty line
    policy: Policy
    table: Table | None  # None: the answer is not searched
    status: int
    ids: dict[str, str]  # never changed
    length: int | None  # of the body; None: it is in chunks
    chunked: bool  # so are the client's
    keep: bool  # the target keeps its connection
    idle: float  # seconds for which it says so
    lines: bytes

    def body(self) -> Counted | Chunked:
        """The body that follows, of which nothing was read."""
        return Chunked() if self.length is None else Counted(self.length)


def known(exchange: Exchange, data: bytes, policy: Policy) -> Again | None:
    """What is known of the head that the data begin with."""
    again = None if exchange.sent is None else exchange.sent.again
    if again is None or again.policy is not policy or not data.startswith(again.raw):
        return None
    return again


def is_steady(exchange: Exchange, raw: bytes) -> bool:
    """Whether everything about this head would be the same the next time."""
    cleaning = exchange.cleaning
    plain = cleaning is None or not (cleaning.decodes or exchange.scrubbed)
    return plain and len(raw) <= MOST and exchange.status != UNAUTHORIZED
