"""SHA-256 of the bodies of an exchange, where its endpoint asks for it: by it a ledger shows what several runs had.

Of a request the bytes as they go to the target, of an answer those that the client gets; without the framing of chunks.
A WebSocket and a body that broke off have none: it would be that of nothing anybody holds.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rules.reasons import Reason

if TYPE_CHECKING:
    from credgate.gateway.exchange import Exchange


@dataclass(slots=True, kw_only=True, eq=False)
class Digests:
    """Both directions, growing."""

    request: "hashlib._Hash" = field(default_factory=hashlib.sha256, repr=False)
    answer: "hashlib._Hash" = field(default_factory=hashlib.sha256, repr=False)

    def sent(self, pieces: Iterable[bytes]) -> None:
        """Bytes of the request's body went out."""
        self.request.update(b"".join(pieces))

    def received(self, pieces: Iterable[bytes]) -> None:
        """Bytes of the answer's body went to the client."""
        self.answer.update(b"".join(pieces))


def digests_of(exchange: "Exchange", reason: Reason | None) -> dict[str, str]:
    """The fields of an outcome: of bodies that are not empty and went whole."""
    found = exchange.digests
    if found is None or reason is not None or exchange.client_gone or exchange.status == 101:
        return {}
    return {
        "req_sha256": found.request.hexdigest() if exchange.req_bytes else "",
        "resp_sha256": found.answer.hexdigest() if exchange.resp_bytes else "",
    }
