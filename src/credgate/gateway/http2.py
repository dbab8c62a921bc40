"""The ends of HTTP/2, and how much of it waits in our memory."""

import time
from collections import deque
from collections.abc import Callable

import h2.events
from h2.errors import ErrorCodes
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import _http2 as mitm
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestHeaders,
    ResponseData,
    ResponseProtocolError,
)

from credgate.gateway.http1 import BadHead, BadHeadHook

MAX_RESETS = 100  # streams that a client may take back, if they are more than half of its streams
MAX_STREAMS = 1000  # of one run: each keeps its head, 64 KiB at most, and one connection may have a hundred
MAX_BACKLOG = 256 << 10  # bytes in one direction; mitmproxy offers windows of two GiB and queues what can't go on
MAX_UNREAD = 16 << 10  # bytes of all targets of a client that wait to be looked at

PREFACE = 24  # bytes before a client's first frame (RFC 9113 3.4)
_FRAME_HEAD = 9
_DATA, _HEADERS, _CONTINUATION = 0x0, 0x1, 0x9
_FRAMES = 64  # taken in one turn of the event loop
_SHORT = 128  # bytes of a frame that is not data: one of SETTINGS holds a setting in every six

# Frames that carry nothing (SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty ones) which a peer may send: at once, in a
# second, and one for so many bytes of bodies on either side, each of which is an answer to more than its bytes.
IDLE_BURST, IDLE_RATE, IDLE_BYTES, _IDLE_PART = 10_000, 100, 512, 2048

_RESETS, _IDLE = "more streams reset than answered", "frames without end that carry nothing"

type Commands = layer.CommandGenerator[None]


class GateHttp2Server(mitm.Http2Server):
    """Http2Server that tells of what it refuses by itself, and that nobody keeps busy with streams taken back, or with
    frames that ask for nothing.
    """

    _opened = _resets = 0

    def __init__(self, context: Context, full: Callable[[], bool], cut: "Cutter") -> None:
        """`full`: whether the run has as many streams as it may. `cut` has seen each frame before it comes here."""
        super().__init__(context)
        self._full, self._calm = full, Calm(cut)

    def _handle_event(self, event: events.Event) -> Commands:
        self._calm.saw(event)
        if isinstance(event, events.DataReceived) and self._calm.lost:
            yield from self.protocol_error(_IDLE, ErrorCodes.ENHANCE_YOUR_CALM)
            return
        yield from super()._handle_event(event)

    def handle_h2_event(self, event: h2.events.Event) -> layer.CommandGenerator[bool]:
        """Take one event; True ends the connection."""
        if isinstance(event, h2.events.RequestReceived) and self._full():
            # RFC 9113 8.7: nothing was done with it, and the client may try again
            self.h2_conn.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return False
        self._opened += isinstance(event, h2.events.RequestReceived)
        self._resets += isinstance(event, h2.events.StreamReset)
        # CVE-2023-44487: each costs us a judgement and a ledger line, and its client two frames
        if self._resets > MAX_RESETS and self._resets * 2 > self._opened:
            yield from self.protocol_error(_RESETS, ErrorCodes.ENHANCE_YOUR_CALM)
            return True
        done: bool = yield from super().handle_h2_event(event)
        return done

    def protocol_error(self, message: str, error_code: int = ErrorCodes.PROTOCOL_ERROR) -> Commands:
        """End a connection that breaks RFC 9113, or our bounds."""
        detail = message if message in (_RESETS, _IDLE) else "not well-formed HTTP/2"  # others quote bytes
        yield BadHeadHook(BadHead(self.context.client, http=True, detail=detail))
        yield from super().protocol_error(message, error_code)


