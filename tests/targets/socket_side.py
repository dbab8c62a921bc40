"""The server's side of a WebSocket on a connection of http.server, for stand-ins: text in, texts out."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Message, Ping, TextMessage

if TYPE_CHECKING:
    from https_target import Handler

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3


def wants_socket(handler: "Handler") -> bool:
    """Whether a request is a handshake."""
    return handler.headers.get("Upgrade", "").lower() == "websocket"


def serve(handler: "Handler", answer: Callable[[Any], Iterable[Any]]) -> None:
    """Agree to the handshake, and answer each JSON message by JSON messages, until the client ends it."""
    key = handler.headers["Sec-WebSocket-Key"] + _GUID
    handler._record(101)
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
    handler.end_headers()
    handler.wfile.flush()
    handler.close_connection = True
    socket, kept = Connection(ConnectionType.SERVER), ""
    while data := handler.connection.recv(65536):
        socket.receive_data(data)
        for event in socket.events():
            if isinstance(event, TextMessage):
                kept += event.data
                if event.message_finished:
                    said, kept = json.loads(kept), ""
                    handler.server.witness.write(event="message", type=said.get("type", ""), size=len(json.dumps(said)))
                    for part in answer(said):
                        handler.wfile.write(socket.send(Message(data=json.dumps(part))))
            elif isinstance(event, Ping):
                handler.wfile.write(socket.send(event.response()))
            elif isinstance(event, CloseConnection):
                handler.wfile.write(socket.send(event.response()))
                return
        handler.wfile.flush()
