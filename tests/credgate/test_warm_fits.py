"""When a jail that was made ahead is not given to a run: the rules that it was made under are not those of now."""

import asyncio
import os
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from credgate import warm
from rules.load import load_policy
from rules.policy import Policy

TEXT = b"""
version = 1
[endpoint.a]
host = "a.test"
[[endpoint.a.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
[role.dev]
endpoints = ["a"]
"""


@dataclass(frozen=True)
class Spec:
    exe: str = "/bin/true"
    argv: tuple[str, ...] = ()
    protected: Any = field(default_factory=lambda: Protected())


@dataclass(frozen=True)
class Protected:
    reserved: tuple[str, ...] = ()


def loaded() -> Policy:
    return load_policy(TEXT, packs={}, base_dir="/")


def fits(made: Policy, now: Policy, monkeypatch: pytest.MonkeyPatch) -> bool:
    async def again(*_: object) -> tuple[Spec, None, str]:
        return Spec(), None, "digest"

    monkeypatch.setattr(warm, "computed_again", again)
    alive, end = os.pipe()
    session: Any = SimpleNamespace(
        mounts=SimpleNamespace(same=lambda: True),
        pidfd=alive,
        chosen=SimpleNamespace(policy=made),
        run=SimpleNamespace(policy=made),
        spec=Spec(),
    )
    wanted: Any = SimpleNamespace(asked=None, chosen=SimpleNamespace(policy=now))
    pool = warm.Pool.__new__(warm.Pool)
    try:
        return asyncio.run(pool._fits(session, wanted)) == "digest"
    finally:
        os.close(alive)
        os.close(end)


def test_the_same_policy_read_again_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(loaded(), loaded(), monkeypatch)


def test_a_ceiling_that_came_or_changed_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is the same to the byte; what it comes to under the ceiling is not."""
    now = loaded()
    assert now.sha256 == loaded().sha256
    assert not fits(loaded(), replace(now, ceiling_sha256="c" * 64), monkeypatch)
    closed = replace(now, ceiling_sha256="c" * 64, roles={"dev": replace(now.roles["dev"], endpoints=())})
    assert not fits(replace(now, ceiling_sha256="d" * 64), closed, monkeypatch)
