"""A gateway on loopback between raw clients and two TLS targets of a test CA that keep every byte they get."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from credgate.ca import Authority
from credgate.gateway.dial import Dialler
from credgate.gateway.handler import reset
from credgate.gateway.server import Gateway
from credgate.gateway.steps import Timeouts
from credgate.ledger.writer import Ledger
from credgate.paths import Places
from credgate.runs import Listener, Run
from credgate.secretvalue import Secret, SecretUnavailable
from rules.load import load_policy
from rules.policy import Address
from rules.sources import SecretRule, SourceKind
from tests.credgate.h2_rig import H2Reply, H2Request, H2Session
from tests.targets.pki import Authority as TargetCa

SECRET = "ghp_realSecretValue0123456789abcdefghij"
DECOY = "ghp_decoyDecoyDecoyDecoyDecoyDecoyDecoy1"
PATIENT = Timeouts(connect=30.0, tls=30.0, first_byte=30.0, resolve=30.0, idle=60.0, names=0.0)
# Of tests that let each of them pass; a busy machine passes a second with anything, so others let the one pass.
FAST = Timeouts(connect=1.0, tls=1.0, first_byte=1.0, resolve=1.0, idle=30.0, names=0.0)

type Script = Callable[["Seen", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Seen:
    """One request as a target got it: `raw` is the head, `body` what a script read."""

    raw: bytes
    body: bytes = b""

    @property
    def line(self) -> bytes:
        return self.raw.partition(b"\r\n")[0]

    def values(self, name: bytes) -> list[bytes]:
        pairs = (line.partition(b":") for line in self.raw.split(b"\r\n")[1:] if line)
        return [value.strip() for key, _, value in pairs if key.lower() == name]


async def read_body(seen: Seen, reader: asyncio.StreamReader) -> None:
    if seen.values(b"transfer-encoding"):
        while size := int((await reader.readline()).strip(), 16):
            seen.body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    for length in seen.values(b"content-length"):
        seen.body += await reader.readexactly(int(length))


async def echo(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_body(seen, reader)
    body = b"ok %d" % len(seen.body)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Request-Id: target-1\r\nSet-Cookie: a=b\r\nAlt-Svc: h3\r\n\r\n"
    writer.write(head % len(body) + (b"" if seen.line.startswith(b"HEAD") else body))


class Target:
    """A server on loopback; `connections` counts accepted ones, `raw` is every decrypted byte."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.script: Script = echo
        self.seen: list[Seen] = []
        self.raw = b""
        self.sessions: list[H2Session] = []
        self.pace = 0.0
        self.answer_size = 0
        self.reply: Callable[[H2Request], H2Reply] | None = None
        self.connections = 0
        self.open = 0
        self.closed = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> "Target":
        self._raw_server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._raw_server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._raw_server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            await self._answer(reader, writer)
        finally:
            self.open -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chosen = writer.get_extra_info("ssl_object")
        if chosen is not None and chosen.selected_alpn_protocol() == "h2":
            await self._serve_h2(reader, writer)
            return
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.raw += head
                self.seen.append(Seen(head))
                await self.script(self.seen[-1], reader, writer)
                self.raw += self.seen[-1].body
                await writer.drain()
                if writer.is_closing():
                    break
        self.closed.set()
        writer.close()

    async def _serve_h2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = H2Session(reader, writer, pace=self.pace, answer_size=self.answer_size, reply=self.reply)
        self.sessions.append(session)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await session.run()
        self.closed.set()
        writer.close()


class FakeVault:
    """A vault of fixed values; an unknown name is unavailable."""

    def __init__(self, values: Mapping[str, str], home: Path = Path("/nowhere")) -> None:
        self.values = dict(values)
        self.places = Places.from_env({"HOME": str(home)})
        self.fetched: list[str] = []

    async def swap(self, rule: SecretRule, old: Secret, new: str) -> None:
        assert self.values[rule.name] == old.reveal()
        self.values[rule.name] = new

    def kept(self, rule: SecretRule, _env: Mapping[str, str]) -> Secret | None:
        if rule.kind is not SourceKind.KEYRING or rule.name not in self.values:
            return None
        self.fetched.append(rule.name)
        return Secret(rule.name, self.values[rule.name])

    def asking(self, rule: SecretRule, env: Mapping[str, str]) -> Callable[[], Secret | None]:
        return partial(self.kept, rule, env)

    async def fetch(self, rule: SecretRule, env: Mapping[str, str]) -> Secret:
        self.fetched.append(rule.name)
        if rule.name not in self.values:
            raise SecretUnavailable("secret_not_set", f"secret {rule.name!r}: not set")
        return Secret(rule.name, self.values[rule.name])


