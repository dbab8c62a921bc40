"""Fields of the ledger's lines, by what they are of: a run, a request, what is none, an opaque connection."""

import time
from dataclasses import dataclass, field

from credgate.gateway.exchange import ClientState, Exchange
from rules.request import Wire


@dataclass(slots=True, kw_only=True, eq=False)
class Pipe:
    """What the ledger says of one opaque connection. `seq` 0: no line of it is open."""

    rule: str
    host: str
    port: int
    via: str  # "tcp": out of the jail; "publish": into it
    seq: int = 0
    pin: str = ""
    note: str = ""
    req_bytes: int = 0
    resp_bytes: int = 0
    started: float = field(default_factory=time.monotonic)


def pipe_fields(pipe: Pipe) -> dict[str, object]:
    """An opaque connection's."""
    return {"rule": pipe.rule, "host": pipe.host, "port": pipe.port, "via": pipe.via}


def run_fields(state: ClientState) -> dict[str, object]:
    """Whose it is."""
    run = state.run
    return {"run": run.id, "role": run.role, "proof": run.proof, "policy_sha256": run.policy.sha256}


def request_fields(exchange: Exchange) -> dict[str, object]:
    """A request that could be read; nothing of any other."""
    request = exchange.request
    if request is None:
        return {}
    return {
        "via": request.via.value,
        "http_version": request.http_version,
        "scheme": request.scheme,
        "host": request.host,
        "port": request.port,
        "method": request.method,
        "path": exchange.path or request.path,
        "query_names": request.query_names if exchange.query_names is None else exchange.query_names,
    }


def wire_fields(wire: Wire | None) -> dict[str, object]:
    """Of one that could not be read, what it said."""
    if wire is None:
        return {}
    host = wire.connect_host or wire.authority
    for name, value in wire.headers:
        if not host and name.lower() == b"host":
            host = value
    return {
        "via": wire.via.value,
        "http_version": wire.http_version,
        "host": host.decode("latin-1"),
        "port": wire.connect_port or wire.listen_port,
        "method": wire.method.decode("latin-1"),
        "path": wire.target.partition(b"?")[0].decode("latin-1"),  # names of the query only where it was parsed
        "sni": wire.sni or "",
    }
