"""What the gateway asks of the host: the addresses of a policy's host name, and the host's own addresses."""

import asyncio
import contextlib
import functools
import logging
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

# rtnetlink(7), linux/rtnetlink.h: links, addresses, and routes, whose messages come once the local table has them
_CHANGES = 0x1 | 0x10 | 0x40 | 0x100 | 0x400
_ROOM = 8 << 10  # bytes of messages that wait; what is beyond is lost, which is said, and a change like any other
_MOST = 64  # messages that are taken away at once

log = logging.getLogger(__name__)


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


class Own:
    """As own(), and read again only once the kernel has said that something changed. For one thread.

    It says so within the very call that makes a change, and is asked at each call of ours. Where it can't be asked,
    each one reads.
    """

    def __init__(self, read: "Callable[[], frozenset[Address]] | None" = None) -> None:
        """`read`: own, where it is none."""
        self._read = read or own
        self._known: frozenset[Address] | None = None
        self._changes: socket.socket | None = None
        try:
            self._changes = _subscribed()
        except OSError as error:
            log.warning("addresses of this machine are read at each dial: %s", error.strerror)

    def __call__(self) -> frozenset[Address]:
        """Addresses of every local interface."""
        said = None if self._changes is None else _said(self._changes)
        if self._known is not None and said == 0:
            return self._known
        found = self._read()
        self._known = None if said is None else found
        return found


def _subscribed() -> socket.socket:
    changes = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    try:
        changes.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
        changes.bind((0, _CHANGES))
    except OSError:
        changes.close()
        raise
    return changes


def _said(changes: socket.socket) -> int | None:
    """Take away what the kernel said; how many messages, None where there are more."""
    for taken in range(_MOST):
        try:
            changes.recv(1)
        except BlockingIOError:
            return taken
        except OSError:  # ENOBUFS: some were lost
            continue
    return None


def own() -> frozenset[Address]:
    """Addresses of every local interface, asked of the kernel: they change under a running daemon."""
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
