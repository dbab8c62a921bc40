"""What can be done to a closed ledger without its key, and the exit code of each; the verifier in shell agrees."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from credgate.ledger.note import parse_note, parse_notes
from credgate.ledger.report import Kept, Status
from credgate.ledger.settings import Settings
from credgate.ledger.verify import verify
from tests.credgate.ledger_rig import SHELL, SMALL, by_shell, make, rechain, records

ONE, TWO, THREE = (f"seg-00000{n}" for n in (1, 2, 3))


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credgate.ledger.verify.SETTLE", 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments of one ledger, closed."""
    directory = tmp_path_factory.mktemp("made") / "ledger"
    make(directory, 7)
    assert sorted(path.stem for path in directory.glob("seg-*.jsonl")) == [ONE, TWO, THREE]
    assert len(records(directory)) == 10
    return directory


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A copy as an auditor has it: without the key."""
    return Path(shutil.copytree(made, tmp_path / "ledger"))


def test_honest_ledgers_pass_both(made: Path, copy: Path, tmp_path: Path):
    assert (verify(made).status, by_shell(made)) == (Status.SOUND, 0)
    assert (verify(copy).status, by_shell(copy)) == (Status.SOUND, 0)
    assert verify(made).trust == "the install's own key"
    assert "compare it" in verify(copy).trust
    for lines in (0, 1, 2, 7, 30):
        directory = tmp_path / f"ledger-of-{lines}"
        make(directory, lines, settings=Settings(every_lines=3))
        report = verify(directory)
        assert (report.status, report.signed, by_shell(directory)) == (Status.SOUND, lines + 1, 0)


def test_the_shell_verifier_is_short_and_needs_nothing_of_ours():
    text = SHELL.read_text()
    assert len(text.splitlines()) <= 40
    assert "python" not in text


def _flips(path: Path) -> list[tuple[int, bytes]]:
    whole = path.read_bytes()
    return [(at, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) for at in range(len(whole))]


@pytest.mark.parametrize("name", [f"{ONE}.jsonl", f"{TWO}.jsonl", f"{THREE}.jsonl", "pubkey.pem"])
def test_each_flipped_byte_of_lines_and_key(copy: Path, name: str):
    path = copy / name
    for at, data in _flips(path):
        path.write_bytes(data)
        # the last newline of all: the lines are there but for it, and a checkpoint knows of one more
        want = Status.TRUNCATED if (name, at) == (f"{THREE}.jsonl", len(data) - 1) else Status.TAMPERED
        assert verify(copy).status is want, at


@pytest.mark.parametrize("name", [ONE, TWO, THREE])
def test_each_flipped_byte_of_checkpoints(copy: Path, name: str):
    path = copy / f"{name}.notes"
    start = len(path.read_bytes()) - len(parse_notes(path.read_bytes())[0][-1].data())
    for at, data in _flips(path):
        path.write_bytes(data)
        got = verify(copy).status
        # an empty line that is none any more leaves a note without an end, which a crash does as well
        torn = at >= start and data[at] == ord("\n") ^ 1
        assert got is Status.TAMPERED or (torn and got is Status.INCOMPLETE), at


def _lines(directory: Path, name: str) -> list[bytes]:
    return (directory / f"{name}.jsonl").read_bytes().splitlines(keepends=True)


def _put(directory: Path, name: str, lines: list[bytes]) -> None:
    (directory / f"{name}.jsonl").write_bytes(b"".join(lines))


@pytest.mark.parametrize("name", [ONE, TWO, THREE])
def test_each_line_deleted_doubled_swapped(copy: Path, name: str):
    lines = _lines(copy, name)
    for at in range(len(lines)):
        _put(copy, name, lines[:at] + lines[at + 1 :])
        last = name == THREE and at == len(lines) - 1
        assert verify(copy).status is (Status.TRUNCATED if last else Status.TAMPERED), at
        _put(copy, name, [*lines[: at + 1], *lines[at:]])
        assert verify(copy).status is Status.TAMPERED, at
        if at:
            _put(copy, name, [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]])
            assert verify(copy).status is Status.TAMPERED, at


def test_the_tail_cut_at_every_length(copy: Path):
    path, notes = copy / f"{THREE}.jsonl", copy / f"{THREE}.notes"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert verify(copy).status is Status.TRUNCATED, length
    notes.unlink()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        report = verify(copy)
        assert report.status is Status.INCOMPLETE, length
        assert report.kind == ("torn_tail" if length and whole[length - 1] != 10 else report.kind), length


def _rewritten(directory: Path, change: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
    """One segment, chained anew; the checkpoints stay."""
    data = rechain(change(records(directory)))
    for name in (TWO, THREE):
        (directory / f"{name}.jsonl").unlink()
        with (directory / f"{ONE}.notes").open("ab") as file:
            file.write((directory / f"{name}.notes").read_bytes())
        (directory / f"{name}.notes").unlink()
    (directory / f"{ONE}.jsonl").write_bytes(data)


def _keep_notes(directory: Path, size: int) -> None:
    """An old checkpoint put back: those of more lines are gone."""
    for path in directory.glob("*.notes"):
        notes, _ = parse_notes(path.read_bytes())
        path.write_bytes(b"".join(note.data() for note in notes if note.checkpoint.size <= size))


def _rechained_whole(directory: Path) -> None:
    _rewritten(directory, lambda lines: [{**line, "ts": "2020" + str(line["ts"])[4:]} for line in lines])


def _cut_to(directory: Path, size: int) -> None:
    for path in sorted(directory.glob("seg-*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:size]))
        size = max(0, size - len(lines))
        if not path.stat().st_size:
            path.unlink()


def _old_checkpoint(directory: Path) -> None:
    first = parse_notes((directory / f"{ONE}.notes").read_bytes())[0][-1].checkpoint.size
    _keep_notes(directory, first)
    _cut_to(directory, first)


def _old_checkpoint_and_a_final(directory: Path) -> None:
    lines = records(directory)
    _old_checkpoint(directory)
    count = len(records(directory))
    (directory / f"{ONE}.jsonl").write_bytes(rechain([*lines[:count], lines[-1]]))


def _spliced(directory: Path) -> None:
    other = directory.parent / "other"
    make(other, 3, host="x")
    lines = _lines(directory, ONE)
    _put(directory, ONE, [lines[0], *(other / f"{ONE}.jsonl").read_bytes().splitlines(keepends=True)[1:3], *lines[1:]])


def _spliced_and_rechained(directory: Path) -> None:
    other = directory.parent / "other"
    make(other, 3, host="x")
    _rewritten(directory, lambda lines: [lines[0], *records(other)[:2], *lines[1:]])


def _other_checkpoints(directory: Path) -> None:
    other = directory.parent / "other"
    make(other, 7, host="x")
    for name in (ONE, TWO, THREE):
        shutil.copy(other / f"{name}.notes", directory / f"{name}.notes")


def _other_key(directory: Path) -> None:
    other = directory.parent / "other"
    make(other, 7, host="x")
    shutil.copy(other / "pubkey.pem", directory / "pubkey.pem")


def _appended(directory: Path) -> None:
    _put(directory, THREE, [*_lines(directory, THREE), b'{"ev":"deny"}\n'])


def _appended_in_chain(directory: Path) -> None:
    lines = [*records(directory), records(directory)[-1]]
    line = rechain(lines).splitlines(keepends=True)[-1]
    _put(directory, THREE, [*_lines(directory, THREE), line])


def _drop(*names: str) -> Callable[[Path], None]:
    def drop(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()

    return drop


MATRIX = {
    "spliced": (_spliced, 1),
    "spliced and rechained": (_spliced_and_rechained, 1),
    "rechained with another time": (_rechained_whole, 1),
    "rechained, one line less": (lambda d: _rewritten(d, lambda lines: lines[:2] + lines[3:]), 1),
    "rechained, no checkpoints": (lambda d: (_rechained_whole(d), _drop(f"{ONE}.notes")(d)), 3),
    "checkpoints of another ledger": (_other_checkpoints, 1),
    "key of another ledger": (_other_key, 1),
    "an old checkpoint put back": (_old_checkpoint, 3),
    "an old checkpoint and a forged final": (_old_checkpoint_and_a_final, 3),
    "a line put behind": (_appended, 1),
    "a line chained behind": (_appended_in_chain, 3),
    "last segment gone": (_drop(f"{THREE}.jsonl"), 2),
    "last segment and its checkpoints gone": (_drop(f"{THREE}.jsonl", f"{THREE}.notes"), 3),
    "last checkpoints gone": (_drop(f"{THREE}.notes"), 3),
    "middle segment gone": (_drop(f"{TWO}.jsonl"), 1),
    "all lines gone": (_drop(f"{ONE}.jsonl", f"{TWO}.jsonl", f"{THREE}.jsonl"), 2),
    "first segment gone": (_drop(f"{ONE}.jsonl"), 1),
    "key gone": (_drop("pubkey.pem"), 1),
    "segments swapped": (lambda d: _swap(d, f"{ONE}.jsonl", f"{TWO}.jsonl"), 1),
    "checkpoints swapped": (lambda d: _swap(d, f"{ONE}.notes", f"{THREE}.notes"), 1),
}
# The verifier in shell is told the key and never looks at that file; it needs a first segment; it reads all checkpoints
# in one order, whichever file they stand in.
_SHELL = {
    "all lines gone": 4,
    "first segment gone": 4,
    "key gone": 0,
    "key of another ledger": 0,
    "checkpoints swapped": 2,
}


def _swap(directory: Path, one: str, two: str) -> None:
    (directory / one).rename(directory / "aside")
    (directory / two).rename(directory / one)
    (directory / "aside").rename(directory / two)


@pytest.mark.parametrize("name", MATRIX)
def test_matrix(made: Path, copy: Path, name: str):
    change, want = MATRIX[name]
    before = verify(copy)
    newest = parse_note((copy / f"{THREE}.notes").read_bytes())[-1]
    key = copy.parent / "known.pem"
    shutil.copy(copy / "pubkey.pem", key)
    change(copy)
    report = verify(copy)
    assert report.status == want, report.detail
    assert by_shell(copy, key) == _SHELL.get(name, want)
    # whoever kept a checkpoint, or knows the key, sees it as well, and what was cut off is truncated then
    kept = verify(copy, against=[Kept(who="noted", notes=[newest])])
    assert kept.status is not Status.SOUND
    if name in ("an old checkpoint put back", "last segment and its checkpoints gone"):
        assert kept.status is Status.TRUNCATED
    assert before.status is Status.SOUND
    assert verify(copy, pubkey=verify_key(made)).status is not Status.SOUND


def verify_key(directory: Path) -> bytes:
    from credgate.ledger.keys import parse_public

    return parse_public((directory / "pubkey.pem").read_text())


def test_written_anew_with_another_key_is_seen_only_by_who_knows_the_right_one(made: Path, tmp_path: Path):
    """The limit that "self-attested" stands for; each of the three things that an auditor may keep ends it."""
    forged = tmp_path / "forged"
    make(forged, 7)
    bare = Path(shutil.copytree(forged, tmp_path / "bare"))
    assert (verify(bare).status, by_shell(bare)) == (Status.SOUND, 0)
    assert verify(bare).witness == "self-attested: no witness"
    report = verify(bare, pubkey=verify_key(made))
    assert (report.status, report.kind) == (Status.TAMPERED, "wrong_key")
    assert by_shell(bare, made / "pubkey.pem") == 1
    newest = parse_note((made / f"{THREE}.notes").read_bytes())[-1]
    report = verify(bare, against=[Kept(who="noted", notes=[newest])])
    assert (report.status, report.kind) == (Status.TAMPERED, "checkpoint_foreign")
    # and on the machine itself: the key beside the ledger
    shutil.rmtree(forged)
    shutil.copytree(bare, forged)
    shutil.rmtree(tmp_path / "forged-key")
    shutil.copytree(made.parent / "ledger-key", tmp_path / "forged-key")
    assert verify(forged).kind == "wrong_key"


def test_the_writer_goes_on_with_no_ledger_that_is_not_its_own(copy: Path, made: Path):
    from credgate.ledger.record import LedgerError
    from credgate.ledger.writer import Ledger

    shutil.copytree(made.parent / "ledger-key", copy.parent / "ledger-key")
    Ledger.open(copy, settings=SMALL).close()
    assert verify(copy).status is Status.SOUND
    lines = _lines(copy, THREE)
    _put(copy, THREE, lines[:-1])
    with pytest.raises(LedgerError) as caught:
        Ledger.open(copy)
    assert caught.value.code == "ledger_truncated"
    data = rechain([*records(copy)[:-1], {**records(copy)[-1], "host": "other"}, records(made)[-1]])
    _put(copy, THREE, data.splitlines(keepends=True)[-len(lines) :])
    assert len(records(copy)) == 11
    with pytest.raises(LedgerError) as caught:
        Ledger.open(copy)
    assert caught.value.code == "ledger_damaged"
    shutil.rmtree(copy.parent / "ledger-key")
    _put(copy, THREE, lines)
    with pytest.raises(LedgerError) as caught:
        Ledger.open(copy)
    assert caught.value.code == "ledger_key_lost"
