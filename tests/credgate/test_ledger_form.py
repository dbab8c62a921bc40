"""Lines of a form are those that the general way makes; lines that are held are in the file before anyone goes on."""

import asyncio
import os
from collections.abc import Buffer, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.ledger import linking
from credgate.ledger.chain import Head, link
from credgate.ledger.form import Form, fragment
from credgate.ledger.record import LedgerError, Stamp, clean_fields
from credgate.ledger.report import Status
from credgate.ledger.tree import Tree
from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger, SystemCalls
from tests.credgate.ledger_rig import no_kernel

SEGMENT = "seg-000001.jsonl"
TEXT = st.text(max_size=40)
FIXED = st.fixed_dictionaries(
    {},
    optional={
        "asked": TEXT,
        "binding": TEXT,
        "host": TEXT,
        "path": st.text(max_size=3000),
        "pin": TEXT,
        "port": st.integers(0, 65535),
        "query_names": st.lists(TEXT, max_size=4),
        "run": TEXT,
        "verdict": TEXT,
        "via": TEXT,
    },
)
HOLES = st.fixed_dictionaries(
    {},
    optional={
        "detail": TEXT,
        "ids": st.dictionaries(TEXT, TEXT, max_size=3),
        "intent_seq": st.integers(0, 2**63 - 1),
        "ms": st.integers(0, 10**9),
        "status": st.integers(0, 999),
        "ua_tag": TEXT,
    },
)
STAMP = st.builds(Stamp, ts=TEXT, boot=TEXT, mono_ns=st.integers(0, 2**63 - 1))
HEAD = st.builds(Head, seq=st.integers(0, 2**60), sha256=st.text("0123456789abcdef", min_size=64, max_size=64))


def filled(holes: Mapping[str, object]) -> tuple[bytes | None, ...]:
    """Fragments of cleaned values; None where one doesn't apply."""
    cleaned = clean_fields("outcome", holes)
    return tuple(fragment(name, cleaned[name]) if name in cleaned else None for name in holes)


@given(fixed=FIXED, holes=HOLES, stamp=STAMP, head=HEAD)
def test_a_form_makes_the_very_line(
    fixed: dict[str, object], holes: dict[str, object], stamp: Stamp, head: Head
) -> None:
    expected, _ = link(head, "outcome", clean_fields("outcome", {**fixed, **holes}), stamp)
    form = Form("outcome", fixed, holes)
    for values in (filled(holes), tuple(holes.values())):
        chain = linking.chain_of((head.seq, head.sha256), tree_of(head.seq))
        assert form.put(chain, values, stamp) == head.seq + 1
        assert chain.take() == expected


def tree_of(size: int) -> Tree:
    return Tree(size, [bytes([n]) * 32 for n in range(size.bit_count())])


@pytest.mark.parametrize("holes", [["host"], ["via"], ["verdict"], ["hots"], ["hash"], ["v"]])
def test_what_cannot_be_a_hole_is_said_at_once(holes: list[str]) -> None:
    with pytest.raises(TypeError):
        Form("outcome", {"host": "h"}, holes)


FORM = Form("intent", {"run": "r", "host": "h"}, ["ua_tag"])


def tagged(seq: int) -> tuple[bytes]:
    return (fragment("ua_tag", f"t{seq}"),)


class HasFileno(Protocol):
    def fileno(self) -> int: ...


WRITTEN: list[int] = []  # lines of each write
SYNCED: list[int] = []  # the file's size at each sync


def write(fd: int, data: Buffer) -> int:
    WRITTEN.append(bytes(data).count(b"\n"))
    return os.write(fd, data)


def fdatasync(fd: "int | HasFileno") -> None:
    SYNCED.append(os.fstat(fd if isinstance(fd, int) else fd.fileno()).st_size)
    os.fdatasync(fd)


class Calls(SystemCalls):
    write = staticmethod(write)
    fdatasync = staticmethod(fdatasync)
    later = staticmethod(no_kernel)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    WRITTEN.clear()
    SYNCED.clear()
    return tmp_path / "ledger"


def test_lines_of_one_moment_are_one_write_and_one_sync_and_on_the_disk_before_anyone_goes_on(directory: Path) -> None:
    path = directory / SEGMENT

    async def one(ledger: Ledger) -> int:
        seq = ledger.put(FORM, tagged, held=True)
        await ledger.durable(seq)
        assert path.read_bytes().count(b"\n") >= seq
        assert SYNCED[-1] == path.stat().st_size
        return seq

    async def main(ledger: Ledger) -> list[int]:
        return await asyncio.gather(*(one(ledger) for _ in range(16)))

    with Ledger.open(directory, calls=Calls) as ledger:
        assert asyncio.run(main(ledger)) == list(range(1, 17))
        assert (WRITTEN, len(SYNCED)) == ([16], 1)
    assert verify(directory).status is Status.SOUND


def test_a_held_line_goes_before_the_next_one_that_is_not(directory: Path) -> None:
    with Ledger.open(directory, calls=Calls) as ledger:
        ledger.put(FORM, tagged, held=True)
        assert (directory / SEGMENT).read_bytes() == b""
        ledger.append("deny", host="h")
        assert (directory / SEGMENT).read_bytes().count(b"\n") == 2
        ledger.put(FORM, tagged)
        assert WRITTEN == [2, 1]
    assert verify(directory).status is Status.SOUND


@pytest.mark.parametrize("broken", ["write", "fdatasync"])
def test_who_waits_for_a_held_line_that_cannot_be_written_learns_of_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    async def main(ledger: Ledger) -> list[object]:
        numbers = [ledger.put(FORM, tagged, held=True) for _ in range(3)]
        monkeypatch.setattr(Calls, broken, staticmethod(full))
        return await asyncio.gather(*map(ledger.durable, numbers), return_exceptions=True)

    with Ledger.open(directory, calls=Calls) as ledger:
        found = asyncio.run(main(ledger))
        assert [type(each) for each in found] == [LedgerError] * 3
        monkeypatch.undo()
        with pytest.raises(LedgerError):
            ledger.append("deny")
    assert (directory / SEGMENT).read_bytes().count(b'"ev":"intent"') == (0 if broken == "write" else 3)
    assert verify(directory).status in (Status.SOUND, Status.INCOMPLETE)


def test_one_loop_after_the_other_and_a_close_while_someone_waits(directory: Path) -> None:
    async def wait(ledger: Ledger) -> None:
        await ledger.durable(ledger.put(FORM, tagged, held=True))

    async def closing(ledger: Ledger) -> object:
        waiting = asyncio.ensure_future(wait(ledger))
        await asyncio.sleep(0)
        ledger.close()
        return (await asyncio.gather(waiting, return_exceptions=True))[0]

    ledger = Ledger.open(directory, calls=Calls)
    asyncio.run(wait(ledger))
    asyncio.run(wait(ledger))
    assert isinstance(asyncio.run(asyncio.wait_for(closing(ledger), 5)), LedgerError)
    assert verify(directory).status is Status.SOUND
