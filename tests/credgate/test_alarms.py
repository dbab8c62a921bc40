"""Alarms: told once in a while, counted always, with the consequence that the role chose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from credgate import alarms
from credgate.resolverevents import ResolverEvents
from credgate.rights import resume
from credgate.runs import Run
from tests.credgate.gateway_rig import DECOY, POLICY, Rig, rig
from tests.credgate.live_rig import Live
from tests.credgate.test_revoke import ended, keep_alive

ROLE = "[role.dev]\n"


@asynccontextmanager
async def lived(tmp: Path, on_alarm: str) -> AsyncIterator[tuple[Rig, Live]]:
    async with rig(tmp, policy=POLICY.replace(ROLE, f'{ROLE}on_alarm = "{on_alarm}"\n')) as r:
        live = Live(r, r.run, tmp)
        try:
            yield r, live
        finally:
            live.close()


async def misplace(r: Rig) -> str:
    """Send the decoy of one binding where another one's secret goes."""
    client = await r.tunnel()
    answer = await client.get("/ok/a", f"api.good.test:{r.direct}", Authorization=f"Bearer {DECOY}")
    client.close()
    return answer.code


async def code(r: Rig, path: str = "/ok/a") -> str:
    client = await r.tunnel()
    answer = await client.get(path, f"api.good.test:{r.direct}")
    client.close()
    return "" if answer.status == 200 else answer.code


def run(tmp_path: Path, on_alarm: str, body: Any) -> None:
    async def main() -> None:
        async with lived(tmp_path, on_alarm) as (r, live):
            await body(r, live)

    asyncio.run(main())


def test_notify_says_so_and_goes_on(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        assert await misplace(r) == "placeholder_misplaced"
        (line,) = r.records("alarm")
        assert (line["reason"], line["verdict"], line["run"]) == ("placeholder_misplaced", "notify", "run-1")
        (said,) = live.told()
        assert (said["ev"], said["kind"], said["action"]) == ("alarm", "placeholder_misplaced", "notify")
        assert DECOY not in str(said) + str(line)
        assert await code(r) == ""
        assert not live.alarms.killed.is_set()

    run(tmp_path, "notify", body)


def test_a_plain_refusal_is_no_alarm(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        assert await code(r, "/nowhere") == "no_rule"
        assert r.records("alarm") == live.told() == []
        assert await code(r) == ""

    run(tmp_path, "pause", body)


def test_pause_refuses_everything_until_it_is_resumed(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        open_one = await keep_alive(r)
        assert await misplace(r) == "placeholder_misplaced"  # the refusal itself still comes through
        assert await code(r, "/free/a") == "paused"
        assert await ended(open_one) < 1.0
        assert r.records("alarm")[0]["verdict"] == "pause"
        await resume({"run-1": live}, "run-1")  # type: ignore[dict-item]
        assert [await code(r, "/free/a"), await code(r)] == ["", ""]
        assert [line["reason"] for line in r.records("grant")] == ["resumed"]
        await misplace(r)  # at once again: a pause has its line, however soon
        assert await code(r) == "paused"
        assert [line["verdict"] for line in r.records("alarm")] == ["pause", "pause"]
        assert len(live.told()) == 2

    run(tmp_path, "pause", body)


def test_a_pause_holds_children_too(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        child = Run(id="run-2", policy=r.run.policy, role="dev", gateway_ip="127.0.0.98", proxy_port=0, proof="p")
        r.run.adopt(child)
        below = Live(r, child, tmp_path, live)
        live.alarms("dns.flood", "too many names")
        for instance in r.gateway._instances["run-1"]:
            instance.run = child
        assert await code(r) == "paused"
        assert not child.paused
        below.close()

    run(tmp_path, "pause", body)


def test_kill_ends_the_run_and_nothing_passes_meanwhile(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        open_one = await keep_alive(r, "/free/a")
        await misplace(r)
        assert live.alarms.killed.is_set()
        assert await ended(open_one) < 1.0  # now, not when the jail is dead
        assert await code(r, "/free/a") == "revoked"
        assert r.records("alarm")[0]["verdict"] == "kill"

    run(tmp_path, "kill", body)


def test_of_a_kind_one_is_told_in_a_while_and_the_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(r: Rig, live: Live) -> None:
        for _ in range(5):
            await misplace(r)
        live.alarms("another", "kind")
        assert [line["reason"] for line in r.records("alarm")] == ["placeholder_misplaced", "another"]
        assert [said["kind"] for said in live.told()] == ["placeholder_misplaced", "another"]
        monkeypatch.setattr(alarms, "QUIET", 0.0)
        await misplace(r)
        assert r.records("alarm")[-1]["count"] == 5  # the four that were not told, and this one
        assert [said["kind"] for said in live.told()] == ["placeholder_misplaced"]

    run(tmp_path, "notify", body)


@pytest.mark.parametrize("consequence", ["notify", "pause", "kill"])
def test_a_launcher_that_does_not_read_stops_nobody(consequence: str, tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        for number in range(5000):
            live.alarms(f"kind-{number}", "x" * 200)
        assert len(r.records("alarm")) == 5000
        assert len(live.told()) < 5000
        await asyncio.sleep(alarms.LAST_WORD)  # then all is cut, what connects right now too
        assert await code(r) == {"notify": "", "pause": "paused", "kill": "revoked"}[consequence]

    run(tmp_path, consequence, body)


def test_an_alarm_of_the_resolver_has_its_one_line_and_the_consequence(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        events = ResolverEvents(r.extra["ledger"])
        events.sessions = {"run-1": live}  # type: ignore[dict-item]
        flood = {"event": "dns", "run": "run-1", "code": "dns.flood", "detail": "rate", "count": 51, "alarm": True}
        events({**flood, "code": "dns.deny", "alarm": False, "name": "a.example"})
        assert await code(r) == ""
        events(flood)
        (line,) = r.records("alarm")
        assert (line["reason"], line["verdict"], line["count"]) == ("dns.flood", "pause", 51)
        assert await code(r) == "paused"
        assert [said["kind"] for said in live.told()] == ["dns.flood"]
        events({"event": "restart", "code": "dns.restart", "alarm": True, "status": 9})  # of no run
        assert len(r.records("alarm")) == 2

    run(tmp_path, "pause", body)


def test_a_ledger_that_can_not_be_written_leaves_the_consequence(tmp_path: Path) -> None:
    async def body(r: Rig, live: Live) -> None:
        r.extra["ledger"]._break("write", OSError(28, "no space left on device"))
        live.alarms("kind", "detail")
        assert live.alarms.killed.is_set()

    run(tmp_path, "kill", body)
