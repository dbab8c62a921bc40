"""A request as it comes through a tunnel, over HTTP/1.1 and TLS, with the name of the tunnel everywhere."""

from rules.parse import parse_request
from rules.request import Request, Via, Wire


def tunnelled(line: str, host: str, *fields: tuple[bytes, bytes], port: int = 443, has_body: bool = False) -> Request:
    """One that is parsed, not refused. `line`: its method and its target; `fields`: beside Host."""
    method, _, target = line.partition(" ")
    wire = Wire(
        via=Via.CONNECT,
        http_version="HTTP/1.1",
        method=method.encode(),
        target=target.encode(),
        headers=((b"Host", (host if port == 443 else f"{host}:{port}").encode()), *fields),
        tls=True,
        connect_host=host.encode(),
        connect_port=port,
        sni=host,
        has_body=has_body,
    )
    request = parse_request(wire)
    assert isinstance(request, Request), request
    return request
