"""A short run of the fuzzer, and that it finds what it looks for."""

import asyncio
from pathlib import Path

import pytest

from credgate.gateway import lane, lanetarget
from credgate.gateway.steps import Steps
from credgate.gateway.turn import Turn, request_bytes
from tests.credgate.gateway_rig import SECRET
from tests.fuzz.gateway import Fuzzer, Violation, fuzz

SECONDS = 20.0


def run(place: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, seed: int = 1) -> tuple[Fuzzer, Violation | None]:
    monkeypatch.setattr(lanetarget, "LINGER", 0.05)  # put back by the fixture: `fuzz` sets them
    monkeypatch.setattr(lane, "SHORT_LINGER", 0.05)
    return asyncio.run(fuzz(seconds, seed, place))


def test_twenty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer, violation = run(tmp_path, monkeypatch, SECONDS)
    assert violation is None, f"{violation}\n{fuzzer.case}"
    assert sum(fuzzer.counts.values()) > 50
    assert len(fuzzer.counts) >= 6


def planted_secret(turn: Turn) -> bytes:
    return request_bytes(turn).replace(b"\r\n\r\n", b"\r\nx-copy: %s\r\n\r\n" % SECRET.encode())


def planted_request(turn: Turn) -> bytes:
    return b"GET /unjudged HTTP/1.1\r\nhost: api.good.test\r\n\r\n" + request_bytes(turn)


def planted_head(turn: Turn) -> bytes:
    return request_bytes(turn).replace(b" HTTP/1", b" x HTTP/1", 1)


@pytest.mark.parametrize(
    ("fault", "told"),
    [(planted_secret, "secret"), (planted_request, "nobody judged"), (planted_head, "could not read its request")],
)
def test_it_finds_what_a_lane_must_not_send(
    fault: object, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanetarget, "request_bytes", fault)
    _, violation = run(tmp_path, monkeypatch, 10.0)
    assert violation is not None
    assert told in str(violation)


@pytest.mark.parametrize(("step", "told"), [("answered", "a crash"), ("finish", "a crash")])
def test_it_finds_an_exception(step: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_named: object) -> None:
        raise ValueError

    monkeypatch.setattr(Steps, step, failing)
    _, violation = run(tmp_path, monkeypatch, 10.0)
    assert violation is not None
    assert told in str(violation)


def test_it_finds_an_outcome_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "finish", lambda *_args, **_named: None)
    _, violation = run(tmp_path, monkeypatch, 10.0)
    assert violation is not None
    assert "outcomes []" in str(violation)
