"""Secrets whose values end by themselves, on the beaten track: a command's, and minted ones."""

import asyncio
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from credgate.gateway.noting import OwnNotes
from credgate.loops import new_loop
from credgate.minting import minter
from credgate.vault import Vault
from tests.credgate import gateway_rig
from tests.credgate.gateway_rig import POLICY, FakeVault, Seen, rig
from tests.credgate.test_beaten import asks, head
from tests.credgate.test_gateway_minting import site


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Requests that came to their end on the track."""
    count, usual = [0], OwnNotes.went

    def counted(*args: Any) -> None:
        count[0] += 1
        usual(*args)

    monkeypatch.setattr(OwnNotes, "went", counted)
    return count


class Commands(FakeVault):
    """As the real one of `command:` alone, with a clock of the test's."""

    now: ClassVar[list[float]] = [1000.0]

    def __init__(self, values: Any, home: Path = Path("/nowhere")) -> None:
        super().__init__(values, home)
        self.real = Vault(self.places, {})
        self.real._commands._clock = lambda: self.now[0]  # private: the clock is the constructor's, two objects below

    def kept(self, rule: Any, env: Any) -> Any:
        return self.real.kept(rule, env)

    async def fetch(self, rule: Any, env: Any) -> Any:
        return await self.real.fetch(rule, env)


def said(status: int, answers: list[Any]) -> bool:
    return [answer[0] for answer in answers] == [status] * len(answers)


def test_a_command_is_asked_again_when_its_value_is_over_and_nothing_goes_once_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, went: list[int]
) -> None:
    monkeypatch.setattr(gateway_rig, "FakeVault", Commands)
    program, value = tmp_path / "program", tmp_path / "value"
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/runs\nexec cat {value}\n")
    os.chmod(program, 0o700)
    value.write_text("first-value-of-the-command\n")
    policy = POLICY.replace(
        '"keyring:credgate/token"', f'"command:{program}"\nkeep = "1h"'.replace("{", "{{").replace("}", "}}"), 1
    )

    def runs() -> int:
        return (tmp_path / "runs").read_text().count("x")

    async def main() -> None:
        async with rig(tmp_path, policy=policy) as r:
            client = await r.tunnel()
            assert said(200, await asks(client, head(r), 5))
            value.write_text("second-value-of-the-command\n")
            assert said(200, await asks(client, head(r), 2))
            assert runs() == 1
            Commands.now[0] += 3601
            assert said(200, await asks(client, head(r), 5))
            assert runs() == 2
            bearers = [one.values(b"authorization") for one in r.good.seen]
            assert (
                bearers == [[b"Bearer first-value-of-the-command"]] * 7 + [[b"Bearer second-value-of-the-command"]] * 5
            )
            value.unlink()
            assert said(200, await asks(client, head(r), 2))
            Commands.now[0] += 3601
            refused = await asks(client, head(r), 3)
            assert said(403, refused) and all(b"secret_unavailable" in one[2] for one in refused)  # type: ignore[index] # tuples
            assert runs() == 3  # for a second the failure is the answer
            assert len(r.good.seen) == 14
            value.write_text("third-value-of-the-command\n")
            Commands.now[0] += 2
            assert said(200, await asks(client, head(r), 3))
            assert r.good.seen[-1].values(b"authorization") == [b"Bearer third-value-of-the-command"]
        assert went[0]

    asyncio.run(main(), loop_factory=new_loop)


def minted(text: str, _: int) -> str:
    return text.replace('source = "keyring:credgate/token"', 'source = "mint:oauth"', 1)


async def refuses(_seen: Seen, _reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno")


@pytest.mark.parametrize("doubted", [0.0, 300.0])
def test_a_minted_token_is_not_used_beyond_its_end(
    doubted: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, went: list[int]
) -> None:
    """Over, or refused by the target with a 401; `doubted`: the age from which on such a refusal counts."""
    monkeypatch.setattr(minter, "DOUBT", doubted)

    async def main() -> None:
        async with site(tmp_path, minted) as (r, provider):
            now, known = [5000.0], list[bytes]()
            r.gateway._hooks.judge.minter._clock = lambda: now[0]  # private: of the gateway's own minter

            async def tokens(times: int, status: int = 200) -> list[int]:
                """Which token each request had, counted from 0 in the order of their first use."""
                seen = len(r.good.seen)
                assert said(status, await asks(client, head(r), times))
                used = [one.values(b"authorization")[0] for one in r.good.seen[seen:]]
                known.extend(value for value in dict.fromkeys(used) if value not in known)
                return [known.index(value) for value in used]

            client = await r.tunnel()
            assert await tokens(5) == [0] * 5
            now[0] += 10**6
            assert await tokens(4) == [1] * 4
            usual, r.good.script = r.good.script, refuses
            assert await tokens(1, 401) == [1]
            r.good.script = usual
            newer = 2 if doubted == 0 else 1
            assert await tokens(4) == [newer] * 4
            assert len(provider.minted()) == newer + 1
        assert went[0]

    asyncio.run(main(), loop_factory=new_loop)
