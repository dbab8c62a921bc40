"""CONNECT lines that were taken, by their bytes: a client says the same one for each of its connections.

Whether one is taken follows from its bytes, the policy and the role, and from nothing else (`rules.decide_connect`);
those two are compared by identity, as each is replaced and never changed. Kept are only lines that came whole, with
their headers and nothing behind them, and were the first bytes of their connection.
"""

from collections import OrderedDict

from credgate.gateway.exchange import ClientState

MOST = 64  # lines of one listener
LONGEST = 1024  # bytes of one, with its headers
_END = b"\r\n\r\n"

type _Given = tuple[object, object]
type _Place = tuple[bytes, int]


class Connects:
    """Of one listener. Not thread-safe: it lives on the daemon's loop."""

    def __init__(self) -> None:
        self._given: _Given = (None, None)
        self._taken: OrderedDict[bytes, _Place] = OrderedDict()

    def find(self, state: ClientState, data: bytes) -> _Place | None:
        """Where a tunnel leads that these first bytes of a connection ask for; None: they have to be read."""
        return self._taken.get(data) if self._is_of(state) else None

    def keep(self, state: ClientState, data: bytes) -> None:
        """Remember that the first bytes of a connection, and no more, opened the tunnel that `state` has."""
        if len(data) > LONGEST or data.count(_END) != 1 or not data.endswith(_END):
            return
        if not self._is_of(state):
            self._given = (state.run.policy, state.run.role)
            self._taken.clear()
        self._taken[data] = (state.connect_host, state.connect_port)
        if len(self._taken) > MOST:
            self._taken.popitem(last=False)

    def _is_of(self, state: ClientState) -> bool:
        policy, role = self._given
        return policy is state.run.policy and role is state.run.role