class GateHttp2Client(mitm.Http2Client):
    """Http2Client that gives the others of the event loop their turn, and leaves no stream without an end.

    mitmproxy's takes all that was read at once: of a target's 16 KiB that are frames of nothing others wait 0.4 s
    (measured). And what it has not sent yet, since the target takes no more streams, it forgets when that target goes.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.unread = 0  # bytes that are here and were not looked at
        self._cut = Cutter(0)
        self._calm = Calm(self._cut)
        self._later: deque[events.DataReceived | events.ConnectionClosed] = deque()
        self._turn: commands.RequestWakeup | None = None

    def _handle_event(self, event: events.Event) -> Commands:
        self._calm.saw(event)
        if isinstance(event, events.DataReceived | events.ConnectionClosed):
            self._later.append(event)
            self.unread += _size(event)
            if self._turn is None:
                yield from self._go_on()
        elif isinstance(event, events.Wakeup) and event.command is self._turn:
            self._turn = None
            yield from self._go_on()
        else:
            yield from super()._handle_event(event)

    def forget(self) -> None:
        """Look at nothing of what is here any more: the connection is given up."""
        self.unread = 0
        self._later.clear()

    def _go_on(self) -> Commands:
        if not self._later:  # it was forgotten
            return
        event = self._later.popleft()
        if isinstance(event, events.DataReceived):
            data, size = event.data, self._cut(event.data)
            event.data = data[:size]
            if size < len(data):
                self._later.appendleft(events.DataReceived(event.connection, data[size:]))
        self.unread -= _size(event)
        if self._calm.lost:
            yield from self.protocol_error(_IDLE, ErrorCodes.ENHANCE_YOUR_CALM)
            return
        yield from super()._handle_event(event)
        if self._later:
            self._turn = commands.RequestWakeup(0)
            yield self._turn

    def close_connection(self, msg: str) -> Commands:
        """Tell every stream, those that wait for the target to take them too."""
        yield from super().close_connection(msg)
        self.forget()
        waiting, self.stream_queue = self.stream_queue, type(self.stream_queue)(list)
        for stream in waiting:
            self.their_stream_id[-stream] = stream  # it has no number at the target
            yield ReceiveHttp(ResponseProtocolError(-stream, msg, ResponseProtocolError.code))

    def done(self, event: events.Event) -> Commands:
        """It is closed: who asks for something has an answer."""
        if isinstance(event, RequestHeaders):
            yield ReceiveHttp(
                ResponseProtocolError(event.stream_id, "server closed connection", ResponseProtocolError.code)
            )


def _size(event: events.DataReceived | events.ConnectionClosed) -> int:
    return len(event.data) if isinstance(event, events.DataReceived) else 0


def innermost(end: layer.Layer | None) -> layer.Layer | None:
    """The layer that speaks HTTP, given the outermost one of a connection."""
    while isinstance(inner := getattr(end, "child_layer", None), layer.Layer):
        end = inner
    return end


def at_target(end: layer.Layer | None) -> GateHttp2Client | None:
    """The end of HTTP/2 in the layers of a connection, given the outermost one; None where there is none."""
    found = innermost(end)
    return found if isinstance(found, GateHttp2Client) else None


def backlog(end: layer.Layer | None) -> int:
    """Bytes of bodies that wait for the peer of a connection, given the outermost layer of that connection."""
    end = innermost(end)
    if not isinstance(end, mitm.Http2Connection):
        return 0
    waiting = sum(len(part.data) for parts in end.h2_conn.stream_buffers.values() for part in parts)
    if isinstance(end, mitm.Http2Client):
        queued = (event for events in end.stream_queue.values() for event in events)
        waiting += sum(len(event.data) for event in queued if isinstance(event, RequestData))
    return waiting


class Cutter:
    """Cuts a peer's bytes into what one turn of the event loop takes: up to `_FRAMES` frames, or to one that begins a
    request or an answer. An empty one is nine bytes, and costs as much as one that is full of data.
    """

    __slots__ = ("_head", "_left", "carried", "idle")

    def __init__(self, before: int = PREFACE) -> None:
        """`before`: bytes ahead of the first frame."""
        self._left = before
        self._head = b""
        self.carried = 0  # bytes of frames that hold heads or bodies
        self.idle = 0  # the other frames, long ones as several

    def __call__(self, data: bytes) -> int:
        """How many bytes of `data`, which go on behind those that were counted before."""
        at, frames, size = 0, 0, len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
            elif frames >= _FRAMES:
                break
            else:
                need = _FRAME_HEAD - len(self._head)
                self._head += data[at : at + need]
                at = min(at + need, size)
                if len(self._head) == _FRAME_HEAD:
                    self._left, kind = int.from_bytes(self._head[:3]), self._head[3]
                    frames += self._weigh(kind)
                    self._head = b""
        return at

    def _weigh(self, kind: int) -> int:
        """How many frames the one counts for that begins."""
        if self._left and kind in (_DATA, _HEADERS, _CONTINUATION):
            self.carried += self._left
            return _FRAMES if kind == _HEADERS else 1 if kind == _DATA else 1 + self._left // _SHORT
        idle = 1 + self._left // _SHORT
        self.idle += idle
        return _FRAMES if kind == _HEADERS else idle


class Calm:
    """Whether a peer still may send frames that carry nothing: each costs us a look, and some an answer, and nothing of
    them is judged, counted or written down.
    """

    __slots__ = ("_cut", "_sent", "_since")

    def __init__(self, cut: Cutter) -> None:
        self._cut, self._sent, self._since = cut, 0, time.monotonic()

    def saw(self, event: events.Event) -> None:
        """Count what goes to the peer: it answers each part of a body by what it may be sent more."""
        if isinstance(event, RequestData | ResponseData):
            self._sent += len(event.data) + _IDLE_PART

    @property
    def lost(self) -> bool:
        """Whether it sent too many."""
        cut = self._cut
        if cut.idle <= IDLE_BURST:
            return False
        served = (cut.carried + self._sent) // IDLE_BYTES
        return cut.idle > IDLE_BURST + served + IDLE_RATE * (time.monotonic() - self._since)
