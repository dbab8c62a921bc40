"""Values that a program of the host prints: what it gets, how it may fail, how long they are kept."""

import asyncio
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from credgate.commandsource import run_command
from credgate.kept import Kept
from credgate.paths import Places
from credgate.secretvalue import SecretUnavailable
from credgate.trees import note_written
from credgate.vault import Vault
from rules.sources import CommandTerms, Output, SecretRule, SourceKind


def program(folder: Path, text: str, mode: int = 0o700) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "say"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


def rule(path: str, *args: str, output: Output = Output.TEXT, keep: int = 0, **more: Any) -> SecretRule:
    terms = CommandTerms(program=path, args=args, output=output, **more)
    return SecretRule(name="s", kind=SourceKind.COMMAND, ref=path, terms=terms, keep=keep)


def code(asked: SecretRule, env: Mapping[str, str] | None = None, written: tuple[str, ...] = ()) -> str:
    with pytest.raises(SecretUnavailable) as fault:
        run_command(asked, env or {}, written)
    assert "hunter2" not in str(fault.value)
    return fault.value.code


def test_its_output_is_the_value(tmp_path: Path) -> None:
    path = program(tmp_path, 'printf "%s\\n" "$1-$2"')
    assert run_command(rule(path, "a b", "$HOME;id"), {}).value == "a b-$HOME;id"  # no shell between
    by_home = run_command(rule("~/say", "a", "b"), {"HOME": str(tmp_path)})
    assert (by_home.value, by_home.seconds) == ("a-b", 0)


def test_it_gets_no_more_than_it_needs(tmp_path: Path) -> None:
    path = program(tmp_path, 'pwd; env; cat; echo "$(readlink /proc/self/fd/0)"')
    env = {"HOME": str(tmp_path), "TOKEN": "t", "OTHER": "o", "LD_PRELOAD": "x", "PATH": "/evil"}
    said = run_command(rule(path, env=("TOKEN",)), env).value.splitlines()
    assert said[0] == "/"
    assert "TOKEN=t" in said
    assert not {line for line in said if line.startswith(("OTHER", "LD_PRELOAD"))}
    assert not any("/evil" in line for line in said)
    assert said[-1] == "/dev/null"


def test_a_program_that_others_can_write_is_not_started(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "echo hunter2")
    assert run_command(rule(path), {}).value == "hunter2"  # control
    os.chmod(path, 0o722)
    assert code(rule(path)) == "command_refused"
    os.chmod(path, 0o600)
    assert code(rule(path)) == "command_refused"
    assert code(rule(str(tmp_path / "bin"))) == "command_refused"
    assert code(rule(str(tmp_path / "none"))) == "command_missing"


def test_a_program_of_a_written_tree_is_not_started(tmp_path: Path) -> None:
    path = program(tmp_path / "tree", "echo hunter2")
    link = tmp_path / "link"
    link.symlink_to(path)
    for asked in (rule(path), rule(str(link))):
        assert run_command(asked, {}).value == "hunter2"
        assert code(asked, written=(str(tmp_path / "tree"),)) == "command_refused"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo hunter2; exit 3", "command_failed"),
        ("exec /nonexistent/hunter2", "command_failed"),
        ("printf 'hunter2\\377'", "command_invalid"),
        ("while :; do echo hunter2hunter2hunter2; done", "command_invalid"),
        ("echo hunter2; sleep 30", "command_timeout"),
        ("sleep 30 & echo hunter2", "command_timeout"),  # its child holds stdout
    ],
)
def test_ends_that_give_no_value(text: str, expected: str, tmp_path: Path) -> None:
    began = time.monotonic()
    assert code(rule(program(tmp_path, text), timeout=1)) == expected
    assert time.monotonic() - began < 45


def json_of(tmp_path: Path, document: str, keep: int = 0) -> SecretRule:
    return rule(program(tmp_path, f"cat <<'END'\n{document}\nEND"), output=Output.JSON, keep=keep)


