"""Refusals without end: few lines, exact counts, and the gateway answers others meanwhile.

CREDGATE_FLOOD=14000 asks for as many refusals as the flood that a user reported had in a minute.
"""

import asyncio
import json
import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.gateway import floods, records
from credgate.gateway.floods import KINDS, LINES, WINDOW, Floods
from credgate.ledger.record import clean_fields
from tests.credgate.gateway_rig import Rig, rig

COUNT = int(os.environ.get("CREDGATE_FLOOD", "2000"))
PATHS = ("/nowhere", "/ok/mint/key", "/else")


def fields(path: str = "/a", **more: object) -> dict[str, object]:
    return {"ev": "deny", "run": "r", "reason": "no_rule", "host": "h", "method": "GET", "path": path, **more}


# The table


def test_the_first_lines_are_written_and_the_rest_is_one() -> None:
    table = Floods()
    held = [table.hold("r", fields(request_id=str(i)), 0.0) for i in range(LINES + 5)]
    assert held[:LINES] == [""] * LINES
    (mark,) = set(held[LINES:])
    assert mark
    (line,) = table.end("r")
    assert (line["count"], line["request_id"], line["path"]) == (5, mark, "/a")
    assert table.empty


def test_a_flood_that_goes_on_is_a_line_a_window_and_one_that_rests_starts_anew() -> None:
    table = Floods()
    for second in range(100):
        for _ in range(50):
            table.hold("r", fields(), float(second))
        if second and second % WINDOW == 0:
            assert [line["count"] for line in table.due(float(second))] != []
    assert len(table.due(99.0 + WINDOW)) == 1
    assert table.due(99.0 + 3 * WINDOW) == []
    assert table.empty
    assert table.hold("r", fields(), 200.0) == ""


def test_a_window_with_few_counts_none() -> None:
    table = Floods()
    for window in range(5):
        assert [table.hold("r", fields(), window * WINDOW) for _ in range(LINES)] == [""] * LINES
    assert table.end("r") == []


def test_what_differs_is_counted_apart() -> None:
    table = Floods()
    kinds = [fields(), fields("/b"), fields(method="POST"), fields(host="g"), fields(reason="deny_rule")]
    for kind in kinds:
        for _ in range(LINES + 1):
            table.hold("r", kind, 0.0)
    assert [line["count"] for line in table.end("r")] == [1] * len(kinds)


def test_query_names_that_a_client_makes_up_are_alike() -> None:
    table = Floods()
    for number in range(LINES + 100):
        table.hold("r", fields(query_names=(f"q{number}",)), 0.0)
    (line,) = table.end("r")
    assert line["count"] == 100
    assert "query_names" not in line


def test_the_table_is_bounded_and_what_does_not_fit_is_written() -> None:
    table = Floods()
    for number in range(KINDS + 500):
        assert table.hold("r", fields(f"/{number}"), 0.0) == ""
    assert [table.hold("r", fields(f"/{KINDS + 1}"), 0.0) for _ in range(LINES + 9)] == [""] * (LINES + 9)
    assert [table.hold("r", fields("/" + "x" * 5000), 0.0) for _ in range(LINES + 9)] == [""] * (LINES + 9)


def test_runs_are_counted_apart() -> None:
    table = Floods()
    for run in ("r", "s"):
        for _ in range(LINES + 3):
            table.hold(run, fields(run=run), 0.0)
    assert [(line["run"], line["count"]) for line in table.end("s")] == [("s", 3)]
    assert [(line["run"], line["count"]) for line in table.due(WINDOW)] == [("r", 3)]


steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.floats(0, 15)), max_size=40)


@settings(max_examples=100)
@given(steps, st.lists(st.integers(0, 39), max_size=5))
def test_every_line_adds_up_to_what_was_refused(asked: list[tuple[str, int, float]], sweeps: list[int]) -> None:
    table, now, sent, told = Floods(), 0.0, Counter[str](), Counter[str]()
    for number, (path, count, pause) in enumerate(asked):
        now += pause
        for _ in range(count):
            sent[path] += 1
            if not table.hold("r", fields(path), now):
                told[path] += 1
        if number in sweeps:
            for line in table.due(now):
                told[str(line["path"])] += int(str(line["count"]))
    for line in table.end("r"):
        told[str(line["path"])] += int(str(line["count"]))
    assert sent == told


