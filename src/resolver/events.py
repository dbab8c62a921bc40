"""What the resolver tells the daemon, and a way that can't grow: before a slow reader records become counts."""

import asyncio
import json
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from resolver.errors import ResolverError

MAX_MESSAGE = 1 << 17  # bytes of a control message; a packet is taken whole, and the default send buffer is 208 KiB
MAX_NAME_TEXT = 300  # characters; a name of 255 bytes whose alphabet needs no escape is shorter
_MAX_REPLIES = 1024  # a daemon that asks this often without reading an answer is broken


class Code(StrEnum):
    """Codes of records. Stable: they stand in the ledger."""

    ALLOW = "dns.allow"
    OTHERTYPE = "dns.othertype"  # a listed name, a type that never has an answer here
    DENY = "dns.deny"
    DENY_METADATA = "dns.deny.metadata"
    DENY_WILDCARD = "dns.deny.wildcard"  # too many names below the policy's wildcards: an alarm
    DENY_REVOKED = "dns.deny.revoked"
    MALFORMED = "dns.malformed"
    FLOOD = "dns.flood"  # an alarm: from here on denials are counted
    ERROR = "dns.error"  # an alarm: our own fault, SERVFAIL was answered
    SUFFIX = "dns.suffix"  # a listed name with a search suffix behind it: counted, no record
    UNSENT = "dns.unsent"  # an answer that the kernel didn't take: counted, no record
    TCP_ENDED = "dns.tcp_ended"  # a connection that timed out or was cut: counted, no record
    TOTAL = "dns.total"  # at the end of a run: `detail` is the code that was counted


ALARMS = frozenset({Code.DENY_WILDCARD, Code.FLOOD, Code.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record. `name` lower case without the root's dot; empty where the bytes were no name or many are counted."""

    run: str
    code: Code
    name: str = ""
    qtype: str = ""
    detail: str = ""
    count: int = 1

    def to_json(self) -> dict[str, object]:
        """The message that the daemon reads."""
        return {
            "event": "dns",
            "run": self.run,
            "code": self.code.value,
            "name": self.name,
            "qtype": self.qtype,
            "detail": self.detail,
            "count": self.count,
            "alarm": self.code in ALARMS,
        }


def spell(labels: tuple[bytes, ...]) -> str:
    """A name for a record; "." for the root. Bytes outside printable ASCII are escaped, the length is capped."""
    text = b".".join(labels).decode("ascii", "backslashreplace") or "."
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)[:MAX_NAME_TEXT]


class Outbox:
    """The sending side of the control socket. Replies wait in order; events that don't fit are counted by run and code.

    Memory: one counter for each code of a run that is known, whatever the jail asks.
    """

    def __init__(self, sock: socket.socket, *, gone: Callable[[], None]) -> None:
        self._sock = sock
        self._gone = gone
        self._replies: deque[bytes] = deque()
        self._held: Counter[tuple[str, Code]] = Counter()
        self._waiting = False

    def post(self, event: Event) -> None:
        """Send an event now, or count it."""
        if self._waiting or not self._send(_encode(event.to_json())):
            self._held[event.run, event.code] += event.count

    def reply(self, message: dict[str, object]) -> None:
        """Send a reply now, or as soon as the socket takes it. Raises ResolverError when nobody reads at all."""
        if len(self._replies) >= _MAX_REPLIES:
            raise ResolverError("control_unread", f"{_MAX_REPLIES} replies wait", "the daemon doesn't read")
        data = _encode(message)
        if self._waiting or not self._send(data):
            self._replies.append(data)

    def _send(self, data: bytes) -> bool:
        try:
            self._sock.send(data)
        except BlockingIOError:
            self._wait()
            return False
        except OSError:
            # The other end is closed: the daemon is dead, and so its runs are.
            self._gone()
        return True

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().add_writer(self._sock, self._flush)

    def _flush(self) -> None:
        self._waiting = False
        asyncio.get_running_loop().remove_writer(self._sock)
        while self._replies:
            if not self._send(self._replies[0]):
                return
            self._replies.popleft()
        for (run, code), count in list(self._held.items()):
            if not self._send(_encode(Event(run=run, code=code, count=count).to_json())):
                return
            del self._held[run, code]


def _encode(message: dict[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
