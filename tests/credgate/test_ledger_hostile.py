"""Ledgers and bundles that somebody else made: a reader ends, says what is wrong, and takes no room for it."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from credgate import cli
from credgate.ledger import files, read
from credgate.ledger.bundle import opened, write_bundle
from credgate.ledger.files import MAX_FILE, MAX_TAIL, whole_length
from credgate.ledger.read import Damaged, read_records
from credgate.ledger.record import LedgerError
from credgate.ledger.report import Status
from credgate.ledger.verify import verify
from credgate.reconcile.fabricate import honest

TERABYTE = 1 << 40
SEGMENT = "credgate-ledger/seg-000001.jsonl"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    honest(20).write(tmp_path)
    return tmp_path / "ledger"


def longer(name: str, size: int = TERABYTE) -> Callable[[Path], None]:
    """A file that says it is so long, and holds no more than before."""

    def change(directory: Path) -> None:
        (directory / name).touch()
        os.truncate(directory / name, size)

    return change


def test_what_is_judged_is_sound_before(directory: Path) -> None:
    assert verify(directory).status is Status.SOUND


@pytest.mark.parametrize("name", ["pubkey.pem", "seg-000001.notes", "seg-000001.jsonl"])
def test_a_file_that_says_it_is_endless_is_unreadable(name: str, directory: Path) -> None:
    longer(name)(directory)
    report = verify(directory)
    assert report.status is Status.UNREADABLE
    assert "file too large" in report.detail or "without a newline" in report.detail


def test_a_torn_tail_is_looked_for_so_far_and_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "seg"
    path.write_bytes(b"a line\n" + b"x" * 300_000)
    with path.open("rb") as file:
        assert whole_length(file.fileno()) == len(b"a line\n")
        monkeypatch.setattr(files, "MAX_TAIL", 100_000)
        with pytest.raises(OSError, match="without a newline"):
            whole_length(file.fileno())


@pytest.mark.parametrize("name", ["torn-5.bin", "keychanges.jsonl"])
def test_no_bundle_of_what_is_endless(
    name: str, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAX_FILE < MAX_TAIL < TERABYTE
    longer(name)(directory)
    assert cli.main(["log", "export", "--ledger", str(directory), "--bundle", str(tmp_path / "b.tar")]) == 1
    assert {"torn-5.bin": "at most 1073741824", "keychanges.jsonl": "file too large"}[name] in capsys.readouterr().err
    assert not (tmp_path / "b.tar").exists()
    (directory / name).unlink()
    write_bundle(directory, tmp_path / "b.tar")
    with opened(tmp_path / "b.tar") as copy:
        assert verify(copy).status is Status.SOUND


def test_a_torn_tail_goes_into_the_bundle_whole(directory: Path, tmp_path: Path) -> None:
    (directory / "torn-1.bin").write_bytes(b"half a li" * 9000)
    write_bundle(directory, tmp_path / "b.tar")
    with opened(tmp_path / "b.tar") as copy:
        assert (copy / "torn-1.bin").read_bytes() == b"half a li" * 9000


def pax(fields: dict[bytes, bytes]) -> bytes:
    """An extended header (POSIX pax) for the member behind it."""
    lines = b""
    for name, value in fields.items():
        rest = b" %b=%b\n" % (name, value)
        size = len(rest) + 2
        size += len(str(size)) - 2
        lines += b"%d%b" % (size, rest)
    return member("x", lines, b"x")


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def sparse() -> bytes:
    """GNU's form 1.0: the map stands before the data; here it says that there is nothing but a hole."""
    fields = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": SEGMENT.encode()}
    size = b"%d" % (8 << 20)
    mapped = b"1\n" + size + b"\n0\n"
    return pax({**fields, b"GNU.sparse.realsize": size}) + member("a", mapped.ljust(512, b"\0"))


def endless_names() -> bytes:
    return member("././@LongLink", b"x", tarfile.GNUTYPE_LONGNAME) * 3000


def test_the_hostile_bundles_are_what_they_mean_to_be() -> None:
    with tarfile.open(fileobj=io.BytesIO(sparse() + bytes(1024))) as tar:
        (found,) = tar
        assert (found.name, found.size, found.isreg(), found.issparse()) == (SEGMENT, 8 << 20, True, True)
    with pytest.raises(RecursionError), tarfile.open(fileobj=io.BytesIO(endless_names() + bytes(1024))):
        pass


@pytest.mark.parametrize("made", [sparse, endless_names])
def test_a_bundle_takes_no_more_room_than_it_has(
    made: Callable[[], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "b.tar"
    place.write_bytes(made() + bytes(1024))
    written: list[int] = []
    monkeypatch.setattr("shutil.copyfileobj", lambda source, _target: written.append(len(source.read())))
    with pytest.raises(LedgerError, match="not a bundle"), opened(place):
        pass
    assert sum(written) <= place.stat().st_size


@pytest.mark.parametrize("packed", [True, False])
def test_a_segment_of_damage_alone_is_not_shown_to_its_end(
    packed: bool, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "IN_A_ROW", 100)
    segment = directory / "seg-000001.jsonl"
    data = segment.read_bytes()
    good = data.count(b"\n")
    damaged = data + b"\n" * 50 + data + b"\n" * 500 + data
    if packed:
        (directory / "seg-000001.jsonl.gz").write_bytes(gzip.compress(damaged))
        segment.unlink()
    else:
        segment.write_bytes(damaged)

    def told(items: Iterator[object]) -> tuple[int, int]:
        found = [isinstance(item, Damaged) for item in items]
        return found.count(False), found.count(True)

    assert told(read_records(directory)) == (2 * good, 50 + 100 + 1)
    assert isinstance(last := list(read_records(directory))[-1], Damaged)
    assert last.detail == "100 damaged lines in a row: what is behind them is not shown"
