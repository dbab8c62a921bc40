"""The attack table, in both lanes: what the target got, what the client got, and what the ledger says of it."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from credgate.gateway import floods
from tests.credgate.attack_table import CASES, ELSEWHERE, HERE, LATER, ROWS, USERS, Case
from tests.credgate.gateway_rig import DECOY, POLICY, SECRET, Client, Rig, rig
from tests.credgate.h2_rig import H2Client

BOTH = POLICY.replace('alpn = ["http/1.1"]', 'alpn = ["h2", "http/1.1"]', 1)
WAYS = ("connect", "direct", "h2")
NAME = b"api.good.test"
ENDED: set[Case] = set()


def test_every_row_is_run_or_says_why_not() -> None:
    told = {case.row for case in CASES} | set(ELSEWHERE) | set(LATER)
    assert set(ROWS) | set(USERS) <= told
    assert not {case.row for case in CASES} & set(LATER)
    here = Path(__file__).parent
    for tests in ELSEWHERE.values():
        for name in tests:
            file, _, test = name.partition("::")
            assert f"def {test}(" in (here / file).read_text(), name


def fill(text: bytes, r: Rig) -> bytes:
    host = b"%s:%d" % (NAME, r.direct)
    return (
        text.replace(HERE, host)
        .replace(b"{name}", NAME)
        .replace(b"{NAME}", NAME.upper())
        .replace(b"{port}", b"%d" % r.direct)
    )


def over_h1(case: Case, r: Rig) -> bytes:
    ask = case.ask
    if ask.raw:
        return fill(ask.raw, r)
    length = [b"Content-Length: %d" % len(ask.body)] if ask.body or ask.method == b"POST" else []
    fields = [name + b": " + value for name, value in ask.fields]
    lines = [b"%s %s HTTP/1.1" % (ask.method, ask.target), b"Host: " + fill(ask.host, r), *fields, *length]
    return b"\r\n".join(lines) + b"\r\n\r\n" + ask.body


def over_h2(case: Case, r: Rig) -> list[tuple[bytes, bytes]]:
    ask = case.ask
    pseudo = {b":method": ask.method, b":scheme": b"https", b":authority": fill(ask.host, r), b":path": ask.target}
    own = {name: fill(value, r) for name, value in ask.h2}
    pseudo |= {name: value for name, value in own.items() if name in pseudo}
    rest = [(name, value) for name, value in own.items() if name not in pseudo]
    return [*pseudo.items(), *rest, *ask.fields]


async def asked(case: Case, way: str, r: Rig) -> tuple[int, bytes, bytes]:
    """Status, body, and everything that the client got."""
    if way == "h2":
        opened = await r.tunnel(NAME.decode(), alpn=("h2", "http/1.1"))
        answer = await H2Client(opened.reader, opened.writer).ask(over_h2(case, r), case.ask.body)
        opened.close()
        return answer.status, answer.body, answer.body + b"".join(n + v for n, v in answer.fields.items())
    client = await (r.tunnel() if way == "connect" else r.tls())
    raw = over_h1(case, r)
    answer = await client.ask(raw)
    more = await behind(client)
    client.close()
    return answer.status, answer.body, answer.head + answer.body + more


async def behind(client: Client) -> bytes:
    """What the client gets behind its one answer, at once: nothing, or a second request was seen."""
    try:
        async with asyncio.timeout(0.02):
            return await client.reader.read(4096)
    except (TimeoutError, ConnectionError):
        return b""


def arrived(r: Rig) -> bytes:
    """All that any target got, HTTP/2 spelled out."""
    streams = [s for session in r.good.sessions for s in session.seen]
    spelled = b"".join(name + b": " + value + b"\n" for s in streams for name, value in s.fields)
    return r.good.raw + r.evil.raw + r.plain.raw + spelled


def requests(r: Rig) -> int:
    return len(r.good.seen) + len(r.evil.seen) + sum(len(session.seen) for session in r.good.sessions)


async def difference(case: Case, way: str, r: Rig) -> str:
    for target in (r.good, r.evil, r.plain):
        target.raw, target.seen, target.sessions = b"", [], []
    before, started = len(r.records("deny", "intent", "outcome")), time.monotonic()
    status, body, client = await asked(case, way, r)
    if time.monotonic() - started > 20:
        return "it hung"
    lines = r.records("deny", "intent", "outcome")[before:]
    if SECRET.encode() in client or b"canary" in json.dumps(lines).encode():
        return f"a secret in {client!r} or {lines}"
    if case.status == 200:
        return passed(case, status, lines, r)
    return refused(case, way, (status, body, client), lines, r)


def refused(case: Case, way: str, got: tuple[int, bytes, bytes], lines: list[dict[str, Any]], r: Rig) -> str:
    status, body, client = got
    if arrived(r):
        return f"a target got {arrived(r)!r}"
    if [line["ev"] for line in lines] != ["deny"]:
        return f"the ledger says {lines}"
    (line,) = lines
    if way == "h2" and not status and line["reason"] == "malformed":
        ENDED.add(case)  # HTTP/2 itself does not have it: the stream or the connection ended before it was a request
        return ""
    if (status, line["reason"]) != (case.status, case.code):
        return f"{status} {line['reason']}"
    if case.ask.method == b"HEAD":
        return "" if not body else f"a body for HEAD: {body!r}"
    return told(case, body, client, line)


def told(case: Case, body: bytes, client: bytes, line: dict[str, Any]) -> str:
    error = json.loads(body)["error"]
    said = (error["type"], error["code"], error["request_id"], "run-1")
    if said != ("credgate_denied", case.code, line["request_id"], line["run"]):
        return f"the client was told {said}, the ledger {line}"
    if client.count(b'"request_id"') != 1 or b"text/html" in client:
        return f"the client got {client!r}"
    return ""


def passed(case: Case, status: int, lines: list[dict[str, Any]], r: Rig) -> str:
    got = arrived(r)
    if status != 200 or [line["ev"] for line in lines] != ["intent", "outcome"]:
        return f"{status}, {lines}"
    if requests(r) != 1:
        return f"{requests(r)} requests at the target"
    missing = [text for text in case.sent if fill(text, r) not in got]
    surplus = [text for text in (*case.absent, DECOY.encode()) if fill(text, r) in got]
    secrets = got.count(SECRET.encode())
    if missing or secrets != ("binding" in lines[0]):
        return f"{missing} not in, or {secrets} secrets in {got!r}"
    body = case.ask.body
    if surplus and not (surplus == [DECOY.encode()] and DECOY.encode() in body):
        return f"{surplus} in {got!r}"
    if lines[1]["req_bytes"] != len(body):
        return f"{lines[1]}"
    return ""


@pytest.mark.parametrize("way", WAYS)
def test_the_table(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "LINES", 1 << 20)  # each refusal has its own line, however many are alike
    lane = "h2" if way == "h2" else "h1"

    async def main() -> None:
        async with rig(tmp_path, policy=BOTH, alpn=("h2", "http/1.1")) as r:
            mine = [case for case in CASES if lane in case.ask.lanes]
            assert len(mine) > 100
            wrong = {f"{c.row} {c.name}": d for c in mine if (d := await difference(c, way, r))}
            assert len(ENDED) < len(mine) / 3
            assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_one_byte_more_and_the_second_request_is_judged_too(way: str, tmp_path: Path) -> None:
    """What stands behind a request is a request, with a line of its own."""

    async def main() -> None:
        async with rig(tmp_path, policy=BOTH, alpn=("http/1.1",)) as r:
            if way == "h2":
                return
            client = await (r.tunnel() if way == "connect" else r.tls())
            first = b"POST /ok/a HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc"
            client.writer.write(fill(first + b"GET /smug HTTP/1.1\r\nHost: evil.test\r\n\r\n", r))
            assert (await client.answer()).status == 200
            assert (await client.answer()).code == "identity_mismatch"
            assert b"smug" not in r.good.raw
            assert [x["ev"] for x in r.records("intent", "deny")] == ["intent", "deny"]

    asyncio.run(main())


def test_a_refused_host_is_not_looked_up(tmp_path: Path) -> None:
    """A name that leaves in a query is a way out by itself."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            asked_for: list[str] = []

            class Names(dict[str, Any]):
                def __contains__(self, name: object) -> bool:
                    asked_for.append(str(name))
                    return super().__contains__(name)

            spied = Names(r.names)
            r.names.clear()
            r.names.update(spied)
            pins = r.gateway._hooks.judge.dialler.pins
            resolve = pins._resolve

            async def spy(host: str, done: Callable[[], None]) -> Any:
                asked_for.append(host)
                return await resolve(host, done)

            pins._resolve = spy
            for host, path in (("c2VjcmV0.evil.test", "/a"), ("api.good.test", "/no"), ("up.good.test", "/a b")):
                client = await r.tunnel(host)
                client.writer.write(
                    b"GET %s HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (path.encode(), host.encode(), r.direct)
                )
                await client.reader.readuntil(b"\r\n\r\n")
            assert asked_for == []
            client = await r.tunnel("up.good.test")
            assert (await client.get("/a", host=f"up.good.test:{r.direct}")).status == 200
            assert asked_for == ["up.good.test"]

    asyncio.run(main())