def test_json_says_its_end(tmp_path: Path) -> None:
    hour = run_command(json_of(tmp_path, '{"value": "v", "expires_in": 3600}'), {})
    assert (hour.value, hour.seconds) == ("v", 3540)
    assert run_command(json_of(tmp_path, '{"value": "v", "expires_in": 10}'), {}).seconds == 9
    assert run_command(json_of(tmp_path, '{"value": "v"}', keep=7), {}).seconds == 7
    end = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert 3500 < run_command(json_of(tmp_path, f'{{"value": "v", "expires_at": "{end}"}}'), {}).seconds < 3541


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("hunter2", "command_invalid"),
        ('["hunter2"]', "command_invalid"),
        ('{"token": "hunter2"}', "command_invalid"),
        ('{"value": 1}', "command_invalid"),
        ('{"value": "hunter2", "expires_in": "1h"}', "command_invalid"),
        ('{"value": "hunter2", "expires_in": true}', "command_invalid"),
        ('{"value": "hunter2", "expires_at": "soon"}', "command_invalid"),
        ('{"value": "hunter2", "expires_at": "2099-01-01T00:00:00"}', "command_invalid"),
        ('{"value": "hunter2", "expires_in": 0}', "command_expired"),
        ('{"value": "hunter2", "expires_at": "2001-01-01T00:00:00Z"}', "command_expired"),
    ],
)
def test_json_that_gives_no_value(document: str, expected: str, tmp_path: Path) -> None:
    assert code(json_of(tmp_path, document)) == expected


def test_many_who_wait_start_it_once_and_it_is_kept_as_long_as_it_says(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    vault = Vault(Places.from_env({"HOME": str(tmp_path)}), {})

    async def main() -> None:
        for keep, starts in ((0, 2), (3600, 1)):
            counted.unlink(missing_ok=True)
            asked = rule(
                program(tmp_path, f'echo >> {counted}; sleep 0.2; echo "value-$(wc -l < {counted})"'), keep=keep
            )
            found = await asyncio.gather(*(vault.fetch(asked, {}) for _ in range(8)))
            assert {secret.reveal() for secret in found} == {"value-1"}
            await vault.fetch(asked, {})
            assert len(counted.read_text()) == starts
            known = vault.kept(asked, {})
            assert (known.reveal() if known else "") == ("value-1" if keep else "")

    asyncio.run(main())


def test_what_a_command_gets_by_name_is_part_of_what_is_kept(tmp_path: Path) -> None:
    vault = Vault(Places.from_env({"HOME": str(tmp_path)}), {})
    asked = rule(program(tmp_path, 'echo "of-$WHO"'), keep=3600, env=("WHO",))

    async def main() -> None:
        for who in ("a", "b", "a"):
            assert (await vault.fetch(asked, {"WHO": who})).reveal() == f"of-{who}"

    asyncio.run(main())


def test_the_vault_knows_the_written_trees(tmp_path: Path) -> None:
    places = Places.from_env({"HOME": str(tmp_path)})
    asked = rule(program(tmp_path / "tree", "echo hunter2"))
    assert asyncio.run(Vault(places, {}).fetch(asked, {})).reveal() == "hunter2"
    note_written(places, str(tmp_path / "tree"))
    with pytest.raises(SecretUnavailable, match="which an agent may write"):
        asyncio.run(Vault(places, {}).fetch(asked, {}))


def test_a_failure_is_the_answer_for_a_moment() -> None:
    now, asked = 0.0, 0

    async def fail() -> tuple[str, float]:
        nonlocal asked
        asked += 1
        raise SecretUnavailable("command_failed", "no")

    async def main() -> None:
        nonlocal now
        kept: Kept[str] = Kept(lambda: now)
        for at, times in ((0.0, 1), (0.5, 1), (1.5, 2)):
            now = at
            with pytest.raises(SecretUnavailable):
                await kept.get("k", fail)
            assert asked == times

    asyncio.run(main())
