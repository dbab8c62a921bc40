"""Bad input in bulk, in small: `python -m tests.load` runs the full figures, which docs/gateway.md quotes."""

import asyncio
from pathlib import Path

import pytest

from tests.load import cases

SMALL: dict[str, int] = {
    "idle_connections": 60,
    "slow_clients": 40,
    "slow_targets": 40,
    "large_heads": 3,
    "streams": 400,
    "rapid_resets": 400,
    "server_names": 100,
    "odd_answers": 1,
    "event_gaps": 2,
    "transfers": 2,
}


def test_each_case_is_run_here() -> None:
    assert set(SMALL) == set(cases.CASES)


@pytest.mark.parametrize("name", SMALL)
def test_in_small(name: str, tmp_path: Path) -> None:
    figures = asyncio.run(cases.CASES[name](tmp_path, SMALL[name]))
    assert figures
