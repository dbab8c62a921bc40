"""Which addresses a request may be sent to, and the connection to one of them. The only place that dials."""

import asyncio
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from operator import is_

from credgate.errors import CredgateError
from credgate.gateway.exchange import Target
from credgate.gateway.pins import RECENT, Pins
from credgate.gateway.proxied import ProxyRefused, instant, open_tunnel, tls_of
from credgate.gateway.refusal import deny
from credgate.gateway.targettls import Stamp, stamp
from credgate.secretvalue import Secret
from rules.addresses import AddressClass, closed, unmap
from rules.policy import Address, CorporateProxy, Endpoint
from rules.reasons import Reason
from rules.verdict import Deny

_MAX_TRIES = 4  # addresses of one name; all of them within one connect time-out
_MAX_PINNED = 1024  # targets with pins that are remembered

type OwnAddresses = Callable[[], frozenset[Address]]
type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
type _Pinned = tuple[Endpoint, frozenset[Address], frozenset[Address], Target | Deny]
type Asked = Callable[[str], None]  # is told when a proxy is asked for a tunnel: its log has a line of it then


class DialError(Exception):
    """No connection; `reason` is the ledger's, `detail` what more can be said."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialler:
    """`listeners` are the gateway's own addresses, closed for all. `bundle`: CA certificates for TLS with a proxy."""

    pins: Pins
    own_addresses: OwnAddresses
    listeners: OwnAddresses
    resolve_timeout: float
    connect_timeout: float
    bundle: str = ""
    _contexts: dict[CorporateProxy, tuple[Stamp, ssl.SSLContext]] = field(default_factory=dict, repr=False)
    _pinned: OrderedDict[tuple[str, int], _Pinned] = field(default_factory=OrderedDict, repr=False)

    async def target(
        self, endpoint: Endpoint, host: str, slots: asyncio.Semaphore, secret: Secret | None = None
    ) -> Target | Deny:
        """Judge every address of a host: one that is closed refuses the whole answer, or its owner could rebind.

        Behind a corporate proxy it is the proxy's address that is judged, and `secret` is the proxy's. `slots` bound
        the look-ups of the run that asks.
        """
        place: Endpoint | CorporateProxy = endpoint.proxy or endpoint
        if place.pins:
            return self._at_pins(endpoint, host, place, secret)
        name = endpoint.proxy.host if endpoint.proxy is not None else host
        found = await self._look_up(name, slots)
        if isinstance(found, Deny):
            return found
        return self._taken(endpoint, host, place, found, secret)

    def at_once(self, endpoint: Endpoint, host: str) -> Target | None:
        """As target, from what is known by now, and nothing else is known after it. None: ask `target`."""
        if endpoint.proxy is not None:
            return None
        if endpoint.pins:
            target = self._at_pins(endpoint, host, endpoint, None)
        else:
            found = self.pins.known(host)
            target = self._taken(endpoint, host, endpoint, found, None) if found else deny(Reason.RESOLVE_FAILED)
        return target if isinstance(target, Target) else None

    def _taken(
        self,
        endpoint: Endpoint,
        host: str,
        place: Endpoint | CorporateProxy,
        found: tuple[Address, ...],
        secret: Secret | None,
    ) -> Target | Deny:
        """Judge an answer of the resolver's, and take it where it is good."""
        target = self._judged(endpoint, host, place, found, secret)
        if isinstance(target, Deny):
            return target
        name = host if isinstance(place, Endpoint) else place.host
        note = self.pins.take(name, found)
        older = tuple(a for a in self.pins.recent(name) if a not in found and self._closed(a, place) is None)
        return Target(
            host=host,
            endpoint=endpoint,
            addresses=(*target.addresses, *map(unmap, older))[:_MAX_TRIES],
            note=note,
            secret=secret,
            judged=target.judged,
        )

    async def fresh(self, target: Target, slots: asyncio.Semaphore) -> Target:
        """The target as it may be dialled now: a request that was to go on an open connection has the addresses of
        that one, judged hours ago maybe, and the connection may have ended meanwhile. Raises DialError.
        """
        place: Endpoint | CorporateProxy = target.endpoint.proxy or target.endpoint
        if place.pins or self.pins.now() - target.judged < RECENT:
            return target
        found = await self.target(target.endpoint, target.host, slots, target.secret)
        if isinstance(found, Deny):
            raise DialError(found.reason, found.hint)
        return replace(found, client=target.client)

    def _at_pins(
        self, endpoint: Endpoint, host: str, place: Endpoint | CorporateProxy, secret: Secret | None
    ) -> Target | Deny:
        """The same as long as nothing is other that decides it: endpoint, addresses of this machine and the gateway."""
        if secret is not None:
            return self._judged(endpoint, host, place, place.pins, secret)
        key, now = (host, id(endpoint)), (endpoint, self.own_addresses(), self.listeners())
        known = self._pinned.get(key)
        if known is None or not all(map(is_, known[:3], now)):
            known = self._pinned[key] = (*now, self._judged(endpoint, host, place, place.pins, None))
            if len(self._pinned) > _MAX_PINNED:
                self._pinned.popitem(last=False)
        return known[3]

    def _judged(
        self,
        endpoint: Endpoint,
        host: str,
        place: Endpoint | CorporateProxy,
        found: tuple[Address, ...],
        secret: Secret | None,
    ) -> Target | Deny:
        addresses = tuple(unmap(address) for address in found)
        if not addresses:
            return deny(Reason.RESOLVE_FAILED)
        for address in addresses:
            kind = self._closed(address, place)
            if kind is not None:
                return deny(Reason.METADATA if kind is AddressClass.METADATA else Reason.ADDRESS_BLOCKED)
        addresses = addresses[:_MAX_TRIES]
        return Target(host=host, endpoint=endpoint, addresses=addresses, secret=secret, judged=self.pins.now())

    def _closed(self, address: Address, place: Endpoint | CorporateProxy) -> AddressClass | None:
        own, listeners = self.own_addresses(), self.listeners()
        return closed(unmap(address), networks=place.networks, pins=place.pins, own=own, listeners=listeners)

    async def _look_up(self, host: str, slots: asyncio.Semaphore) -> tuple[Address, ...] | Deny:
        try:
            async with asyncio.timeout(self.resolve_timeout):
                return await self.pins.look_up(host, slots)
        except (OSError, UnicodeError):  # TimeoutError is an OSError; idna raises the other one (tried)
            return deny(Reason.RESOLVE_FAILED)

    async def connect(self, target: Target, asked: Asked) -> Streams:
        """As reach, always as streams, which know their peer. Raises DialError."""
        found = await self.reach(target, asked)
        streams = found if isinstance(found, tuple) else await _streams(found)
        if streams[1].get_extra_info("peername") is None:  # as in Link: it was reset since, there is nothing to send on
            streams[1].transport.abort()
            raise DialError(Reason.UPSTREAM_RESET)
        return streams

    async def reach(self, target: Target, asked: Asked) -> socket.socket | Streams:
        """Open a TCP connection to one of the judged addresses, which is a socket that doesn't block; or the tunnel
        through a proxy. Raises DialError.
        """
        try:
            async with asyncio.timeout(self.connect_timeout):
                for address in target.addresses[:-1]:
                    try:
                        return await self._one(address, target, asked)
                    except ConnectionError:
                        continue
                return await self._one(target.addresses[-1], target, asked)
        except TimeoutError as error:
            raise DialError(Reason.UPSTREAM_TIMEOUT) from error
        except ssl.SSLError as error:
            raise DialError(Reason.UPSTREAM_TLS, "the proxy's certificate") from error
        except ProxyRefused as error:
            raise DialError(Reason.UPSTREAM_UNREACHABLE, str(error)) from error
        except OSError as error:
            raise DialError(Reason.UPSTREAM_UNREACHABLE) from error
        except CredgateError as error:
            raise DialError(Reason.UPSTREAM_TLS, error.detail) from error

    async def _one(self, address: Address, target: Target, asked: Asked) -> socket.socket | Streams:
        proxy = target.endpoint.proxy
        if proxy is None:
            return await _open(address, target.endpoint.dial_port)
        context = self._context(proxy) if proxy.tls else None
        streams = await _streams(await _open(address, proxy.port), context, proxy.host)
        try:
            asked(instant())
            await open_tunnel(streams, proxy, (target.host, target.endpoint.dial_port), target.secret)
        except BaseException:
            streams[1].transport.abort()
            raise
        return streams

    def _context(self, proxy: CorporateProxy) -> ssl.SSLContext:
        now = stamp(proxy.ca)
        known = self._contexts.get(proxy)
        if known is None or known[0] != now:
            known = self._contexts[proxy] = (now, tls_of(proxy, self.bundle))
        return known[1]


async def _open(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # 44 ms a request without (measured)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _streams(sock: socket.socket, context: ssl.SSLContext | None = None, name: str = "") -> Streams:
    try:
        if context is None:
            return await asyncio.open_connection(sock=sock)
        return await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
    except BaseException:
        sock.close()
        raise
