"""A value is read again once its files are others than they were, and only then."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from credgate.paths import Places
from credgate.sealed import SealedKeyring
from credgate.unchanged import Unchanged, identities
from credgate.vault import store
from tests.credgate.test_vault import AT, KEYRING, VALUE, Vault, fetch, no_keyring, places, refused

__all__ = ["no_keyring", "places"]

LATER = 10**9  # nanoseconds: long behind the last change


class Counted:
    """Reads a file; `clock` tells how long after its last change that is."""

    def __init__(self, path: Path, after: int) -> None:
        self.path, self.reads = path, 0
        self.kept: Unchanged[str] = Unchanged(lambda: path.stat().st_ctime_ns + after)

    def read(self) -> str:
        self.reads += 1
        return self.path.read_text()

    def get(self) -> str:
        return self.kept.get("key", (str(self.path),), self.read)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "value"
    file.write_text("one")
    return file


def test_what_did_not_change_is_read_once(path: Path) -> None:
    counted = Counted(path, LATER)
    assert [counted.get() for _ in range(3)] == ["one"] * 3
    assert counted.reads == 1


def replaced(path: Path) -> None:
    path.with_name("new").write_text("two")
    path.with_name("new").rename(path)


def back_dated(path: Path) -> None:
    """The same size and the same time of its content: what is left is the kernel's own time of the change."""
    facts = path.stat()
    path.write_text("two")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("change", [replaced, back_dated, lambda path: path.write_text("two")])
def test_what_changed_is_read_again_whatever_hides_it(path: Path, change) -> None:
    counted = Counted(path, LATER)
    assert counted.get() == "one"
    time.sleep(0.02)  # a tick, where the kernel counts in them
    change(path)
    assert counted.get() == "two"


@pytest.mark.parametrize(("after", "reads"), [(10**7, 3), (-LATER, 3), (LATER, 1)])
def test_what_may_have_changed_in_the_same_tick_is_not_kept(path: Path, after: int, reads: int) -> None:
    counted = Counted(path, after)
    for _ in range(3):
        counted.get()
    assert counted.reads == reads


def test_a_link_is_never_kept_and_a_file_that_goes_is_missed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    counted = Counted(link, LATER)
    assert (counted.get(), counted.get(), counted.reads) == ("one", "one", 2)
    plain = Counted(path, LATER)
    assert plain.get() == "one"
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        plain.get()


def test_an_inode_may_take_all_64_bits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat(path)
    names = ("st_dev", "st_mode", "st_uid", "st_size", "st_mtime_ns", "st_ctime_ns")
    facts = SimpleNamespace(**{name: getattr(real, name) for name in names}, st_ino=2**64 - 1)
    counted = Counted(path, LATER)
    counted.kept._look = identities
    monkeypatch.setattr(os, "lstat", lambda _: facts)
    assert [counted.get() for _ in range(3)] == ["one"] * 3
    assert counted.reads == 1
    facts.st_ino -= 1
    assert (counted.get(), counted.reads) == ("one", 2)


def test_our_own_file_is_opened_once_and_a_rotation_counts_at_the_next_request(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = SealedKeyring.get_password
    monkeypatch.setattr(SealedKeyring, "get_password", lambda *a: opened.append(a[2]) or real(*a))
    store(places, {}, "github", VALUE, AT)
    time.sleep(0.1)
    vault = Vault(places, {})
    assert [fetch(vault, KEYRING) for _ in range(5)] == [VALUE] * 5
    assert len(opened) == 2  # the first one chooses the backend
    for turn in range(20):  # each as soon as the one before, and as long
        store(places, {}, "github", f"canary-{turn:04}", AT)
        assert fetch(vault, KEYRING) == f"canary-{turn:04}"
    places.sealed.joinpath("key").chmod(0o644)
    assert refused(vault, KEYRING).code == "wrong_mode"
    places.sealed.joinpath("key").chmod(0o600)
    assert fetch(vault, KEYRING) == "canary-0019"
    places.secrets.unlink()
    places.sealed.joinpath("values.json").unlink()
    assert refused(vault, KEYRING).code == "secret_not_set"
