"""The gateway in two processes, the daemon's own and a worker: one judgement, one count, one ledger."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.runs import Run
from credgate.secretvalue import Secret
from credgate.workers import pool as workers_pool
from credgate.workers.pool import Workers
from rules.load import load_policy
from tests.credgate.gateway_rig import DECOY, POLICY, SECRET, Client, Rig, Seen, echo, read_body, rig
from tests.credgate.test_gateway_runs import second_run
from tests.credgate.test_grants_gateway import bounded

type Writer = asyncio.StreamWriter


def pool(r: Rig) -> Workers:
    assert r.gateway.workers is not None
    return r.gateway.workers


def worker_pid(r: Rig) -> int:
    return int(str(pool(r).rows()[1]["pid"]))


async def settle(r: Rig, run: Run | None = None) -> None:
    """Until the daemon has all that the worker has said: an answer comes behind it on the same socket."""
    await r.gateway.told(run or r.run)


async def clients(r: Rig, count: int) -> list[Client]:
    return [await r.tunnel() for _ in range(count)]


async def served_by(r: Rig, slot: int) -> Client:
    """A connection of one process: the daemon seems to have far more than its few, or none, for a moment."""
    words = pool(r).share._words
    for _ in range(50):
        before, daemon = words[slot], words[0]
        words[0] = 0 if slot == 0 else 1000
        client = await r.tunnel()
        words[0] = daemon + words[0] - (0 if slot == 0 else 1000)
        if words[slot] > before:
            return client
        client.close()  # on a busy machine that moment was too short
        await asyncio.sleep(0.05)
    raise AssertionError("it accepts nothing")


async def at_worker(r: Rig) -> Client:
    return await served_by(r, 1)


async def at_daemon(r: Rig) -> Client:
    return await served_by(r, 0)


def host(r: Rig) -> str:
    return f"api.good.test:{r.direct}"


async def asked(r: Rig, path: str) -> Client:
    """A connection of the worker's whose request has come to the target."""
    before, client = len(r.good.seen), await at_worker(r)
    client.writer.write(f"GET {path} HTTP/1.1\r\nHost: {host(r)}\r\n\r\n".encode())
    async with asyncio.timeout(60):
        while len(r.good.seen) == before:
            await asyncio.sleep(0.01)
    return client


async def killed(r: Rig) -> int:
    """Kill the worker and wait for another one; its pid."""
    before = worker_pid(r)
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(60):
        while len(pool(r).rows()) < 2 or worker_pid(r) == before or not pool(r)._live[1].up:
            await asyncio.sleep(0.02)
    return before


def two(tmp_path: Path, body: Callable[[Rig], Awaitable[None]], policy: str = POLICY, **more: Any) -> None:
    """Run `body` with two processes; afterwards the ledger is whole and every intent has one outcome."""

    async def main() -> None:
        async with rig(tmp_path, policy=policy, processes=2, **more) as r:
            await body(r)
        intents = [line["seq"] for line in r.records("intent")]
        assert sorted(line["intent_seq"] for line in r.records("outcome")) == intents
        assert verify(tmp_path / "ledger").status is Status.SOUND

    asyncio.run(main())


