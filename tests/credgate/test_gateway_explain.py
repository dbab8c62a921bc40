"""`policy explain` and the gateway agree, on a table, through every way in."""

import asyncio
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from credgate.explain import Explained, explain
from rules.verdict import Allow
from tests.credgate.gateway_rig import DECOY, POLICY, SECRET, Client, Rig, rig
from tests.credgate.h2_rig import H2Client

VECTORS = Path(__file__).parents[1] / "vectors" / "requests.toml"
CASES: list[dict[str, Any]] = tomllib.loads(VECTORS.read_text())["case"]
BOTH = POLICY.replace('alpn = ["http/1.1"]', 'alpn = ["h2", "http/1.1"]', 1)
URL = re.compile(r"(https?)://([^/?#]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One case as bytes: `host` is what the URL says, without its port."""

    scheme: str
    authority: str
    host: str
    port: int
    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, case: dict[str, Any], r: Rig) -> "Asked":
        found = URL.fullmatch(filled(case["url"], r))
        assert found
        authority = found[2]
        host, _, port = authority.rpartition(":") if re.search(r":\d+$", authority) else (authority, "", "")
        pairs = (filled(h, r).split(": ", 1) for h in case.get("headers", []))
        return cls(
            scheme=found[1],
            authority=authority,
            host=host,
            port=int(port or (443 if found[1] == "https" else 80)),
            method=case["method"].encode(),
            target=(found[3] or "/").encode(),
            headers=tuple((name.encode(), value.encode()) for name, value in pairs),
        )

    def h1(self, *, absolute: bool = False) -> bytes:
        start = f"http://{self.authority}".encode() if absolute else b""
        fields = self.headers
        if not any(name.lower() == b"host" for name, _ in fields):
            fields = ((b"Host", self.authority.encode()), *fields)
        lines = [b"%s %s%s HTTP/1.1" % (self.method, start, self.target), *(n + b": " + v for n, v in fields)]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def h2(self) -> list[tuple[bytes, bytes]]:
        pseudo = {b":method": self.method, b":scheme": b"https", b":authority": self.authority.encode()}
        return [*pseudo.items(), (b":path", self.target), *((n.lower(), v) for n, v in self.headers)]


def filled(text: str, r: Rig) -> str:
    return text.replace("{port}", str(r.direct)).replace("{cleartext}", str(r.cleartext)).replace("{TOKEN}", DECOY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    verdict: str
    injected: frozenset[str]


async def over_connect(asked: Asked, r: Rig) -> tuple[int, bytes]:
    if asked.scheme == "http":
        client = await r.dial(r.proxy)
        return await whole(client, asked, absolute=True)
    return await whole(await r.tunnel(asked.host, asked.port, sni=sni(asked)), asked)


async def over_direct(asked: Asked, r: Rig) -> tuple[int, bytes]:
    if asked.scheme == "http":
        return await whole(await r.dial(r.cleartext), asked)
    return await whole(await r.tls(sni(asked)), asked)


def sni(asked: Asked) -> str:
    return asked.host.removesuffix(".")  # RFC 6066 3: the name without its last dot, as curl sends it


async def whole(client: Client, asked: Asked, *, absolute: bool = False) -> tuple[int, bytes]:
    answer = await client.ask(asked.h1(absolute=absolute))
    client.close()
    return answer.status, answer.body


async def over_h2(asked: Asked, r: Rig) -> tuple[int, bytes]:
    opened = await r.tunnel("api.good.test", r.direct, alpn=("h2", "http/1.1"))
    assert opened.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    answer = await H2Client(opened.reader, opened.writer).ask(asked.h2())
    opened.close()
    return answer.status, answer.body


WAYS = {"connect": over_connect, "direct": over_direct, "h2": over_h2}


def said_by_explain(e: Explained) -> Said:
    match e.verdict:
        case Allow() as allow:
            return Said(status=200, verdict=allow.rule, injected=e.injected)
        case deny:
            return Said(status=deny.status, verdict=deny.reason.value, injected=frozenset())


def said_by_gateway(status: int, body: bytes, r: Rig) -> Said:
    record = r.records("intent", "deny")[-1]
    names = frozenset(record["binding"].split(",")) if "binding" in record else frozenset()
    if record["ev"] == "intent":
        return Said(status=status, verdict=record["rule"], injected=names)
    code = json.loads(body)["error"]["code"] if body else record["reason"]
    assert code == record["reason"]
    return Said(status=status, verdict=code, injected=names)


def applies(case: dict[str, Any], way: str) -> bool:
    if way not in case.get("via", WAYS):
        return False
    url = case["url"]
    if way == "h2":  # where the endpoint offers it: its own host
        return url.lower().startswith("https://api.good.test:")
    if way == "direct" and url.startswith("http://"):  # the port the client means is the listener's
        return "{cleartext}" in url
    return True


def test_the_table_is_large_enough() -> None:
    assert len(CASES) >= 100
    assert len({c["name"] for c in CASES}) == len(CASES)
    for way in WAYS:
        assert sum(applies(c, way) for c in CASES) >= 60


@pytest.mark.parametrize("way", WAYS)
def test_they_agree(way: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=BOTH, alpn=("h2", "http/1.1")) as r:
            differ = [d for case in CASES if applies(case, way) if (d := await difference(case, way, r))]
            assert differ == []

    asyncio.run(main())


async def difference(case: dict[str, Any], way: str, r: Rig) -> str:
    """What the two say differently, or what either says that the table does not."""
    asked = Asked.of(case, r)
    for target in (r.good, r.plain, r.evil):
        target.raw, target.seen, target.sessions = b"", [], []
    headers = [h.replace("{port}", str(r.direct)) for h in case.get("headers", [])]
    url = filled(case["url"].replace("{TOKEN}", "{{TOKEN}}"), r)
    expected = said_by_explain(explain(r.run.policy, "dev", case["method"], url, headers))
    status, body = await WAYS[way](asked, r)
    got = said_by_gateway(status, body, r)
    if got != expected or got.verdict != case["verdict"]:
        return f"{case['name']}: table {case['verdict']}, explain {expected}, gateway {got}"
    return sent_as_judged(case, asked, got, r)


def sent_as_judged(case: dict[str, Any], asked: Asked, said: Said, r: Rig) -> str:
    if said.status != 200:
        return "" if r.untouched else f"{case['name']}: refused, and a target saw it"
    seen = [s for t in (r.good, r.plain) for s in t.seen]
    h2_seen = [s for t in (r.good, r.plain) for session in t.sessions for s in session.seen]
    targets = [s.line.split()[1] for s in seen] + [s.values(b":path")[0] for s in h2_seen]
    credentials = [v for s in (*seen, *h2_seen) for v in s.values(b"authorization")]
    if targets != [case.get("sent", asked.target.decode()).encode()]:
        return f"{case['name']}: {targets} was sent"
    real = [v for v in credentials if SECRET.encode() in v or SECRET[::-1].encode() in v]
    return "" if real == credentials and len(real) == len(said.injected) else f"{case['name']}: {credentials} was sent"
