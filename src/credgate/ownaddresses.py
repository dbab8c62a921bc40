"""What the gateway asks of the host: the addresses of a policy's host name, and the host's own addresses."""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from pyroute2 import IPRoute

type Address = IPv4Address | IPv6Address


async def resolve(name: str) -> tuple[Address, ...]:
    """Every address of `name`, by the host's resolver, in its order. Raises OSError where there is none.

    UnicodeError is what getaddrinfo raises for a label over 63 bytes (measured), not gaierror.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a name that can be looked up: {error}") from None
    return tuple(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


def own() -> frozenset[Address]:
    """Addresses of every local interface, asked of the kernel each time: they change under a running daemon."""
    with IPRoute() as route:
        messages = list(route.get_addr())
    texts = [m.get_attr("IFA_LOCAL") or m.get_attr("IFA_ADDRESS") for m in messages]
    return frozenset(ip_address(text) for text in texts if text)
