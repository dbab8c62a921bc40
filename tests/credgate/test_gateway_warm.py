"""The TLS contexts of a run's targets are made ahead of its requests, and each of them once."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from credgate.errors import CredgateError
from credgate.gateway.targettls import TargetTls
from tests.credgate.gateway_rig import TargetCa, rig


class Counted(TargetTls):
    """Counts what it makes."""

    made = 0

    def _build(self, ca: str, client: object) -> object:  # type: ignore[override] # as it is, and counted
        self.made += 1
        return super()._build(ca, client)  # type: ignore[arg-type] # as above


def test_a_run_that_is_served_has_its_contexts_before_a_request(tmp_path: Path) -> None:
    asyncio.run(_served(tmp_path))


async def _served(place: Path) -> None:
    async with rig(place) as made:
        targets = made.gateway._hooks.upstream.targets
        async with asyncio.timeout(60):
            while not targets._contexts:
                await asyncio.sleep(0.05)


def test_who_comes_while_it_is_made_waits_for_the_same_one(tmp_path: Path) -> None:
    asyncio.run(_shared(tmp_path))


async def _shared(place: Path) -> None:
    async with rig(place) as made:
        endpoint = next(e for e in made.run.policy.endpoints.values() if e.tls)
        targets = Counted(TargetCa(place, "others").ca)
        gone = asyncio.create_task(targets.context(endpoint))
        await asyncio.sleep(0)
        gone.cancel()  # takes it from nobody else
        first, second = await asyncio.gather(targets.context(endpoint), targets.context(endpoint))
        assert first is second and targets.made == 1


def test_a_file_that_is_none_is_told_to_the_request_alone(tmp_path: Path) -> None:
    asyncio.run(_missing(tmp_path))


async def _missing(place: Path) -> None:
    async with rig(place) as made:
        good = next(e for e in made.run.policy.endpoints.values() if e.tls)
        targets = Counted(TargetCa(place, "others").ca)
        lost = replace(good, ca=str(place / "missing.pem"))
        await targets.warm([lost, good])
        assert targets.made == 1
        with pytest.raises(CredgateError, match=r"missing\.pem"):
            await targets.context(lost)