def test_both_serve_and_judge_alike(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        alarms: list[tuple[str, str]] = []
        r.run.alarm = lambda kind, detail: alarms.append((kind, detail))
        some = await clients(r, 8)
        loads: list[Any] = [row["connections"] for row in pool(r).rows()]
        assert sum(map(int, loads)) == 8
        assert min(map(int, loads)) >= 2, loads

        async def tell(seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
            await read_body(seen, reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(SECRET), SECRET.encode()))

        for client in some:
            r.good.script = echo
            assert (await client.get("/ok/a", host(r))).status == 200
            assert r.good.seen[-1].values(b"authorization") == [b"Bearer " + SECRET.encode()]
            assert (await client.get("/no", host(r))).code == "no_rule"
            assert (await client.get("/ok/a", host(r), X_Note=SECRET)).code == "secret_misplaced"
            r.good.script = tell
            assert SECRET.encode() not in (await client.get("/ok/a", host(r))).body
        await settle(r)
        assert len(r.good.seen) == 16
        assert Counter(r.reasons()) == {"no_rule": 8, "secret_misplaced": 8}
        # each at the daemon too, though half were seen by the worker
        assert Counter(kind for kind, _ in alarms) == {"secret_misplaced": 8, "secret_scrubbed": 8}
        assert (r.run.allowed, r.run.denied) == (16, 16)
        tags = {line["ua_tag"] for line in r.records("intent")}
        assert {seen.values(b"user-agent")[0].decode() for seen in r.good.seen} == tags
        assert {line["proof"] for line in r.records("intent", "deny")} == {"proof-1"}

    two(tmp_path, body)


@pytest.mark.parametrize(
    ("binding", "role", "passes", "reason"),
    [
        ("max_uses = 7\n", "", 7, "uses_exhausted"),
        ('rate = "5/h"\n', "", 5, "rate_exceeded"),
        ("", "budget = { requests = 9 }\n", 9, "budget_exhausted"),
        ("", 'budget = { bytes_out = "1MiB" }\n', 32, ""),  # a bound on bytes: one process alone serves it
        ("", "", 32, ""),
    ],
)
def test_bounds_are_exact_over_both(binding: str, role: str, passes: int, reason: str, tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        alone = "bytes_out" in role
        # by turns, as no busy machine would share them out by itself
        some = await clients(r, 8) if alone else [await served_by(r, number % 2) for number in range(8)]
        assert r.gateway.processes()["workers_died"] == 0

        async def ask(client: Client) -> list[str]:
            answers = [await client.get("/ok/a", host(r)) for _ in range(4)]
            return ["" if answer.status == 200 else answer.code for answer in answers]

        found = Counter(code for codes in await asyncio.gather(*map(ask, some)) for code in codes)
        assert found == Counter([""] * passes + [reason] * (32 - passes))
        assert len(r.good.seen) == passes
        shares = [int(str(row["connections"])) for row in pool(r).rows()]
        assert shares == ([8, 0] if alone else [4, 4])

    two(tmp_path, body, bounded(binding, role))


def test_rights_that_are_taken_back(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        mine, theirs = await at_daemon(r), await at_worker(r)
        for client in (mine, theirs):
            assert (await client.get("/ok/a", host(r))).status == 200
        r.run.revoked_bindings.add("swap")
        assert await r.gateway.cut_all(r.run, "the binding was revoked", "swap") == 0
        assert (await theirs.get("/ph/a", host(r), Authorization=f"token {DECOY}")).code == "revoked"
        r.run.revoked_bindings.add("token")
        assert await r.gateway.cut_all(r.run, "the binding was revoked", "token") == 2
        assert await theirs.rest() == b""
        theirs = await at_worker(r)
        assert (await theirs.get("/ok/a", host(r))).code == "revoked"
        assert (await theirs.get("/free/a", host(r))).status == 200
        r.run.paused = True
        await r.gateway.told(r.run)
        assert (await theirs.get("/free/a", host(r))).code == "paused"
        r.run.paused = False
        await r.gateway.told(r.run)
        assert (await theirs.get("/free/a", host(r))).status == 200
        r.run.revoked = True
        assert await r.gateway.cut_all(r.run, "the run was revoked") == 1

    two(tmp_path, body)


def test_what_the_worker_has_not_heard_is_still_decided(tmp_path: Path) -> None:
    """The daemon looks at its own state at each claim, whatever the worker believes."""

    async def body(r: Rig) -> None:
        client = await at_worker(r)
        assert (await client.get("/ok/a", host(r))).status == 200
        for change, back in (({"revoked": True}, {"revoked": False}), ({"proof": ""}, {"proof": "proof-1"})):
            for name, value in change.items():
                setattr(r.run, name, value)
            assert (await client.get("/ok/a", host(r))).code in ("revoked", "proof_missing")
            for name, value in back.items():
                setattr(r.run, name, value)
        r.run.generation += 1
        assert (await client.get("/ok/a", host(r))).code == "revoked"
        assert len(r.good.seen) == 1

    two(tmp_path, body)


def test_a_policy_that_is_replaced(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        client = await at_worker(r)
        assert (await client.get("/free/a", host(r))).status == 200
        text = POLICY.replace("/free/*", "/other/*").format(
            ca=r.extra["ca"].ca,
            good=r.good.port,
            plain=r.plain.port,
            h2=r.good.port,
            proxy=r.proxy,
            direct=r.direct,
            cleartext=r.cleartext,
        )
        r.run.policy = load_policy(text.encode(), packs={}, base_dir="/")
        r.run.generation += 1
        await r.gateway.swapped(r.run, "the policy was reloaded")
        assert await client.rest() == b""
        client = await at_worker(r)
        assert (await client.get("/free/a", host(r))).code == "no_rule"
        assert (await client.get("/other/a", host(r))).status == 200
        role = replace(r.run.role_rule, budget=replace(r.run.role_rule.budget, bytes_out=1 << 20))
        r.run.policy = replace(r.run.policy, roles={"dev": role})
        r.run.generation += 1
        await r.gateway.swapped(r.run, "the policy was reloaded")
        await clients(r, 4)
        assert [row["connections"] for row in pool(r).rows()] == [4, 0]

    two(tmp_path, body)


def test_a_secret_that_was_set_anew_is_sent_at_once(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        client = await at_worker(r)
        for value in (SECRET, SECRET.swapcase(), SECRET, SECRET[1:]):
            r.vault.values["token"] = value
            assert (await client.get("/ok/a", host(r))).status == 200
            assert r.good.seen[-1].values(b"authorization") == [b"Bearer " + value.encode()]
        del r.vault.values["token"]
        assert (await client.get("/ok/a", host(r))).code == "secret_unavailable"
        # what the worker knows is looked for in the daemon's process too, and the other way round
        mine = await at_daemon(r)
        assert (await mine.get("/free/a", host(r), X_Note=SECRET.swapcase())).code == "secret_misplaced"
        r.vault.values["token"] = "another-value-0123456789"
        assert (await mine.get("/ok/a", host(r))).status == 200
        assert (await client.get("/free/a", host(r), X_Note="another-value-0123456789")).code == "secret_misplaced"

    two(tmp_path, body)


def test_another_run_and_its_end(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        run, listeners = second_run(r)
        await r.gateway.serve(run, listeners)
        mine, r.proxy = r.proxy, listeners[0].port
        client = await at_worker(r)
        r.proxy = mine
        assert (await client.get("/ph/a", host(r), Authorization=f"token {DECOY}")).code == "placeholder_misplaced"
        assert (await client.get("/ph/a", host(r), Authorization=f"token {DECOY[::-1]}")).status == 200
        first = await at_worker(r)
        await r.gateway.close("run-2")
        assert await client.rest() == b""
        assert (await first.get("/ok/a", host(r))).status == 200
        # of a run that is over nobody knows the placeholder
        assert (await first.get("/ph/a", host(r), Authorization=f"token {DECOY[::-1]}")).status == 200
        assert run.allowed == 1
        assert {line["run"] for line in r.records("deny")} == {"run-2"}

    two(tmp_path, body)


def test_a_worker_that_dies_leaves_no_request_without_its_end(tmp_path: Path) -> None:
    """Killed with requests at the target, in an answer, and refusals counted: each is written, another one is there."""

    async def body(r: Rig) -> None:
        release = asyncio.Event()

        async def hang(seen: Seen, _reader: object, writer: Writer) -> None:
            if b"/ok/part" in seen.line:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
                await writer.drain()
            await release.wait()

        mine = await at_daemon(r)
        refused = await at_worker(r)
        for _ in range(40):
            assert (await refused.get("/no", host(r))).code == "no_rule"
        r.good.script = hang
        open_ones = [await asked(r, path) for path in ("/ok/a", "/ok/part") * 2]
        for client in open_ones[1::2]:
            await client.reader.readuntil(b"part")
        before = await killed(r)
        for client in open_ones:
            await client.rest()
        ends = r.records("outcome")
        assert [line["reason"] for line in ends] == ["worker_died"] * 4
        (alarm,) = r.records("alarm")
        assert alarm["reason"] == "worker_died"
        assert f"pid {before}, status -9; requests that were open: 4" in alarm["detail"]
        denied = [line.get("count", 1) for line in r.records("deny")]
        assert sum(denied) == 40 > len(denied)
        assert r.run.denied == 40
        release.set()
        r.good.script = echo
        assert (await mine.get("/ok/a", host(r))).status == 200
        assert (await (await at_worker(r)).get("/ok/a", host(r))).status == 200
        await settle(r)
        row = pool(r).rows()[1]
        assert (row["requests"], r.gateway.processes()["workers_died"]) == (1, 1)

    two(tmp_path, body)


@pytest.mark.parametrize(("beat", "replaced"), [(0.1, True), (60.0, False)])
def test_a_worker_that_is_stuck_is_replaced(
    beat: float, replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_pool, "BEAT", beat)

    async def body(r: Rig) -> None:
        before, open_one = worker_pid(r), await asked(r, "/ok/a")
        await open_one.answer()
        monkeypatch.setattr(workers_pool, "ANSWER", 0.3)
        os.kill(before, signal.SIGSTOP)
        try:
            async with asyncio.timeout(20 if replaced else 1):
                while not r.records("alarm"):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            assert not replaced
            os.kill(before, signal.SIGCONT)
            return
        assert replaced
        monkeypatch.setattr(workers_pool, "ANSWER", 10.0)
        async with asyncio.timeout(60):
            while len(pool(r).rows()) < 2 or not pool(r)._live[1].up:
                await asyncio.sleep(0.02)
        assert (await (await at_worker(r)).get("/ok/a", host(r))).status == 200

    two(tmp_path, body)


@pytest.mark.parametrize("when", ["fetching", "syncing"])
def test_a_worker_that_dies_before_it_may_send(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(r: Rig) -> None:
        reached, release = asyncio.Event(), asyncio.Event()
        ledger, fetch = r.extra["ledger"], r.vault.fetch
        tell, waits = ledger.tell, list[Any]()

        async def wait(*args: Any) -> Any:
            reached.set()
            await release.wait()
            return await fetch(*args)

        def keep(told: Any) -> None:
            reached.set()
            waits.append(told)

        client = await at_worker(r)
        if when == "fetching":
            monkeypatch.setattr(r.vault, "fetch", wait)
        else:
            monkeypatch.setattr(ledger, "tell", keep)
        client.writer.write(f"GET /ok/a HTTP/1.1\r\nHost: {host(r)}\r\n\r\n".encode())
        await reached.wait()
        os.kill(worker_pid(r), signal.SIGKILL)
        await client.rest()
        while not r.records("alarm"):
            await asyncio.sleep(0.01)
        release.set()
        monkeypatch.undo()
        for told in waits:
            tell(told)
        await asyncio.sleep(0.05)
        assert r.untouched
        written = 0 if when == "fetching" else 1
        assert [line["reason"] for line in r.records("outcome")] == ["worker_died"] * written
        assert len(r.records("intent")) == written

    two(tmp_path, body)


def test_the_client_leaves_while_its_claim_is_decided(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        reached, release = asyncio.Event(), asyncio.Event()
        fetch = r.vault.fetch

        async def wait(*args: Any) -> Secret:
            reached.set()
            await release.wait()
            return await fetch(*args)

        client = await at_worker(r)
        r.vault.fetch = wait  # type: ignore[method-assign]
        client.writer.write(f"GET /ok/a HTTP/1.1\r\nHost: {host(r)}\r\n\r\n".encode())
        await reached.wait()
        client.close()
        await asyncio.sleep(0.05)
        release.set()
        await asyncio.sleep(0.1)
        await settle(r)
        assert r.good.seen == []

    two(tmp_path, body)


CONFINED = """
import os, sys
from credgate.workers.main import confine
if sys.argv[1] == "confined":
    confine()
here = sys.argv[2]
for call, *args in ((open, here + "/new", "w"), (os.unlink, here + "/old"), (os.kill, os.getppid(), 0)):
    try:
        call(*args)
        print("done")
    except OSError as error:
        print(error.errno)
print(open(sys.argv[2] + "/read").read())
"""


@pytest.mark.parametrize(("how", "said"), [("free", ["done"] * 3), ("confined", ["13", "13", "1"])])
def test_a_worker_reads_and_writes_nothing(how: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    (tmp_path / "read").write_text("text")
    argv = [sys.executable, "-c", CONFINED, how, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*said, "text"]


def test_nothing_of_a_secret_is_in_a_workers_arguments(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert (await (await at_worker(r)).get("/ok/a", host(r))).status == 200
        process = Path(f"/proc/{worker_pid(r)}")
        words = (process / "cmdline").read_bytes().split(b"\0")[1:]
        assert words[:3] == [b"-I", b"-m", b"credgate.workers.main"]
        assert words[3].isdigit()
        assert words[4:] == [b""]
        assert (process / "environ").read_bytes() == b"LANG=C.UTF-8\0"
        status = (process / "status").read_text()
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
        assert (process / "cwd").readlink() == Path("/")
        links = [os.readlink(fd) for fd in (process / "fd").iterdir() if fd.exists()]
        assert not [link for link in links if str(tmp_path) in link]  # the ledger's files are no descriptor of its

    two(tmp_path, body)


def test_an_answer_that_refuses_the_credential_passes(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        async def unauthorized(seen: Seen, reader: asyncio.StreamReader, writer: Writer) -> None:
            await read_body(seen, reader)
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")

        r.good.script = unauthorized
        for client in (await at_daemon(r), await at_worker(r)):
            assert (await client.get("/ok/a", host(r))).status == 401
        await settle(r)

    two(tmp_path, body)
