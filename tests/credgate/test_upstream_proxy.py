"""A corporate proxy between the gateway and its targets: what it is asked, what it gets, and what it may refuse."""

import asyncio
import base64
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from credgate.gateway.handler import reset
from credgate.gateway.steps import Timeouts
from tests.credgate.gateway_rig import PATIENT, POLICY, SECRET, Rig, Seen, rig, server_tls
from tests.credgate.h2_rig import H2Client
from tests.targets.pki import Authority as TargetCa

HOST = "api.good.test"
PASSWORD = SECRET[::-1]


@dataclass
class Corporate:
    """A proxy that connects every name to one port of loopback, or answers what it is told."""

    tls: ssl.SSLContext | None = None
    answer: bytes = b""
    port: int = 0
    to: int = 0
    heads: list[bytes] = field(default_factory=list)
    carried: bytes = b""  # what the client side sent through the tunnel

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator["Corporate"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer:
                writer.write(self.answer)
                await writer.drain()
                await reader.read()
                writer.close()
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.to)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pipe(reader, up_writer, keep=True))
                tasks.create_task(self._pipe(up_reader, writer))
        writer.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.carried += data if keep else b""
                writer.write(data)
        writer.close()


def policy(proxy: Corporate, *more: str) -> str:
    table = (
        f'[proxy.corp]\nhost = "proxy.good.test"\nport = {proxy.port}\naddress = ["127.0.0.0/8"]\n'
        + "".join(line + "\n" for line in more)
        + "[endpoint.good]"
    )
    through = POLICY.replace("[endpoint.good]", table, 1)
    for port in ("good", "h2"):
        direct = f'dial_port = {{{port}}}\naddress = ["127.0.0.1"]'
        through = through.replace(direct, f'dial_port = {{{port}}}\nproxy = "corp"', 1)
    return through


@contextlib.asynccontextmanager
async def behind(
    tmp_path: Path,
    proxy: Corporate,
    *more: str,
    ca: TargetCa | None = None,
    alpn: str = "http/1.1",
    timeouts: Timeouts = PATIENT,
) -> AsyncIterator[Rig]:
    more_of_it = {"test_ca": ca, "alpn": (alpn,), "timeouts": timeouts}
    async with proxy.up(), rig(tmp_path, policy=policy(proxy, *more), **more_of_it) as r:
        r.names["proxy.good.test"] = (ip_address("127.0.0.1"),)
        proxy.to = r.good.port
        yield r


async def status(r: Rig) -> tuple[int, str]:
    client = await r.tunnel(HOST)
    answer = await client.get(host=f"{HOST}:{r.direct}")
    return answer.status, answer.code if answer.verdict else ""


def test_the_target_is_reached_by_name_and_the_secret_is_inside_tls_alone(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy) as r:
            assert await status(r) == (200, "")
            authority = b"%s:%d" % (HOST.encode(), r.good.port)
            assert proxy.heads == [b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (authority, authority)]
            assert r.good.seen[0].values(b"authorization") == [b"Bearer " + SECRET.encode()]
            assert SECRET.encode() not in proxy.carried and proxy.carried
            intent, outcome = r.records("intent", "outcome")
            assert (intent["pin"], outcome["pin"]) == ("proxy", "proxy")
            assert "tunnels" not in intent and intent["ts"] <= outcome["tunnels"][0] <= outcome["ts"]

    asyncio.run(main())


@pytest.mark.parametrize("slams", [True, False])
def test_an_answer_in_the_middle_of_an_upload(slams: bool, tmp_path: Path) -> None:
    """The target has read little of it, and closes: by RST, or so that the kernel answers what comes later by one."""

    async def early(_seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1000)
        writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        (reset if slams else asyncio.StreamWriter.close)(writer)

    async def main() -> None:
        async with behind(tmp_path, Corporate()) as r:
            r.good.script = early
            client = await r.tunnel(HOST)
            head = f"POST /ok/a HTTP/1.1\r\nHost: {HOST}:{r.direct}\r\nContent-Length: 4000000\r\n\r\n"
            client.writer.write(head.encode() + bytes(4_000_000))
            answer = await client.answer()
            assert (answer.status, answer.body) == (413, b"no")
            assert (r.records("outcome")[0]["status"], r.reasons()) == (413, [])

    asyncio.run(asyncio.wait_for(main(), 100))


def test_its_password_goes_to_it_and_nowhere_else(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy, 'secret = "other"', 'user = "alice"') as r:
            assert await status(r) == (200, "")
            credential = base64.b64encode(f"alice:{PASSWORD}".encode())
            assert proxy.heads[0].endswith(b"\r\nProxy-Authorization: Basic " + credential + b"\r\n\r\n")
            assert credential not in r.good.raw and PASSWORD.encode() not in r.good.raw
            assert PASSWORD not in repr(r.run) + "".join(map(str, r.records()))

    asyncio.run(main())


