"""When a jail that was made ahead is not given to a run: the rules that it was made under are not those of now."""

import asyncio
import os
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from credgate import warm
from credgate.errors import CredgateError
from credgate.gateway.serving import Serving
from credgate.runs import Run
from rules.grants import SECOND, Use, refusal
from rules.load import load_policy
from rules.policy import Policy
from rules.verdict import Deny

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


def fits(made: Policy, now: Policy, monkeypatch: pytest.MonkeyPatch, workers: object = None) -> bool:
    def again(*_: object) -> tuple[Spec, None, str]:
        return Spec(), None, "digest"

    monkeypatch.setattr(warm, "computed_again", again)
    alive, end = os.pipe()
    session: Any = SimpleNamespace(
        mounts=SimpleNamespace(same=lambda: True),
        pidfd=alive,
        chosen=SimpleNamespace(policy=made),
        run=Run(id="r1", policy=made, role="dev", gateway_ip="127.0.0.9", proxy_port=1),
        spec=Spec(),
    )
    wanted: Any = SimpleNamespace(asked=None, chosen=SimpleNamespace(policy=now))
    pool = warm.Pool.__new__(warm.Pool)
    pool._parts = SimpleNamespace(gateway=SimpleNamespace(workers=workers))  # type: ignore[assignment]  # what is asked
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


@pytest.mark.parametrize("bound", ["", "deadline", "ttl"])
def test_what_is_bounded_by_time_waits_for_no_worker(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers were told when the jail was made, and count from then."""
    text = {
        "": TEXT,
        "deadline": TEXT + b'deadline = "1h"\n',
        "ttl": TEXT.replace(b'endpoints = ["a"]', b'bindings = ["b"]')
        + b'[secret.s]\nsource = "keyring:s/s"\n[binding.b]\nsecret = "s"\nendpoint = "a"\nrules = ["all"]\n'
        + b'place = "header:authorization"\nttl = "1h"\n',
    }[bound]
    policy = load_policy(text, packs={}, base_dir="/")
    assert fits(policy, policy, monkeypatch)
    assert fits(policy, policy, monkeypatch, workers=object()) is not bool(bound)


def test_time_begins_when_the_command_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        at = [5 * SECOND]
        monkeypatch.setattr("credgate.gateway.serving.now", lambda: at[0])
        monkeypatch.setattr("credgate.gateway.expiry.now", lambda: at[0])
        policy = load_policy(TEXT + b'deadline = "30s"\n', packs={}, base_dir="/")
        run = Run(id="r1", policy=policy, role="dev", gateway_ip="127.0.0.9", proxy_port=1)
        run.spent = structs.replace(run.spent, started=at[0])
        at[0] += 40 * SECOND
        assert isinstance(refusal(run.spent, run.role_rule, Use(), at[0]), Deny)
        serving = Serving()
        serving.begins(run)
        assert refusal(run.spent, run.role_rule, Use(), at[0]) is None
        assert isinstance(refusal(run.spent, run.role_rule, Use(), at[0] + 30 * SECOND), Deny)
        assert run.id in serving._expiry._timers
        serving._expiry.disarm(run.id)

    asyncio.run(main())


@pytest.mark.parametrize("own", [True, False])
def test_what_was_computed_of_another_jail_that_waited_is_computed_anew(own: bool, monkeypatch: Any) -> None:
    asked: list[object] = []
    waiting, other = SimpleNamespace(session=object()), SimpleNamespace(session=object())
    computed: Any = warm.Computed(waiting if own else other, *(None, None, ""))  # type: ignore[arg-type]

    async def fits(self: object, session: object, wanted: object, now: object) -> None:
        asked.append(now)

    async def thrown(self: object, waiting: object) -> None:
        """Its parts are none."""

    monkeypatch.setattr(warm.Pool, "_fits", fits)
    monkeypatch.setattr(warm.Pool, "_throw_away", thrown)
    pool = warm.Pool.__new__(warm.Pool)
    pool._making, pool._waiting = {}, {"k": waiting}  # type: ignore[dict-item]
    wanted: Any = SimpleNamespace(asked=SimpleNamespace(argv=["/bin/true"]), key="k")
    nobody: Any = None
    assert asyncio.run(pool.claim(wanted, nobody, nobody, computed)) is None
    assert asked == [computed if own else None]


def test_a_credential_among_the_arguments_is_refused_as_for_any_run() -> None:
    pool = warm.Pool.__new__(warm.Pool)
    pool._making, pool._waiting = {}, {}
    nobody: Any = None

    def claim(word: str) -> object:
        wanted: Any = SimpleNamespace(asked=SimpleNamespace(argv=["/bin/echo", word]), key="k")
        return asyncio.run(pool.claim(wanted, nobody, nobody))

    assert claim("hello") is None  # there is none that waits
    with pytest.raises(CredgateError, match="argument 1 of the command looks like a credential"):
        claim("ghp_" + "a1B2" * 9)