@dataclass
class Rig:
    gateway: Gateway
    run: Run
    good: Target
    evil: Target
    plain: Target
    proxy: int
    direct: int  # the TLS port the client means, and that the policy lists
    cleartext: int
    ca: Path  # what the jail trusts: our CA
    ledger_dir: Path
    vault: FakeVault
    names: dict[str, tuple[Address, ...]]
    extra: dict[str, Any] = field(default_factory=dict)
    clients: list["Client"] = field(default_factory=list)

    def records(self, *events: str) -> list[dict[str, Any]]:
        lines = [line for f in sorted(self.ledger_dir.glob("*.jsonl")) for line in f.read_text().splitlines()]
        parsed = [json.loads(line) for line in lines]
        return [r for r in parsed if not events or r["ev"] in events]

    def reasons(self) -> list[str]:
        return [r["reason"] for r in self.records("deny", "outcome") if "reason" in r]

    @property
    def untouched(self) -> bool:
        targets = (self.good, self.evil, self.plain)
        return not any(t.raw or any(s.seen for s in t.sessions) for t in targets)

    def trust(self, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.set_alpn_protocols(list(alpn))
        return context

    async def tunnel(
        self, host: str = "api.good.test", port: int = 0, sni: str | None = "", alpn: tuple[str, ...] = ("http/1.1",)
    ) -> "Client":
        """CONNECT host:port, then TLS with `sni` (None: no TLS, "": the host)."""
        client = await self.dial(self.proxy)
        target = b"%s:%d" % (host.encode(), port or self.direct)
        client.writer.write(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target))
        head = await client.reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise ConnectionRefusedError(head + await client.rest())
        if sni is not None:
            await client.writer.start_tls(self.trust(alpn), server_hostname=sni or host)
        return client

    async def tls(self, sni: str = "api.good.test", alpn: tuple[str, ...] = ("http/1.1",)) -> "Client":
        """TLS straight to the gateway's port."""
        streams = await asyncio.open_connection("127.0.0.1", self.direct, ssl=self.trust(alpn), server_hostname=sni)
        return self._kept(Client(*streams))

    async def dial(self, port: int) -> "Client":
        return self._kept(Client(*await asyncio.open_connection("127.0.0.1", port)))

    def _kept(self, client: "Client") -> "Client":
        self.clients.append(client)
        return client

    async def curl(self, *args: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "--cacert", str(self.ca), "--max-time", "20", "-x", f"http://127.0.0.1:{self.proxy}"),
            *args,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode("utf-8", "replace")


