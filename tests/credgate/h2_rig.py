"""HTTP/2 for the gateway's rig: a target and a client that send what they are told, valid or not."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions

type Fields = list[tuple[bytes, bytes]]

_RAW = {
    "header_encoding": False,
    "validate_outbound_headers": False,
    "normalize_outbound_headers": False,
    "validate_inbound_headers": False,
    "normalize_inbound_headers": False,
}


@dataclass
class H2Request:
    fields: Fields
    size: int = 0
    body: bytes = b""
    trailers: Fields = field(default_factory=list)

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


@dataclass
class H2Reply:
    """What a target says: `pieces` are a DATA frame each, empty ones too."""

    fields: Fields
    pieces: list[bytes] = field(default_factory=list)
    trailers: Fields = field(default_factory=list)
    interim: Fields = field(default_factory=list)


class H2Session:
    """One connection at a target: answers each request with "ok SIZE". `pace` delays the reading of bodies."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        pace: float = 0.0,
        answer_size: int = 0,
        reply: Callable[[H2Request], H2Reply] | None = None,
    ) -> None:
        self._reply = reply
        self._reader, self._writer, self._pace, self._size = reader, writer, pace, answer_size
        self._conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, **_RAW))
        self._open: dict[int, H2Request] = {}
        self.seen: list[H2Request] = []

    async def run(self) -> None:
        self._conn.initiate_connection()
        self._writer.write(self._conn.data_to_send())
        while data := await self._reader.read(65536):
            for event in self._conn.receive_data(data):
                with contextlib.suppress(h2.exceptions.ProtocolError):  # reset, and forgotten, while we answer
                    await self._handle(event)
            self._writer.write(self._conn.data_to_send())
            await self._writer.drain()
            await asyncio.sleep(self._pace)

    async def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._open[event.stream_id] = H2Request(list(event.headers))
            self.seen.append(self._open[event.stream_id])
        elif isinstance(event, h2.events.DataReceived):
            self._open[event.stream_id].size += len(event.data)
            if len(self._open[event.stream_id].body) < 1 << 16:  # the whole of a large one would be copied each time
                self._open[event.stream_id].body += event.data
            self._conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            self._open[event.stream_id].trailers = list(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            request = self._open.pop(event.stream_id)
            body = b"ok %d" % request.size
            if self._reply is not None:
                await self._say(event.stream_id, self._reply(request))
                return
            if self._size:
                await self._large(event.stream_id)
                return
            fields = [(b":status", b"200"), (b"x-request-id", b"target-2"), (b"content-length", b"%d" % len(body))]
            head = request.values(b":method") == [b"HEAD"]
            self._conn.send_headers(event.stream_id, fields, end_stream=head)
            if not head:
                self._conn.send_data(event.stream_id, body, end_stream=True)

    async def _say(self, stream: int, reply: H2Reply) -> None:
        if reply.interim:
            self._conn.send_headers(stream, reply.interim)
        self._conn.send_headers(stream, reply.fields, end_stream=not (reply.pieces or reply.trailers))
        for n, piece in enumerate(reply.pieces):
            last = n == len(reply.pieces) - 1 and not reply.trailers
            for at in range(0, len(piece) or 1, 16384):
                part = piece[at : at + 16384]
                while len(part) > self._conn.local_flow_control_window(stream):
                    self._conn.receive_data(await self._reader.read(65536))
                self._conn.send_data(stream, part, end_stream=last and at + 16384 >= len(piece))
                self._writer.write(self._conn.data_to_send())
                await self._writer.drain()
        if reply.trailers:
            self._conn.send_headers(stream, reply.trailers, end_stream=True)

    async def _large(self, stream: int) -> None:
        """Send `answer_size` bytes as the peer's windows and the socket take them."""
        self._conn.send_headers(stream, [(b":status", b"200"), (b"content-length", b"%d" % self._size)])
        left = self._size
        while left:
            room = min(self._conn.local_flow_control_window(stream), self._conn.max_outbound_frame_size, left)
            if room:
                self._conn.send_data(stream, bytes(room), end_stream=room == left)
                left -= room
            else:
                self._conn.receive_data(await self._reader.read(65536))
            self._writer.write(self._conn.data_to_send())
            await self._writer.drain()


@dataclass
class H2Answer:
    """`status` 0: the stream or the connection was reset."""

    status: int
    fields: dict[bytes, bytes]
    body: bytes


class H2Client:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, **_RAW))
        self.conn.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.conn.data_to_send())

    async def ask(self, fields: Fields, body: bytes = b"") -> H2Answer:
        stream = self.conn.get_next_available_stream_id()
        self.conn.send_headers(stream, fields, end_stream=not body)
        if body:
            self.conn.send_data(stream, body, end_stream=True)
        self.flush()
        return await self.answer(stream)

    async def answer(self, stream: int) -> H2Answer:
        status, found, got = 0, {}, b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            async with asyncio.timeout(60):
                while data := await self.reader.read(65536):
                    for event in self.conn.receive_data(data):
                        if isinstance(event, h2.events.ConnectionTerminated):
                            return H2Answer(0, {}, b"")
                        if getattr(event, "stream_id", None) != stream:
                            continue
                        if isinstance(event, h2.events.ResponseReceived):
                            found = dict(event.headers)
                            status = int(found[b":status"])
                        elif isinstance(event, h2.events.TrailersReceived):
                            found |= dict(event.headers)
                        elif isinstance(event, h2.events.DataReceived):
                            got += event.data
                            self.conn.acknowledge_received_data(event.flow_controlled_length, stream)
                        elif isinstance(event, h2.events.StreamReset):
                            return H2Answer(0, found, got)
                        elif isinstance(event, h2.events.StreamEnded):
                            self.flush()
                            return H2Answer(status, found, got)
                    self.flush()
        return H2Answer(0, found, got)
