"""What the connections of one listener begin with, so that a new one finds the beaten track where the last one left it.

A head counts as the same one on another connection where its bytes are the same, and all else that is in the Wire made
of it (`Lane._wire`): the tunnel, whether there is TLS, and its name. Whether the request may go is asked as ever.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credgate.gateway.beaten import Asked, Track
    from credgate.gateway.client import Client

MOST = 64  # heads of one listener
LONGEST = 4 << 10  # bytes of one

type Way = tuple[bytes, bytes, int, str | None, bool]


class Ways:
    """Of one listener. Not thread-safe: it lives on the daemon's loop. `track` is the last one of any connection."""

    def __init__(self) -> None:
        self.track: Track | None = None
        self._asked: OrderedDict[Way, Asked] = OrderedDict()

    def find(self, client: "Client", raw: bytes) -> "Asked | None":
        """What was made of this head on a connection that began as this one does."""
        return self._asked.get(_way(client, raw))

    def keep(self, client: "Client", asked: "Asked") -> None:
        """Remember a head, where another connection could begin with it."""
        if len(asked.raw) > LONGEST or not asked.is_plain:
            return
        self._asked[_way(client, asked.raw)] = asked
        if len(self._asked) > MOST:
            self._asked.popitem(last=False)


def _way(client: "Client", raw: bytes) -> Way:
    state = client.state
    return (raw, state.connect_host, state.connect_port, client.sni, client.pipe.secure)