@dataclass
class Answer:
    status: int
    head: bytes
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])

    @property
    def verdict(self) -> bool:
        said = b"error" if self.status in (502, 504) else b"deny"
        return b"credgate-verdict: " + said + b"\r\n" in self.head.lower()


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, raw: bytes) -> Answer:
        self.writer.write(raw)
        return await self.answer(head_only=raw.startswith(b"HEAD"))

    async def get(self, path: str = "/ok/a", host: str = "", **headers: str) -> Answer:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
        return await self.ask(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def answer(self, *, head_only: bool = False) -> Answer:
        async with asyncio.timeout(60):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            seen = Seen(head)
            if not head_only:
                await read_body(seen, self.reader)
            return Answer(status, head, seen.body)

    async def rest(self) -> bytes:
        """Everything until the end of the connection, whichever end it is."""
        data = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            async with asyncio.timeout(60):
                while chunk := await self.reader.read(65536):
                    data += chunk
        return data

    def close(self) -> None:
        self.writer.transport.abort()


POLICY = """
version = 1
default_role = "dev"
[secret.token]
source = "keyring:credgate/token"
[secret.other]
source = "keyring:credgate/other"
[endpoint.good]
host = "api.good.test"
port = {direct}
dial_port = {good}
address = ["127.0.0.1"]
ca = "{ca}"
alpn = ["http/1.1"]
[[endpoint.good.allow]]
id = "ok"
methods = ["GET", "POST", "PUT"]
paths = ["/ok/**"]
[[endpoint.good.allow]]
id = "query"
methods = ["GET"]
paths = ["/query"]
query = {{ allow = ["page"] }}
[[endpoint.good.allow]]
id = "free"
methods = ["GET"]
paths = ["/free/*"]
[[endpoint.good.allow]]
id = "placeholder"
methods = ["GET"]
paths = ["/ph/*"]
[[endpoint.good.allow]]
id = "slash"
methods = ["GET"]
paths = ["/pkg/*"]
encoded_slash = true
[[endpoint.good.deny]]
id = "minting"
paths = ["/ok/mint/**"]
[endpoint.h2]
host = "h2.good.test"
port = {direct}
dial_port = {h2}
address = ["127.0.0.1"]
ca = "{ca}"
alpn = ["h2", "http/1.1"]
[[endpoint.h2.allow]]
id = "ok"
methods = ["GET", "POST", "PUT"]
paths = ["/ok/**"]
[endpoint.looked-up]
host = "up.good.test"
port = {direct}
dial_port = {good}
address = ["127.0.0.0/8"]
ca = "{ca}"
[[endpoint.looked-up.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
[endpoint.plain]
host = "plain.good.test"
port = {cleartext}
dial_port = {plain}
address = ["127.0.0.1"]
tls = false
[[endpoint.plain.allow]]
id = "all"
methods = ["GET", "POST"]
paths = ["/ok/**"]
[binding.token]
secret = "token"
endpoint = "good"
rules = ["ok", "query", "slash"]
place = "header:authorization"
format = "Bearer {{secret}}"
[binding.swap]
secret = "other"
endpoint = "good"
rules = ["placeholder"]
place = "header:authorization"
format = "token {{secret}}"
mode = "placeholder"
placeholder = {{ env = "TOKEN", shape = "ghp_{{36}}" }}
[binding.h2]
secret = "token"
endpoint = "h2"
rules = ["ok"]
place = "header:authorization"
[role.dev]
bindings = ["token", "swap", "h2"]
endpoints = ["plain", "looked-up"]
"""


def server_tls(ca: TargetCa, *hosts: str, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
    """A context that shows the leaf of the name asked for, the first one's for any other."""
    contexts = {}
    for host in hosts:
        pair = ca.issue(host)
        context = contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        context.set_alpn_protocols(list(alpn))

    def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        if name in contexts:
            connection.context = contexts[name]

    first = contexts[hosts[0]]
    first.sni_callback = choose
    return first


def listening() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    return sock


def free_port() -> int:
    with listening() as sock:
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def rig(
    tmp: Path,
    *,
    timeouts: Timeouts = PATIENT,
    policy: str = POLICY,
    good_hosts: tuple[str, ...] = ("api.good.test", "up.good.test", "h2.good.test"),
    h2_port: int = 0,
    alpn: tuple[str, ...] = ("http/1.1",),
    test_ca: TargetCa | None = None,
    decoys: Mapping[str, str] = {"swap": DECOY},
    processes: int = 1,
) -> AsyncIterator[Rig]:
    """Everything up; `good_hosts` are the names that the good target has a certificate for."""
    ca = test_ca or TargetCa(tmp, "targets")
    good = Target(server_tls(ca, *good_hosts, alpn=alpn))
    evil, plain = Target(server_tls(ca, "evil.test")), Target(None)
    sockets = {name: listening() for name in ("proxy", "direct", "cleartext")}
    ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
    async with good, evil, plain:
        text = policy.format(ca=ca.ca, good=good.port, plain=plain.port, h2=h2_port or good.port, **ports)
        loaded = load_policy(text.encode(), packs={}, base_dir="/")
        run = Run(
            id="run-1",
            policy=loaded,
            role="dev",
            gateway_ip="127.0.0.99",
            proxy_port=ports["proxy"],
            decoys=decoys,
            proof="proof-1",
        )
        authority = Authority.load_or_create(tmp / "ca")
        (tmp / "ours.pem").write_bytes(authority.ca_pem)
        names: dict[str, tuple[Address, ...]] = {"up.good.test": (ip_address("127.0.0.1"),)}

        async def resolve(host: str, over: Callable[[], None]) -> tuple[Address, ...]:
            over()
            if host not in names:
                raise OSError("no such name")
            return names[host]

        ledger = Ledger.open(tmp / "ledger")
        vault = FakeVault({"token": SECRET, "other": SECRET[::-1]}, tmp)
        gateway = Gateway(
            authority=authority,
            ledger=ledger,
            vault=vault,  # type: ignore[arg-type]
            resolve=resolve,
            own_addresses=frozenset,
            timeouts=timeouts,
            system_roots=TargetCa(tmp, "roots").ca,  # OpenSSL takes a tenth of a second to read the real ones
        )
        await gateway.start(processes)
        await gateway.serve(
            run, [Listener(sock=s, port=ports[name], proxy=name == "proxy") for name, s in sockets.items()]
        )
        made = Rig(
            gateway=gateway,
            run=run,
            good=good,
            evil=evil,
            plain=plain,
            ca=tmp / "ours.pem",
            ledger_dir=tmp / "ledger",
            vault=vault,
            names=names,
            extra={"ledger": ledger, "ca": ca, "authority": authority},
            **ports,
        )
        try:
            yield made
        finally:
            for client in made.clients:
                client.close()
            await gateway.stop()
            ledger.close()
            for _ in range(50):  # lets aborted transports be closed before the loop is, and then the targets' ends
                await asyncio.sleep(0)
                if not (good.open or evil.open or plain.open):
                    break


@contextlib.asynccontextmanager
async def resetting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a target whose connections are gone, by RST, as soon as the gateway has them."""
    stands, reach = asyncio.Event(), Dialler.reach

    async def slam(_reader: object, writer: asyncio.StreamWriter) -> None:
        await stands.wait()
        reset(writer)

    async def reached(self: Dialler, target: Any, asked: Any) -> Any:
        sock: Any = await reach(self, target, asked)
        stands.set()
        with contextlib.suppress(OSError):
            while sock.getpeername():
                await asyncio.sleep(0.001)
        return sock

    async with await asyncio.start_server(slam, "127.0.0.1", 0) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Dialler, "reach", reached)
            yield server.sockets[0].getsockname()[1]