def test_the_ledger_says_which_request_had_a_tunnel_opened(tmp_path: Path) -> None:
    """One that goes by an open connection has none; one whose tunnel is refused has, for the proxy's log has a line."""

    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy) as r:
            client = await r.tunnel(HOST)
            for _ in range(3):
                assert (await client.get(host=f"{HOST}:{r.direct}")).status == 200
            assert [len(record.get("tunnels", ())) for record in r.records("outcome")] == [1, 0, 0]
            assert len(proxy.heads) == 1

    asyncio.run(main())


def test_it_says_so_of_http2_too(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy, alpn="h2") as r:
            opened = await r.tunnel("h2.good.test", alpn=("h2",))
            client = H2Client(opened.reader, opened.writer)
            head = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/ok/a")]
            for _ in range(2):
                await client.ask([*head, (b":authority", f"h2.good.test:{r.direct}".encode())])
            assert [len(record.get("tunnels", ())) for record in r.records("outcome")] == [1, 0]
            assert len(proxy.heads) == 1

    asyncio.run(main())


def test_a_password_that_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy, 'secret = "other"', 'user = "alice"') as r:
            del r.vault.values["other"]
            assert await status(r) == (403, "secret_unavailable")
            assert proxy.heads == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 3\r\n\r\nno!",
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
def test_a_proxy_that_refuses(answer: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate(answer=answer)
        async with behind(tmp_path, proxy) as r:
            assert await status(r) == (502, "upstream_unreachable")
            outcome = r.records("outcome")[-1]
            assert (outcome["reason"], outcome["pin"]) == ("upstream_unreachable", "proxy")
            assert outcome["detail"].startswith("the proxy")
            assert len(outcome["tunnels"]) == len(proxy.heads) == 1
            assert r.untouched

    asyncio.run(main())


def test_a_proxy_that_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate(answer=b"HTTP/1.1 100 Continue\r\n\r\n")
        async with behind(tmp_path, proxy, timeouts=dataclasses.replace(PATIENT, connect=1.0)) as r:
            assert await status(r) == (504, "upstream_timeout")

    asyncio.run(main())


def test_a_proxy_that_leads_elsewhere_is_found_out_by_the_certificate(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy) as r:
            proxy.to = r.evil.port
            assert await status(r) == (502, "upstream_tls")
            assert r.untouched
            assert SECRET.encode() not in proxy.carried

    asyncio.run(main())


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "127.0.0.99"])
def test_the_address_of_the_proxy_is_judged(address: str, tmp_path: Path) -> None:
    """127.0.0.99 is the gateway's own, in a range that `address` opens."""

    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy) as r:
            r.names["proxy.good.test"] = (ip_address("127.0.0.1"), ip_address(address))
            code, reason = await status(r)
            assert code == 403 and reason in ("address_blocked", "metadata")
            assert proxy.heads == []

    asyncio.run(main())


def test_the_name_of_the_target_is_not_looked_up_here(tmp_path: Path) -> None:
    async def main() -> None:
        proxy = Corporate()
        async with behind(tmp_path, proxy) as r:
            assert HOST not in r.names  # asked for, it would be a 502
            assert await status(r) == (200, "")
            del r.names["proxy.good.test"]
            assert await status(r) in ((200, ""), (502, "resolve_failed"))

    asyncio.run(main())


def test_a_proxy_by_tls(tmp_path: Path) -> None:
    async def main() -> None:
        ca = TargetCa(tmp_path, "targets")
        good = Corporate(tls=server_tls(ca, "proxy.good.test"))
        async with behind(tmp_path, good, "tls = true", 'ca = "{ca}"', ca=ca) as r:
            assert await status(r) == (200, "")
            assert good.heads[0].startswith(b"CONNECT " + HOST.encode())
            assert SECRET.encode() not in good.carried

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["name", "authority"])
def test_a_proxy_with_a_wrong_certificate(fault: str, tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "x").mkdir()
        ca, other = TargetCa(tmp_path, "targets"), TargetCa(tmp_path / "x", "others")
        shown = server_tls(ca, "evil.test") if fault == "name" else server_tls(other, "proxy.good.test")
        proxy = Corporate(tls=shown)
        secret = ('secret = "other"', 'user = "alice"')
        async with behind(tmp_path, proxy, "tls = true", 'ca = "{ca}"', *secret, ca=ca) as r:
            assert await status(r) == (502, "upstream_tls")
            assert proxy.heads == []

    asyncio.run(main())