def test_a_counted_line_is_one_that_the_ledger_takes() -> None:
    table = Floods()
    for _ in range(LINES + 1):
        table.hold("r", fields(rule="", status=403, detail="", port=443, query_names=("a",)), 0.0)
    (line,) = table.end("r")
    assert clean_fields("deny", {k: v for k, v in line.items() if k != "ev"})["count"] == 1


# The gateway


async def flood(r: Rig, paths: list[str], ids: Counter[str]) -> None:
    client = await r.tunnel()
    host = f"api.good.test:{r.direct}"
    for path in paths:
        answer = await client.get(path, host)
        assert answer.status == 403
        ids[json.loads(answer.body)["error"]["request_id"]] += 1


async def others(r: Rig, waits: list[float]) -> None:
    """A request that is allowed, each 50 ms, on a connection of its own."""
    client = await r.tunnel()
    while True:
        began = time.monotonic()
        assert (await client.get("/free/a", f"api.good.test:{r.direct}")).status == 200
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.05)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def test_a_flood_is_counted_exactly_and_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            paths = [PATHS[number % len(PATHS)] for number in range(COUNT)]
            ids, waits = Counter[str](), list[float]()
            began, before, memory = (
                time.monotonic(),
                time.process_time(),
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            )
            meanwhile = asyncio.create_task(others(r, waits))
            await asyncio.gather(*(flood(r, paths[start::4], ids) for start in range(4)))
            seconds, worked = time.monotonic() - began, time.process_time() - before
            meanwhile.cancel()
            await r.gateway.close("run-1")
            lines = r.records("deny")
            counted = Counter[tuple[str, str, str]]()
            for line in lines:
                counted[line["host"], line["method"], line["path"]] += line.get("count", 1)
            assert counted == Counter(("api.good.test", "GET", path) for path in paths)
            named = Counter[str]()
            for line in lines:
                named[line["request_id"]] += line.get("count", 1)
            assert named == ids  # each answer names the line that it is counted in
            assert r.run.denied == COUNT
            assert len(lines) <= len(PATHS) * (LINES + 1 + seconds / WINDOW)
            assert max(waits) < max(1.0, seconds / 4)  # while it goes on, not behind it
            assert worked < COUNT / 14000 * 60 + 5  # the reported flood's own pace
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) >> 10
            assert grown < 64
            with capsys.disabled():
                print(
                    f"\n{COUNT} refusals in {seconds:.1f} s, {len(lines)} lines, {grown} MB grown; "
                    f"others waited {max(waits) * 1000:.0f} ms at most, {sum(waits) / len(waits) * 1000:.1f} on average"
                )

    asyncio.run(main())


def test_counts_are_written_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "WINDOW", 0.1)  # between two looks
    monkeypatch.setattr(floods, "WINDOW", 3600.0)

    async def main() -> None:
        async with rig(tmp_path) as r:
            await flood(r, ["/nowhere"] * (LINES + 7), Counter())
            assert len(r.records("deny")) == LINES
            monkeypatch.setattr(floods, "WINDOW", 0.0)  # over
            await until(lambda: len(r.records("deny")) > LINES)
            assert r.records("deny")[-1]["count"] == 7
            await flood(r, ["/nowhere"], Counter())
            assert "count" not in r.records("deny")[-1]

    asyncio.run(main())


def test_heads_that_are_no_http_are_counted_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            for _ in range(LINES + 4):
                client = await r.tunnel()
                assert (await client.ask(b"GET /ok/a HTTP/1.1\r\nBad Header: 1\r\n\r\n")).status == 400
                client.close()
            await r.gateway.close("run-1")
            lines: list[dict[str, Any]] = r.records("deny")
            assert {line["reason"] for line in lines} == {"malformed"}
            assert sum(line.get("count", 1) for line in lines) == LINES + 4
            assert lines[-1]["count"] == 4

    asyncio.run(main())
