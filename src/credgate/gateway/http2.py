"""The end of HTTP/2 that faces the jail, and how much of it waits in our memory."""

from mitmproxy.proxy import layer
from mitmproxy.proxy.layers.http import _http2 as mitm
from mitmproxy.proxy.layers.http._events import RequestData

from credgate.gateway.http1 import BadHead, BadHeadHook

MAX_BACKLOG = 1 << 20  # bytes in one direction; mitmproxy offers windows of two GiB and queues what can't go on

type Commands = layer.CommandGenerator[None]


class GateHttp2Server(mitm.Http2Server):
    """Http2Server that tells of what it refuses by itself."""

    def protocol_error(self, message: str, error_code: int = 1) -> Commands:
        """End a connection that breaks RFC 9113; 1 is its PROTOCOL_ERROR."""
        yield BadHeadHook(BadHead(self.context.client, http=True, detail="not well-formed HTTP/2"))
        yield from super().protocol_error(message, error_code)


def backlog(end: layer.Layer | None) -> int:
    """Bytes of bodies that wait for the peer of a connection, given the outermost layer of that connection."""
    while isinstance(inner := getattr(end, "child_layer", None), layer.Layer):
        end = inner
    if not isinstance(end, mitm.Http2Connection):
        return 0
    waiting = sum(len(part.data) for parts in end.h2_conn.stream_buffers.values() for part in parts)
    if isinstance(end, mitm.Http2Client):
        queued = (event for events in end.stream_queue.values() for event in events)
        waiting += sum(len(event.data) for event in queued if isinstance(event, RequestData))
    return waiting
