"""The proxies that do the gateway's work without its guarantees: Envoy and mitmdump, each a process on loopback."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.targets.pki import KeyPair
from tests.targets.served import accepts, free_port, running

TYPES = "type.googleapis.com/envoy.extensions"
ADDON = """
class Inject:
    def server_connect(self, data):
        data.server.address = ("127.0.0.1", {port})

    def request(self, flow):
        flow.request.headers["authorization"] = {credential!r}

addons = [Inject()]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The target: name, address, port and CA, what it wants, and a certificate of its name for who stands before it."""

    host: str
    port: int
    ca: Path
    credential: str
    pair: KeyPair
    home: Path
    address: str = "127.0.0.1"


def installed(pattern: str) -> Path | None:
    """Where `scripts/bench` put a program, if it could."""
    return next(Path(os.environ.get("CREDGATE_BENCH_PEERS", "/nowhere")).glob(pattern), None)


def envoy_binary() -> Path | None:
    return installed("envoy/_bin/envoy")


def codex_binary() -> Path | None:
    """The program itself, which the command of that name starts by way of Node."""
    return installed("node_modules/@openai/codex-linux-*/vendor/*/bin/codex")


def _at(port: int, address: str = "127.0.0.1") -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}


def _tls(kind: str, common: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = {"@type": f"{TYPES}.transport_sockets.tls.v3.{kind}", "common_tls_context": common, **more}
    return {"name": "envoy.transport_sockets.tls", "typed_config": config}


def _manager(upstream: Upstream) -> dict[str, Any]:
    header = {"header": {"key": "authorization", "value": upstream.credential}}
    host = {
        "name": "target",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "target", "timeout": "0s"}}],
        "request_headers_to_add": [{**header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    router = {"@type": f"{TYPES}.filters.http.router.v3.Router"}
    return {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "HTTP1",
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        "route_config": {"virtual_hosts": [host]},
    }


def envoy_config(upstream: Upstream, port: int) -> dict[str, Any]:
    """TLS ended with a certificate of ours, the header set, the target's certificate and name verified."""
    pair = {
        "certificate_chain": {"filename": str(upstream.pair.certificate)},
        "private_key": {"filename": str(upstream.pair.key)},
    }
    chain = {
        "transport_socket": _tls("DownstreamTlsContext", {"alpn_protocols": ["http/1.1"], "tls_certificates": [pair]}),
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager(upstream)}],
    }
    names = [{"san_type": "DNS", "matcher": {"exact": upstream.host}}]
    verified = {"trusted_ca": {"filename": str(upstream.ca)}, "match_typed_subject_alt_names": names}
    endpoint = {"endpoint": {"address": _at(upstream.port, upstream.address)}}
    cluster = {
        "name": "target",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "target", "endpoints": [{"lb_endpoints": [endpoint]}]},
        "transport_socket": _tls("UpstreamTlsContext", {"validation_context": verified}, sni=upstream.host),
    }
    listener = {"name": "bench", "address": _at(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@contextmanager
def envoy(upstream: Upstream) -> Iterator[tuple[int, int]]:
    """One worker. Its pid and port."""
    binary, port = envoy_binary(), free_port()
    assert binary is not None
    config = upstream.home / "envoy.json"
    config.write_text(json.dumps(envoy_config(upstream, port)))
    argv = [str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    with running(argv, ready=lambda: accepts(port), log=upstream.home / "envoy.log") as process:
        yield process.pid, port


@contextmanager
def mitmdump(upstream: Upstream) -> Iterator[tuple[int, int, Path]]:
    """As installed, with an add-on of two hooks. Its pid, port and CA."""
    port, home = free_port(), upstream.home / "mitmproxy"
    script = upstream.home / "inject.py"
    script.write_text(ADDON.format(port=upstream.port, credential=upstream.credential))
    options = {"confdir": home, "listen_host": "127.0.0.1", "ssl_verify_upstream_trusted_ca": upstream.ca}
    flags = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    argv = [f"{sys.prefix}/bin/mitmdump", "--quiet", "-p", str(port), *flags, "-s", str(script)]
    with running(argv, ready=lambda: accepts(port), log=upstream.home / "mitmdump.log") as process:
        yield process.pid, port, home / "mitmproxy-ca-cert.pem"