@pytest.mark.parametrize("place", ["header", "query", "path", "basic", "other header"])
@pytest.mark.parametrize("host", ["up.good.test", "plain.good.test"])
def test_a_placeholder_at_another_host(host: str, place: str, tmp_path: Path) -> None:
    async def main() -> None:
        import base64

        async with rig(tmp_path) as r:
            plain = host.startswith("plain")
            client = await (r.dial(r.cleartext) if plain else r.tunnel(host))
            port = r.cleartext if plain else r.direct
            target = {"query": f"/ok/a?k={DECOY}", "path": f"/ok/{DECOY}"}.get(place, "/ok/a")
            value = {
                "header": {"Authorization": f"Bearer {DECOY}"},
                "basic": {"Authorization": "Basic " + base64.b64encode(f"x:{DECOY}".encode()).decode()},
                "other header": {"X_Token": DECOY},
            }.get(place, {})
            answer = await client.get(target, host=f"{host}:{port}", **value)
            assert (answer.status, answer.code) == (403, "placeholder_misplaced")
            assert r.untouched
            assert r.vault.fetched == []

    asyncio.run(main())


def test_one_verdict_on_the_forward_path_and_in_a_tunnel(tmp_path: Path) -> None:
    """Every case that is about path and method, through the absolute form and through the port itself."""

    async def main() -> None:
        async with rig(tmp_path) as r:
            host = b"plain.good.test:%d" % r.cleartext
            differ = []
            cases = [c for c in CASES if not c.ask.raw and not c.ask.h2 and c.ask.host == HERE and not c.ask.fields]
            for case in (c for c in cases if c.ask.target.startswith(b"/") and not c.ask.body):
                said = []
                for forward in (True, False):
                    client = await r.dial(r.proxy if forward else r.cleartext)
                    target = b"http://" + host + case.ask.target if forward else case.ask.target
                    answer = await client.ask(b"%s %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (case.ask.method, target, host))
                    said.append((answer.status, r.records("deny", "intent")[-1].get("reason", "allow")))
                    client.close()
                if said[0] != said[1]:
                    differ.append((case.name, said))
            assert len(cases) > 40
            assert differ == []

    asyncio.run(main())
