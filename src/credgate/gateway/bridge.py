"""A pipe as a pair of asyncio's streams: what mitmproxy's engine reads from and writes to. TLS stays the pipe's."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from credgate.gateway.pipe import Pipe, Streams

_INFO = ("peername", "sockname", "socket")


class _Below(asyncio.Transport):
    """What a StreamWriter writes to."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__({name: pipe.info(name) for name in _INFO})
        self._pipe = pipe

    def write(self, data: Any) -> None:
        """Send bytes."""
        self._pipe.send(bytes(data))

    def can_write_eof(self) -> bool:
        """TLS has no half that could be closed."""
        return False

    def is_closing(self) -> bool:
        """Whether it was closed, by either side."""
        return self._pipe.closing

    def close(self) -> None:
        """Send what waits, and close."""
        self._pipe.close(notify=True)

    def abort(self) -> None:
        """Close at once."""
        self._pipe.reset()

    def pause_reading(self) -> None:
        """Read nothing for now."""
        self._pipe.pause(True)

    def resume_reading(self) -> None:
        """Go on reading."""
        self._pipe.pause(False)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return self._pipe.unsent


class StreamsEnd:
    """The end of a pipe that hands everything to streams. `over` is called once the socket is closed."""

    def __init__(self, pipe: Pipe, over: Callable[[], None]) -> None:
        self._over = over
        self._reader = asyncio.StreamReader()
        self._protocol = asyncio.StreamReaderProtocol(self._reader)
        self._transport = _Below(pipe)
        self._protocol.connection_made(self._transport)
        pipe.end = self
        if pipe.full:
            self._protocol.pause_writing()

    def streams(self, data: bytes) -> Streams:
        """The pair; `data` came already."""
        if data:
            self._protocol.data_received(data)
        loop = asyncio.get_running_loop()
        return self._reader, asyncio.StreamWriter(self._transport, self._protocol, self._reader, loop)

    def received(self, _pipe: Pipe, data: bytes) -> None:
        """Bytes came."""
        self._protocol.data_received(data)

    def secured(self, _pipe: Pipe) -> None:
        """Not here: the handshake was done before."""

    def insecure(self, pipe: Pipe, error: ssl.SSLError) -> None:
        """Not here either."""

    def ended(self, pipe: Pipe) -> None:
        """The client sends nothing more."""
        if pipe.broken:
            self._protocol.connection_lost(ConnectionResetError())
        else:
            self._protocol.eof_received()

    def crowded(self, _pipe: Pipe, full: bool) -> None:
        """Sending is behind, or no longer so."""
        if full:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    def lost(self, pipe: Pipe) -> None:
        """The socket is closed."""
        self._protocol.connection_lost(ConnectionResetError() if pipe.broken else None)
        self._over()
