"""TLS towards the jail of one run: the name that the client asks for chooses the leaf.

One context a run stands in front of the leaves', and what a handshake may be resumed from is that one's: no session of
one run is good in another. Which names there are, and what may be asked under them, a session says nothing about.
"""

import ssl
from collections.abc import Callable
from functools import partial

from credgate.ca import server_context

type Choose = Callable[[str | None], ssl.SSLContext]

# What OpenSSL refuses of a ClientHello that it could read, before it asks for the name.
_READ = frozenset({"UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_SHARED_CIPHER", "INAPPROPRIATE_FALLBACK"})


class Hello(ssl.SSLObject):
    """One handshake. `asked` once the ClientHello was read; `fault` where no leaf could be chosen."""

    choose: Choose
    asked = False
    name: str | None = None
    fault: Exception | None = None

    def forget(self) -> None:
        """The connection has ended: no more leaf is chosen."""
        self.choose = _none


class Front:
    """Begins handshakes. Not thread-safe: it lives on the daemon's loop."""

    def __init__(self) -> None:
        self._context = server_context()
        self._context.num_tickets = 1  # two are OpenSSL's default, for clients that resume twice at once
        self._context.sslobject_class = Hello
        self._context.sni_callback = _chosen

    def handshake(self, choose: Choose) -> Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]:
        """What makes the server's side of one connection. `choose` is called with the name; None: there is none."""
        return partial(self._begin, choose)

    def _begin(self, choose: Choose, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        made = self._context.wrap_bio(incoming, outgoing, server_side=True)
        if not isinstance(made, Hello):
            raise TypeError("not a handshake of ours")
        made.choose = choose
        return made


def _none(_name: str | None) -> ssl.SSLContext:
    raise ssl.SSLError("a handshake behind the connection's end")


def _chosen(made: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
    """OpenSSL asks for the certificate. An exception in here would be printed, and mean nothing else."""
    if not isinstance(made, Hello):
        return int(ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR)
    made.asked, made.name = True, name
    try:
        made.context = made.choose(name)
    except Exception as error:  # noqa: BLE001 - the outermost frame of a hook of OpenSSL's: it ends the handshake
        made.fault = error
        return int(ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR)
    return None


def unread(made: ssl.SSLObject | None, error: ssl.SSLError) -> bool:
    """Whether what came was no ClientHello at all."""
    return isinstance(made, Hello) and not made.asked and error.reason not in _READ
