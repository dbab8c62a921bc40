"""Which addresses a request may be sent to, and the connection to one of them. The only place that dials."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv6Address

from credgate.gateway.exchange import Target
from credgate.gateway.refusal import deny
from rules.addresses import AddressClass, closed, unmap
from rules.policy import Address, Endpoint
from rules.reasons import Reason
from rules.verdict import Deny

_MAX_TRIES = 4  # addresses of one name; all of them within one connect time-out

type Resolve = Callable[[str], Awaitable[tuple[Address, ...]]]
type OwnAddresses = Callable[[], frozenset[Address]]
type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class DialError(Exception):
    """No connection; `reason` is the ledger's."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialler:
    """`resolve` raises OSError where it finds nothing; `listeners` are the gateway's own addresses, closed for all."""

    resolve: Resolve
    own_addresses: OwnAddresses
    listeners: OwnAddresses
    resolve_timeout: float
    connect_timeout: float

    async def target(self, endpoint: Endpoint, host: str) -> Target | Deny:
        """Judge every address of a host: one that is closed refuses the whole answer, or its owner could rebind."""
        found = endpoint.pins or await self._look_up(host)
        if isinstance(found, Deny):
            return found
        addresses = tuple(unmap(address) for address in found)
        if not addresses:
            return deny(Reason.RESOLVE_FAILED)
        own, listeners = self.own_addresses(), self.listeners()
        for address in addresses:
            kind = closed(address, networks=endpoint.networks, pins=endpoint.pins, own=own, listeners=listeners)
            if kind is not None:
                return deny(Reason.METADATA if kind is AddressClass.METADATA else Reason.ADDRESS_BLOCKED)
        return Target(host=host, endpoint=endpoint, addresses=addresses[:_MAX_TRIES])

    async def _look_up(self, host: str) -> tuple[Address, ...] | Deny:
        try:
            async with asyncio.timeout(self.resolve_timeout):
                return await self.resolve(host)
        except (OSError, UnicodeError):  # TimeoutError is an OSError; idna raises the other one (tried)
            return deny(Reason.RESOLVE_FAILED)

    async def connect(self, target: Target) -> Streams:
        """Open a TCP connection to one of the judged addresses. Raises DialError."""
        try:
            async with asyncio.timeout(self.connect_timeout):
                for address in target.addresses[:-1]:
                    try:
                        return await _open(address, target.endpoint.dial_port)
                    except ConnectionError:
                        continue
                return await _open(target.addresses[-1], target.endpoint.dial_port)
        except TimeoutError as error:
            raise DialError(Reason.UPSTREAM_TIMEOUT) from error
        except OSError as error:
            raise DialError(Reason.UPSTREAM_UNREACHABLE) from error


async def _open(address: Address, port: int) -> Streams:
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    # proto by name: asyncio sets TCP_NODELAY only where it sees IPPROTO_TCP (44 ms a request without, tried)
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        return await asyncio.open_connection(sock=sock)
    except BaseException:
        sock.close()
        raise
