"""A target, and everyone who stands before it: Credgate with a jail, Envoy, mitmdump, nobody.

The proxies run on the machine's first core, target and clients on the last, where there are two.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import kernel, load, peers, proxies, served
from tests.bench.proof_share import account
from tests.e2e.site import BIN, Site, make_site
from tests.targets.pki import Authority

HOST, VALUE = "api.bench.test", "sk-bench-0123456789abcdefghijklmnopqrstuv"
CREDENTIAL = f"Bearer {VALUE}"
CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE, CLIENT_CORE = CORES[0], CORES[-1]
TWO, APART = "credgate, two workers on one core", "credgate, two workers"
TRIES = 5  # of a measurement during which a process ends
POLICY = """version = 1
[secret.api]
source = "keyring:credgate/api"
[endpoint.api]
host = "{host}"
dial_port = {port}
address = ["{address}"]
ca = "ca.pem"
[[endpoint.api.allow]]
id = "read"
methods = ["GET"]
paths = ["/small", "/bytes/*", "/events/*"]
[[endpoint.api.allow]]
id = "write"
methods = ["POST"]
paths = ["/sink"]
[binding.api]
secret = "api"
endpoint = "api"
rules = ["read", "write"]
place = "header:authorization"
format = "Bearer {{secret}}"
[role.dev]
bindings = ["api"]
"""


@dataclass(kw_only=True)
class Contestant:
    """A client and the processes between it and the target, whose CPU is what counts."""

    name: str
    client: "subprocess.Popen[str]"
    pids: Sequence[int] = field(default_factory=list)

    def ask(self, command: str) -> dict[str, float]:
        """Have the client do something; its answer."""
        assert self.client.stdin is not None and self.client.stdout is not None
        self.client.stdin.write(command + "\n")
        self.client.stdin.flush()
        line = self.client.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the client ended with {self.client.wait()} at {command!r}")
        told: dict[str, float] = json.loads(line)
        return told

    def cpu_of(self, command: str) -> tuple[float, dict[str, float]]:
        """Seconds of CPU that the processes took for a command, and its answer."""
        for _ in range(TRIES):
            self.pids = [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]
            try:
                before = kernel.cpu(self.pids)
                told = self.ask(command)
                return kernel.cpu(self.pids) - before, told
            except OSError as error:  # one has ended: what it took meanwhile is nobody's, so it counts anew
                if error.errno != errno.EINVAL:
                    raise
        raise RuntimeError(f"{self.name}: one of its processes ends each time")


@contextmanager
def client(argv: Sequence[str], **kw: Any) -> Iterator["subprocess.Popen[str]"]:
    """Ends when its stdin does."""
    pinned = ["taskset", "-c", str(CLIENT_CORE), *argv]
    process = subprocess.Popen(pinned, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kw)
    try:
        yield process
    finally:
        process.communicate(timeout=30)


def outside(
    host: str, port: int, ca: Path, *, proxied: bool = False, credential: str = "", address: str = "127.0.0.1"
) -> list[str]:
    """The client's command line for a proxy or a target at that address."""
    said = (host, address, str(port), str(ca), str(int(proxied)), credential)
    return [sys.executable, "-I", load.__file__, *said]


@contextmanager
def target(ca: Authority) -> Iterator[int]:
    """The target's port."""
    pair = ca.issue(HOST)
    argv = ["taskset", "-c", str(CLIENT_CORE), sys.executable, "-I", served.__file__]
    argv += [str(pair.certificate), str(pair.key), CREDENTIAL]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def site() -> Iterator[Site]:
    """A home of its own for an ordinary user; its daemon ended afterwards."""
    made = make_site(*account())
    try:
        yield made
    finally:
        made.close()


def jailed(of: Site, *command: str) -> list[str]:
    """`credgate run` of a command, with the site's policy and as its user."""
    policy = str(of.home / "policy/policy.toml")
    return of.as_user([str(BIN / "credgate"), "run", "-q", "--policy", policy, "--", *command])


def daemon(of: Site, workers: int = 1) -> int:
    """The pid of the site's daemon, which is started."""
    started = of.credgate("gateway", "start", "--workers", str(workers))
    if started.returncode:
        raise RuntimeError(started.stderr)
    return int(json.loads(of.credgate("gateway", "status", "--json").stdout)["pid"])


def prepared(place: Site, port: int, ca: Path, address: str = "127.0.0.1") -> list[str]:
    """The command line of a jail whose client asks the target there."""
    place.secret("api", VALUE, told=True)
    place.policy(POLICY.format(host=HOST, port=port, address=address), ca)
    place.write("work/load.py", Path(load.__file__).read_text())
    return jailed(place, place.python(), "-I", "load.py", HOST, "", "0", "", "env", "")


@contextmanager
def credgate(
    port: int, ca: Path, address: str = "127.0.0.1", workers: int = 1, *, apart: bool = False
) -> Iterator[Contestant]:
    """As installed: a jail, policy, ledger and scrub on. Daemon, resolver, and what waits beside the jail count.

    `apart`: the processes that the daemon has beside its own have the other core.
    """
    with site() as place:
        argv = prepared(place, port, ca, address)
        pid = daemon(place, workers)
        with client(argv, env=place.environment(), cwd=place.work) as asking:
            made = Contestant(name="credgate", client=asking)
            made.ask("requests 1 1")
            gateway = kernel.ours(pid)
            kernel.pin(gateway, PROXY_CORE)
            if apart:
                kernel.pin([one for one in gateway if kernel.runs(one, "credgate.workers.main")], CLIENT_CORE)
            made.pids = [*gateway, asking.pid]  # and the launcher
            yield made


def _peer(name: str, upstream: peers.Upstream, stack: ExitStack) -> Contestant:
    ca, proxied, own = upstream.ca, False, ""
    match name:
        case "envoy":
            pid, port = stack.enter_context(peers.envoy(upstream))
        case "squid":
            pid, port = stack.enter_context(proxies.squid(upstream))
        case "mitmdump":
            pid, port, ca = stack.enter_context(peers.mitmdump(upstream))
            proxied = True
        case "http-mitm-proxy":
            pid, port, ca = stack.enter_context(proxies.http_mitm_proxy(upstream))
            proxied = True
        case _:
            pid, port, own = 0, upstream.port, upstream.credential
    pids = kernel.tree(pid) if pid else []
    kernel.pin(pids, PROXY_CORE)
    asking = stack.enter_context(client(outside(HOST, port, ca, proxied=proxied, credential=own)))
    return Contestant(name=name, client=asking, pids=pids)


@contextmanager
def contestants(*names: str) -> Iterator[dict[str, Contestant]]:
    """Those asked for, ready; a peer is left out where it isn't installed."""
    here = {"envoy": peers.envoy_binary, "squid": proxies.squid_binary, "http-mitm-proxy": proxies.node_module}
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="credgate-bench-")))
        authority = Authority(home, "bench-ca")
        port = stack.enter_context(target(authority))
        upstream = peers.Upstream(
            host=HOST, port=port, ca=authority.ca, credential=CREDENTIAL, pair=authority.issue(HOST), home=home
        )
        made = {"credgate": stack.enter_context(credgate(port, authority.ca))}
        for name in names:
            if name in (TWO, APART):
                made[name] = stack.enter_context(credgate(port, authority.ca, workers=2, apart=name == APART))
            elif name not in here or here[name]() is not None:
                made[name] = _peer(name, upstream, stack)
        yield made
