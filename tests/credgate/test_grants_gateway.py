"""ttl, uses, rate, deadline and budget of a run as its client meets them: 403, the reason, and nothing sent."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from credgate.gateway import standing
from credgate.runs import Run, now
from rules.grants import SECOND, Spent, Use
from rules.intersect import child_policy
from rules.load import load_policy
from tests.credgate.gateway_rig import POLICY, Rig, Seen, echo, rig

TOKEN = 'place = "header:authorization"\nformat = "Bearer {{secret}}"\n'
ROLE = "[role.dev]\n"


def bounded(binding: str = "", role: str = "") -> str:
    return POLICY.replace(TOKEN, TOKEN + binding).replace(ROLE, ROLE + role.replace("{", "{{").replace("}", "}}"))


def aged(run: Run, seconds: int) -> None:
    run.spent = replace(run.spent, started=now() - seconds * SECOND)


async def code(r: Rig, path: str = "/ok/a") -> str:
    client = await r.tunnel()
    answer = await client.get(path, f"api.good.test:{r.direct}")
    client.close()
    return "" if answer.status == 200 else answer.code


async def codes(r: Rig, count: int, path: str = "/ok/a") -> list[str]:
    client = await r.tunnel()
    answers = [await client.get(path, f"api.good.test:{r.direct}") for _ in range(count)]
    return ["" if answer.status == 200 else f"{answer.status} {answer.code}" for answer in answers]


def run(tmp_path: Path, body: Any, policy: str) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=policy) as r:
            await body(r)

    asyncio.run(main())


def test_uses_are_refused_once_they_are_used_up_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert await codes(r, 3) == ["", "", "403 uses_exhausted"]
        assert await codes(r, 2, "/free/a") == ["", ""]
        assert len(r.good.seen) == 4
        (line,) = r.records("deny")
        assert line["reason"] == "uses_exhausted"
        assert "max_uses of binding 'token': 2" in line["detail"]

    run(tmp_path, body, bounded("max_uses = 2\n"))


def test_a_request_that_is_refused_uses_nothing_up(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert await codes(r, 3, "/ok/mint/a") == ["403 deny_rule"] * 3
        r.vault.values.pop("token")
        assert await codes(r, 2) == ["403 secret_unavailable"] * 2
        r.vault.values["token"] = "back"
        assert await codes(r, 2) == ["", "403 uses_exhausted"]

    run(tmp_path, body, bounded("max_uses = 1\n"))


def test_a_ttl_refuses_the_next_request_on_a_connection_that_lives(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        client = await r.tunnel()
        host = f"api.good.test:{r.direct}"
        assert (await client.get("/ok/a", host)).status == 200
        aged(r.run, 3600)
        assert (await client.get("/ok/a", host)).code == "expired"
        assert (await client.get("/free/a", host)).status == 200

    run(tmp_path, body, bounded('ttl = "1h"\n'))


def test_the_deadline_refuses_everything(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert [await code(r), await code(r, "/free/a")] == ["", ""]
        aged(r.run, 3600)
        assert [await code(r), await code(r, "/free/a")] == ["expired", "expired"]

    run(tmp_path, body, bounded(role='deadline = "1h"\n'))


def test_a_rate_refuses_with_403_and_gives_back_with_time(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert await codes(r, 3) == ["", "", "403 rate_exceeded"]
        r.run.spent = replace(r.run.spent, full=dict.fromkeys(r.run.spent.full, 0))
        assert await codes(r, 1) == [""]

    run(tmp_path, body, bounded('rate = "2/d"\n'))


def test_a_budget_of_requests_counts_those_without_a_secret_too(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert await codes(r, 1) == [""]
        assert await codes(r, 2, "/free/a") == ["", "403 budget_exhausted"]
        assert r.run.requests() == {"allow": 2, "deny": 1}

    run(tmp_path, body, bounded(role="budget = { requests = 2 }\n"))


def test_a_body_over_the_budget_is_refused_before_a_byte_of_it(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        client = await r.tunnel()
        head = b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nContent-Length: %d\r\n\r\n"
        assert (await client.ask(head % (r.direct, 2000))).code == "budget_exhausted"
        assert r.untouched
        client = await r.tunnel()
        assert (await client.ask(head % (r.direct, 500) + b"x" * 500)).status == 200

    run(tmp_path, body, bounded(role='budget = { bytes_out = "1KiB" }\n'))


async def drink(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Keep every byte of a body, as it is framed, until its end."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            seen.body += data
    writer.close()


def test_a_chunked_body_is_broken_off_at_the_budget(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        r.good.script = drink
        client = await r.tunnel()
        client.writer.write(
            b"POST /ok/a HTTP/1.1\r\nHost: api.good.test:%d\r\nTransfer-Encoding: chunked\r\n\r\n" % r.direct
        )
        for _ in range(40):
            client.writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            await asyncio.sleep(0.005)
        rest = await client.rest()  # nothing, or the refusal: there was no answer yet
        assert rest == b"" or b"budget_exhausted" in rest
        async with asyncio.timeout(60):
            await r.good.closed.wait()
        (line,) = r.records("outcome")
        assert line["reason"] == "budget_exhausted"
        assert r.good.seen[0].body.count(b"x") <= line["req_bytes"] <= 8192
        assert b"\r\n0\r\n" not in r.good.seen[0].body  # nor is the body ended as if it were whole
        r.good.script = echo
        assert await code(r) == ""  # what a short one has left

    run(tmp_path, body, bounded(role='budget = { bytes_out = "8KiB" }\n'))


# Children: their own bounds and those above, in one pair of counters each


def child_of(r: Rig, **changes: Any) -> Run:
    """A child run of the rig's, which the rig's listeners serve from then on."""
    policy = child_policy(r.run.policy, "dev", "dev")
    child = Run(
        id="run-2", policy=policy, role="dev", gateway_ip=r.run.gateway_ip, proxy_port=r.run.proxy_port, proof="proof-2"
    )
    r.run.adopt(child)
    for instance in r.gateway._instances["run-1"]:
        instance.run = child
    for key, value in changes.items():
        setattr(child, key, value)
    return child


def test_a_child_spends_what_its_parent_has(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert await codes(r, 1) == [""]
        child = child_of(r)
        assert await codes(r, 2) == ["", "403 uses_exhausted"]
        assert (r.run.spent.uses["token"], child.spent.uses["token"]) == (2, 1)
        assert (r.run.spent.requests, child.spent.requests) == (2, 1)

    run(tmp_path, body, bounded("max_uses = 2\n", "budget = { requests = 9 }\n"))


def test_a_child_without_a_parent_has_the_bound_to_itself(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        assert await codes(r, 1) == [""]
        child = child_of(r)
        child.above = None
        assert await codes(r, 3) == ["", "", "403 uses_exhausted"]

    run(tmp_path, body, bounded("max_uses = 2\n"))


def test_a_child_ends_with_its_parents_time_and_rights(tmp_path: Path) -> None:
    async def body(r: Rig) -> None:
        child_of(r)
        assert await code(r) == ""
        aged(r.run, 3600)
        assert await code(r) == "expired"
        aged(r.run, 0)
        r.run.revoked_bindings.add("token")
        assert [await code(r), await code(r, "/free/a")] == ["revoked", ""]
        r.run.paused = True
        assert await code(r, "/free/a") == "paused"
        r.run.revoked = True
        assert await code(r, "/free/a") == "revoked"

    run(tmp_path, body, bounded('ttl = "1h"\n'))


def test_a_new_run_begins_with_nothing_spent() -> None:
    """After a crash nothing is rebuilt: no run outlives its daemon."""
    fresh = Run(id="r", policy=None, role="dev", gateway_ip="", proxy_port=0)  # type: ignore[arg-type]
    assert fresh.spent == Spent(started=fresh.spent.started)


@pytest.mark.parametrize(
    "role", ["", "budget = {requests = 3}\n", 'budget = {bytes_out = "35B"}\n', 'deadline = "1s"\n']
)
@pytest.mark.parametrize("binding", ["", "max_uses = 5\n", 'rate = "2/m"\n', 'ttl = "1s"\n'])
def test_requests_of_one_moment_spend_what_single_ones_do(
    binding: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a run below another one, whose bounds are its own too."""
    monkeypatch.setattr(standing, "now", lambda: 7 * SECOND)
    text = bounded(binding, role).format(ca="/ca", good=1, plain=2, h2=1, proxy=3, direct=4, cleartext=5)
    policy = load_policy(text.encode(), packs={}, base_dir="/")
    use = Use(bindings=(policy.bindings["token"],), head=10)
    for age, below in ((0, False), (0, True), (3, False)):
        for count in (1, 2, 4, 8):
            runs = [Run(id="r", policy=policy, role="dev", gateway_ip="", proxy_port=1) for _ in range(4)]
            single, several = runs[:2]
            for one, parent in zip(runs[:2], runs[2:], strict=True):
                one.spent = parent.spent = Spent(started=(7 - age) * SECOND)
                if below:
                    parent.adopt(one)
            refused = [standing.charge(single, use) for _ in range(count)]
            may, denied = standing.charge_all(several, use, count)
            assert refused == [None] * may + [denied] * (count - may)
            assert single.spent == several.spent and runs[2].spent == runs[3].spent
            assert (denied is None) == (may == count)
