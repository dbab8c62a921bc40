"""What the gateway asks of the host: the addresses of a policy's host name, and the host's own addresses."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

type Address = IPv4Address | IPv6Address

# Threads of their own: a server that is silent holds one for seconds, and the loop's default ones start the runs.
_LOOKUPS = ThreadPoolExecutor(max_workers=32, thread_name_prefix="look-up")

FIB_TRIE = Path("/proc/net/fib_trie")
IF_INET6 = Path("/proc/net/if_inet6")


async def resolve(name: str, over: Callable[[], None]) -> tuple[Address, ...]:
    """Every address of `name`, by the host's resolver, in its order. Raises OSError where there is none.

    `over` is called on the loop when the thread is free again, which may be after this was cancelled. UnicodeError is
    what getaddrinfo raises for a label over 63 bytes (measured), not gaierror.
    """
    loop = asyncio.get_running_loop()
    ask = functools.partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)  # noqa: TID251 - the one place
    asked = _LOOKUPS.submit(ask)
    asked.add_done_callback(lambda _: _call_on(loop, over))
    try:
        found = await asyncio.wrap_future(asked)
    except UnicodeError as error:
        raise OSError(f"not a name that can be looked up: {error}") from None
    return tuple(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
        loop.call_soon_threadsafe(call)


def own() -> frozenset[Address]:
    """Addresses of every local interface, asked of the kernel at each dial: they change under a running daemon.

    By /proc and not by netlink: the library's socket wants a loop of its own, and this is called on ours.
    """
    ipv6 = IF_INET6.read_text() if IF_INET6.exists() else ""  # absent where the kernel has no IPv6
    return local_ipv4(FIB_TRIE.read_text()) | local_ipv6(ipv6)


def local_ipv4(fib_trie: str) -> frozenset[Address]:
    """The leaves marked `/32 host LOCAL`: an address line, then what is known of it."""
    found: set[Address] = set()
    address = ""
    for line in fib_trie.splitlines():
        text = line.strip()
        if text.startswith("|-- "):
            address = text[4:]
        elif text.startswith("/32 host LOCAL") and address:
            found.add(ip_address(address))
    return frozenset(found)


def local_ipv6(if_inet6: str) -> frozenset[Address]:
    """First column: 32 hex digits, one line an address."""
    return frozenset(IPv6Address(int(line.split()[0], 16)) for line in if_inet6.splitlines() if line.strip())
