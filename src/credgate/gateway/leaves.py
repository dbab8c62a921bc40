"""Which leaf a client is shown: for the name that it asks for, listed or not, so that a refusal is spoken inside.

What decides it beside the name is the tunnel, and whether the policy lists the endpoint; policy and role are compared
by identity, as each is replaced and never changed. The leaf itself is the authority's to keep, and to renew.
"""

import ssl
from collections import OrderedDict

from credgate.ca import Authority
from credgate.gateway.exchange import ClientState
from rules.decide import endpoint_for
from rules.hosts import HostError, normalize_host

MOST = 64  # names of one listener
LONGEST = 253  # characters of one: RFC 1035 has none that is longer, and a jail could send any

_FALLBACK_NAME = "unnamed.invalid"

type _Asked = tuple[str | None, bytes, int]
type _Shown = tuple[str, tuple[str, ...]]


class Leaves:
    """Of one listener. Not thread-safe: it lives on the daemon's loop."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._given: tuple[object, object] = (None, None)
        self._shown: OrderedDict[_Asked, _Shown] = OrderedDict()

    def context(self, state: ClientState, sni: str | None) -> ssl.SSLContext:
        """The leaf's. Raises ValueError for a name that can't stand in one."""
        run, asked = state.run, (sni, state.connect_host, state.port)
        policy, role = self._given
        if policy is not run.policy or role is not run.role:
            self._given = (run.policy, run.role)
            self._shown.clear()
        shown = self._shown.get(asked)
        if shown is None:
            shown = _shown(state, sni)
            if max(len(sni or ""), len(state.connect_host)) <= LONGEST:
                self._shown[asked] = shown
            if len(self._shown) > MOST:
                self._shown.popitem(last=False)
        return self._authority.context_for(*shown)


def _shown(state: ClientState, sni: str | None) -> _Shown:
    """The name, and the protocols that are spoken."""
    host = (sni or state.connect_host.decode("ascii", "replace").strip("[]") or state.run.gateway_ip).lower()
    try:
        name = normalize_host(host.encode("ascii"))
    except (HostError, UnicodeEncodeError):
        name = _FALLBACK_NAME
    if not isinstance(name, str):
        return str(name.address), ("http/1.1",)
    endpoint = endpoint_for(state.run.policy, state.run.role, name, state.port, tls=True)
    return name, ("http/1.1",) if endpoint is None else endpoint.alpn
