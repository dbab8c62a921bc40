"""More proxies to stand beside: squid in front of the target, and http-mitm-proxy on Node; processes on loopback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.peers import Upstream, installed
from tests.targets.served import accepts, free_port, running

SQUID = """
https_port 127.0.0.1:{port} accel defaultsite={host} tls-cert={bundle}
cache_peer 127.0.0.1 parent {target} 0 no-query originserver tls tls-cafile={ca} ssldomain={host} forceddomain={host}
request_header_access Authorization deny all
request_header_add Authorization "{credential}" all
http_access allow all
cache deny all
access_log none
cache_log {home}/squid-cache.log
coredump_dir {home}
pid_filename {home}/squid.pid
mime_table /usr/share/squid/mime.conf
icon_directory /usr/share/squid/icons
error_directory /usr/share/squid/errors/templates
cache_effective_user proxy
shutdown_lifetime 1 second
server_persistent_connections on
workers 1
"""
NODE = """
const fs = require("fs"), https = require("https");
const told = JSON.parse(process.argv[2]);
const { Proxy } = require(told.module);
const proxy = new Proxy();
proxy.onError((context, error) => console.error(error));
proxy.onRequest((context, done) => {
  const options = context.proxyToServerRequestOptions;
  options.host = "127.0.0.1";
  options.port = told.port;
  options.headers.authorization = told.credential;
  done();
});
const httpsAgent = new https.Agent({ keepAlive: true, ca: fs.readFileSync(told.ca) });
proxy.listen({ host: "127.0.0.1", port: told.listen, sslCaDir: told.home, keepAlive: true, httpsAgent });
"""


def squid_binary() -> Path | None:
    return installed("squid/usr/sbin/squid")


def node_module() -> Path | None:
    return installed("node_modules/http-mitm-proxy")


@contextmanager
def squid(upstream: Upstream) -> Iterator[tuple[int, int]]:
    """TLS ended with a certificate of ours, the header set, the target's certificate verified. Its pid and port."""
    binary, port = squid_binary(), free_port()
    assert binary is not None
    home = upstream.home / "squid"
    home.mkdir(mode=0o777)
    home.chmod(0o777)  # it runs as its own user
    upstream.home.chmod(0o755)
    bundle = home / "pair.pem"
    bundle.write_text(upstream.pair.certificate.read_text() + upstream.pair.key.read_text())
    config = home / "squid.conf"
    config.write_text(
        SQUID.format(
            port=port,
            host=upstream.host,
            bundle=bundle,
            target=upstream.port,
            ca=upstream.ca,
            credential=upstream.credential,
            home=home,
        )
    )
    argv = [str(binary), "-N", "-f", str(config)]
    with running(argv, ready=lambda: accepts(port), log=home / "squid.log") as process:
        yield process.pid, port


@contextmanager
def http_mitm_proxy(upstream: Upstream) -> Iterator[tuple[int, int, Path]]:
    """Its keep-alive on, with a handler that sets the header. Its pid, port and CA."""
    module, port, home = node_module(), free_port(), upstream.home / "http-mitm-proxy"
    script = upstream.home / "inject.js"
    script.write_text(NODE)
    told = {
        "module": str(module),
        "port": upstream.port,
        "credential": upstream.credential,
        "ca": str(upstream.ca),
        "listen": port,
        "home": str(home),
    }
    argv = ["node", str(script), json.dumps(told)]
    with running(argv, ready=lambda: accepts(port), log=upstream.home / "node.log") as process:
        yield process.pid, port, home / "certs/ca.pem"
