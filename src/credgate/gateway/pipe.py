"""One TCP connection of a client's or to a target's, in the clear or in TLS: bytes come and go, nothing of HTTP.

TLS is OpenSSL between two buffers in memory. What asyncio's streams, its TLS and pyOpenSSL's would add to a request is
more than all of this (docs/decisions/0110).
"""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

READ = 256 << 10  # bytes read from a socket at once
SHORT = 16 << 10  # bytes of a read that may take what they take
SLOW = 0.01  # seconds of the loop that a read should not take
FLUSH = 30.0  # seconds for what is still to be sent when a connection is closed
OWN = 64 << 10  # bytes that TLS itself may say behind the handshake: answers to key updates and refused renegotiations
_RECORD = 17 << 10  # bytes: more than one of TLS holds
_PLAIN_ROOM = READ + _RECORD
_NO_LINGER = struct.pack("ii", 1, 0)  # socket(7): close then discards what is queued and sends RST

# Shared by all connections: what is read is taken before anything else is. Two of them, or TLS could not be undone.
_wire = memoryview(bytearray(READ))
_plain = memoryview(bytearray(_PLAIN_ROOM))


type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
type Make = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]


class End(Protocol):
    """Who has a pipe. None of these may raise: a pipe has nobody to tell."""

    def received(self, pipe: "Pipe", data: bytes) -> None:
        """Bytes came; in TLS they are decrypted."""

    def secured(self, pipe: "Pipe") -> None:
        """The handshake is done."""

    def insecure(self, pipe: "Pipe", error: ssl.SSLError) -> None:
        """The handshake failed."""

    def ended(self, pipe: "Pipe") -> None:
        """The other side sends nothing more; `pipe.broken` where that was no proper end. Once, and not behind close."""

    def crowded(self, pipe: "Pipe", full: bool) -> None:
        """More waits to be sent than should, or no longer so."""

    def lost(self, pipe: "Pipe") -> None:
        """The socket is closed. Once."""


class _Nobody:
    """The end of a pipe that has told of its `lost`."""

    def received(self, pipe: "Pipe", data: bytes) -> None:
        pass

    def secured(self, pipe: "Pipe") -> None:
        pass

    def insecure(self, pipe: "Pipe", error: ssl.SSLError) -> None:
        pass

    def ended(self, pipe: "Pipe") -> None:
        pass

    def crowded(self, pipe: "Pipe", full: bool) -> None:
        pass

    def lost(self, pipe: "Pipe") -> None:
        pass


NOBODY: End = _Nobody()


class Pipe(asyncio.BufferedProtocol):
    """`end` may change while it lives. A pipe that was closed, by either side, tells of nothing but `lost`."""

    __slots__ = (
        "_incoming",
        "_left",
        "_made",
        "_outgoing",
        "_own",
        "_paused",
        "_ready",
        "_ticket",
        "_tls",
        "_transport",
        "broken",
        "buffer",
        "closing",
        "end",
        "ended",
        "full",
        "keeps",
        "secure",
    )

    def __init__(self, end: End) -> None:
        self.end = end
        self.secure = False  # the handshake is done
        self.ended = False  # by the other side
        self.broken = False  # and not as it should be
        self.closing = False  # by us
        self.full = False  # sending is behind
        self.keeps: object = None  # what must live as long as this does
        self._transport: asyncio.Transport
        self._made = False  # the transport is there
        self._tls: ssl.SSLObject | None = None
        self._ready: ssl.SSLObject | None = None  # not begun
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._paused = False
        self.buffer = _wire  # where to read to, at once
        self._own = 0
        self._left = False  # by a FIN, without TLS's own end before it
        self._ticket = 0  # bytes of a session ticket, which goes with the first bytes that are sent

    # -- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a socket that is connected."""
        self._transport, self._made = cast("asyncio.Transport", transport), True
        if self.closing:  # its run ended between the accept and this
            self._transport.abort()

    def adopt(self, streams: Streams) -> bytes:
        """Take over a connection that streams had; returns what came of it already."""
        reader, writer = streams
        self.keeps = streams  # a StreamWriter that is collected closes its transport
        transport = cast("asyncio.Transport", writer.transport)
        transport.set_protocol(self)
        self.connection_made(transport)
        transport.resume_reading()
        ahead, over = bytes(vars(reader)["_buffer"]), bool(vars(reader)["_eof"])
        if over:
            asyncio.get_running_loop().call_soon(self.eof_received)
        return ahead

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where to read to."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were read: nearly always one record, as a request or an answer comes. Whatever else it is, or more
        there is, `_took` and `_pump` do.
        """
        tls = self._tls
        if tls is None or nbytes >= SHORT or not self.secure or self.closing or self.ended:
            self._took(nbytes)
            return
        self._incoming.write(_wire[:nbytes])
        data, over = b"", False
        try:
            data = tls.read(nbytes)
            over = not data  # close_notify
            if len(data) == nbytes:  # a record is longer than what it holds: of this one more had come before
                data += tls.read(_RECORD) if tls.pending() else b""
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # a record that is none, or an alert
            self.broken = over = True
        if data and not self._incoming.pending and self._outgoing.pending <= self._ticket:
            self.end.received(self, data)
        else:
            self._pump(data, over)

    def _took(self, nbytes: int) -> None:
        """Take what was read. Some take long, as chunks of one byte do: then fewer are read at once for a while,
        and the other connections have their turn between.
        """
        if nbytes < SHORT:
            self._take(nbytes)
            return
        begin = time.monotonic()
        self._take(nbytes)
        took = time.monotonic() - begin
        if took > SLOW:
            self._reads(max(SHORT, len(self.buffer) // 4))
        elif len(self.buffer) < READ and took < SLOW / 4:
            self._reads(len(self.buffer) * 2)

    def _reads(self, room: int) -> None:
        self.buffer = _wire[:room]

    def _take(self, nbytes: int) -> None:
        if self.closing or self.ended:
            return
        if self._tls is None:
            self.end.received(self, bytes(_wire[:nbytes]))
            return
        self._incoming.write(_wire[:nbytes])
        self._pump()

    def eof_received(self) -> None:
        """The other side's FIN. asyncio closes the socket then, once all was sent."""
        self._left = not self.ended
        self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whichever side."""
        self.broken = self.broken or exc is not None
        self._over()
        self.closing, self._ready = True, None
        self.end.lost(self)

    def pause_writing(self) -> None:
        """The transport holds more than it should."""
        self.full = True
        self.end.crowded(self, True)

    def resume_writing(self) -> None:
        """It has room again."""
        self.full = False
        self.end.crowded(self, False)

    # -- TLS ----------------------------------------------------------------------------------------------------------

    def ready_tls(self, make: Make) -> None:
        """Have all that `start_tls` will need, where there is time for it by now."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ready = make(self._incoming, self._outgoing)

    def start_tls(self, make: Make, data: bytes = b"") -> None:
        """Begin a handshake; `data` are its first bytes, where they came already."""
        if self._ready is None:
            self.ready_tls(make)
        self._tls, self._ready = self._ready, None
        if data:
            self._incoming.write(data)
        self._pump()

    @property
    def alpn(self) -> str:
        """What the handshake agreed on, "" for nothing."""
        return (self._tls.selected_alpn_protocol() or "") if self._tls is not None else ""

    @property
    def tls(self) -> ssl.SSLObject | None:
        """TLS, where it was begun."""
        return self._tls

    def _pump(self, data: bytes = b"", over: bool = False) -> None:
        """Take what came through TLS, as far as it goes; `data` and `over` are what came of it already.

        Nothing that was decrypted stays in TLS: its next turn may be when the other side has waited for an answer.
        """
        said = self.secure and self._outgoing.pending > self._ticket
        if not self.secure and not self._shake():
            return
        first = bool(data or over or said)
        while first or (self._incoming.pending and not over and not (self.closing or self.ended)):
            first = False
            if not over:
                more, over = self._decrypted()
                data += more
            if self._outgoing.pending > self._ticket:  # a flood of them: it would wait here for who reads nothing
                self._own += self._outgoing.pending - self._ticket
                if self._own > OWN:
                    self.broken = over = True
            if data:
                self.end.received(self, data)
            data = b""
        if not self.closing and self._outgoing.pending > self._ticket:
            self.flush()
        if over:
            self._over()

    def _shake(self) -> bool:
        tls = cast("ssl.SSLObject", self._tls)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            return False
        except ssl.SSLError as error:
            self.ended = True
            self.end.insecure(self, error)
            return False
        self.secure = True
        # What is left to say goes along with what the end sends now: our Finished with a request. In TLS 1.3 a server's
        # handshake is over by now, and nobody waits for its ticket.
        if tls.server_side and tls.version() == "TLSv1.3":
            self._ticket = self._outgoing.pending
        self.end.secured(self)
        return not self.closing

    def _decrypted(self) -> tuple[bytes, bool]:
        """What whole records there are, as many as there is room for; and whether nothing more comes."""
        read, incoming, at = cast("ssl.SSLObject", self._tls).read, self._incoming, 0
        over = False
        try:
            while incoming.pending and _PLAIN_ROOM - at >= _RECORD:
                count = read(_RECORD, cast("bytearray", _plain[at:] if at else _plain))
                if not count:  # close_notify
                    over = True
                    break
                at += cast("int", count)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # a record that is none, or an alert
            self.broken = over = True
        return bytes(_plain[:at]), over

    def flush(self) -> None:
        """Send what TLS has to say of its own: the alert, where a handshake failed."""
        self._ticket = 0
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    # -- what the end asks for ----------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes, or have them wait; `crowded` tells of too many. Nothing is sent on one that was closed."""
        if self.closing:
            return
        if self._tls is None:
            self._transport.write(data)
            return
        sent = self._tls.write(data)
        while sent < len(data):
            sent += self._tls.write(memoryview(data)[sent:])
        self._ticket = 0
        self._transport.write(self._outgoing.read())

    def pause(self, stop: bool) -> None:
        """Read nothing for now, or go on."""
        if stop is self._paused or self.closing:
            return
        self._paused = stop
        if stop:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self, *, notify: bool = False) -> None:
        """Send what waits, and close. `notify`: with the proper end of TLS, where anybody is there to read it."""
        if self.closing:
            return
        if not self._made:
            self.closing = True
            return
        if notify and self.secure and self._tls is not None and not self._left:
            with suppress(ssl.SSLError):  # the other side's own end is not there yet, nor waited for
                self._tls.unwrap()
            self.flush()
        self.closing = True
        self._transport.close()
        if self.unsent:
            asyncio.get_running_loop().call_later(FLUSH, self._transport.abort)

    def reset(self) -> None:
        """End it at once by RST: a FIN would be the proper end of a body without length."""
        self.closing = True
        if not self._made:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._transport.get_write_buffer_size()

    def info(self, name: str) -> Any:
        """As asyncio.BaseTransport.get_extra_info."""
        return self._transport.get_extra_info(name)

    def _over(self) -> None:
        if self.closing or self.ended:
            return
        self.ended = True
        self.end.ended(self)
