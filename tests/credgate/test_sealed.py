"""The sealed file: what a changed byte, a wrong key, a moved value, a wrong mode and two writers at once come to."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

from credgate.paths import PlaceError
from credgate.sealed import SealedError, SealedKeyring

VALUE = "canary-5b1e"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sealed"


@pytest.fixture
def ring(directory: Path) -> SealedKeyring:
    ring = SealedKeyring(directory)
    ring.set_password("credgate", "github", VALUE)
    return ring


def test_what_was_set_comes_back(ring: SealedKeyring, directory: Path):
    assert isinstance(ring, KeyringBackend)
    ring.set_password("credgate", "other", "second")
    ring.set_password("credgate", "github", "changed é")
    again = SealedKeyring(directory)
    assert again.get_password("credgate", "github") == "changed é"
    assert again.get_password("credgate", "other") == "second"
    assert again.get_password("credgate", "none") is None
    assert again.get_password("none", "github") is None


def test_nothing_set_is_nothing_and_makes_nothing(directory: Path):
    assert SealedKeyring(directory).get_password("credgate", "github") is None
    assert not directory.exists()


def test_what_was_deleted_is_gone(ring: SealedKeyring, directory: Path):
    ring.delete_password("credgate", "github")
    assert ring.get_password("credgate", "github") is None
    assert "github" not in (directory / "values.json").read_text()
    with pytest.raises(PasswordDeleteError):
        ring.delete_password("credgate", "github")
    with pytest.raises(PasswordDeleteError):
        SealedKeyring(directory.parent / "fresh").delete_password("credgate", "github")


def test_no_file_holds_the_value_and_all_are_private(ring: SealedKeyring, directory: Path):
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = sorted(directory.iterdir())
    assert [file.name for file in files] == ["key", "values.json"]
    for file in files:
        assert VALUE.encode() not in file.read_bytes()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_same_value_is_sealed_otherwise_each_time(ring: SealedKeyring, directory: Path):
    before = (directory / "values.json").read_bytes()
    ring.set_password("credgate", "github", VALUE)
    assert (directory / "values.json").read_bytes() != before


def _outcome(ring: SealedKeyring) -> str | None:
    try:
        return ring.get_password("credgate", "github")
    except SealedError as error:
        return error.code


def test_every_flipped_byte_is_an_error_or_no_value(ring: SealedKeyring, directory: Path):
    path = directory / "values.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        outcome = _outcome(ring)
        # a changed name finds nothing, a changed space says the same
        expected = ["sealed_damaged", "sealed_key_wrong", None, *([VALUE] if whole[at : at + 1].isspace() else [])]
        assert outcome in expected, at


def test_a_value_moved_to_another_name_does_not_open(ring: SealedKeyring, directory: Path):
    path = directory / "values.json"
    document = json.loads(path.read_bytes())
    document["values"]["credgate"]["other"] = document["values"]["credgate"]["github"]
    document["values"]["credgat"] = {"egithub": document["values"]["credgate"]["github"]}
    path.write_text(json.dumps(document))
    assert ring.get_password("credgate", "github") == VALUE
    for service, name in (("credgate", "other"), ("credgat", "egithub")):
        with pytest.raises(SealedError) as caught:
            ring.get_password(service, name)
        assert caught.value.code == "sealed_damaged"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"v":2,"key":"a","values":{}}',
        b'{"v":1,"key":"a","values":{"s":{"n":1}}}',
    ],
)
def test_another_file_in_its_place_is_damaged(ring: SealedKeyring, directory: Path, content: bytes):
    (directory / "values.json").write_bytes(content)
    for action in (
        lambda: ring.get_password("credgate", "github"),
        lambda: ring.set_password("credgate", "github", "x"),
        lambda: ring.delete_password("credgate", "github"),
    ):
        with pytest.raises(SealedError) as caught:
            action()
        assert caught.value.code == "sealed_damaged"
    assert (directory / "values.json").read_bytes() == content


def test_a_wrong_key_is_said_and_nothing_is_overwritten(ring: SealedKeyring, directory: Path):
    before = (directory / "values.json").read_bytes()
    (directory / "key").write_bytes(os.urandom(32))
    for action in (
        lambda: ring.get_password("credgate", "github"),
        lambda: ring.set_password("credgate", "other", "x"),
    ):
        with pytest.raises(SealedError) as caught:
            action()
        assert caught.value.code == "sealed_key_wrong"
    assert (directory / "values.json").read_bytes() == before


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 31])
def test_a_key_of_another_length(ring: SealedKeyring, directory: Path, key: bytes):
    (directory / "key").write_bytes(key)
    with pytest.raises(SealedError) as caught:
        ring.get_password("credgate", "github")
    assert caught.value.code == "sealed_key_wrong"


def test_a_missing_key_is_said_and_not_made_anew(ring: SealedKeyring, directory: Path):
    (directory / "key").unlink()
    for action in (
        lambda: ring.get_password("credgate", "github"),
        lambda: ring.set_password("credgate", "other", "x"),
    ):
        with pytest.raises(SealedError) as caught:
            action()
        assert caught.value.code == "sealed_key_missing"
    assert not (directory / "key").exists()


@pytest.mark.parametrize("name", ["key", "values.json"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o400])
def test_a_file_of_another_mode_is_refused(ring: SealedKeyring, directory: Path, name: str, mode: int):
    (directory / name).chmod(mode)
    with pytest.raises(PlaceError) as caught:
        ring.get_password("credgate", "github")
    assert caught.value.code == "wrong_mode"
    assert f"{mode:04o}, expected 0600" in caught.value.detail
    assert f"chmod 0600 {directory / name}" in caught.value.hint
    (directory / name).chmod(0o600)
    assert ring.get_password("credgate", "github") == VALUE


def test_a_directory_of_another_mode_is_refused(ring: SealedKeyring, directory: Path):
    directory.chmod(0o750)
    with pytest.raises(PlaceError):
        ring.set_password("credgate", "github", "x")


_SET = """
import sys
from pathlib import Path
from credgate.sealed import SealedKeyring
ring = SealedKeyring(Path(sys.argv[1]))
for n in range(15):
    ring.set_password("credgate", f"{sys.argv[2]}-{n}", f"value-{sys.argv[2]}-{n}")
"""


def test_writers_at_the_same_time_lose_nothing(directory: Path):
    children = [subprocess.Popen([sys.executable, "-I", "-c", _SET, str(directory), name]) for name in "abc"]
    assert [child.wait(30) for child in children] == [0, 0, 0]
    ring = SealedKeyring(directory)
    for name in "abc":
        for n in range(15):
            assert ring.get_password("credgate", f"{name}-{n}") == f"value-{name}-{n}"


def test_a_write_that_fails_leaves_the_old_file(ring: SealedKeyring, directory: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PlaceError) as caught:
            ring.set_password("credgate", "github", "new")
        assert caught.value.code == "place_unusable"
    assert ring.get_password("credgate", "github") == VALUE
    ring.set_password("credgate", "github", "new")
    assert ring.get_password("credgate", "github") == "new"


def test_what_a_crash_left_behind_is_no_obstacle(ring: SealedKeyring, directory: Path):
    (directory / ".values.json.new").write_bytes(b"half")
    ring.set_password("credgate", "github", "new")
    assert ring.get_password("credgate", "github") == "new"
    assert not (directory / ".values.json.new").exists()


# --- a systemd credential in place of the key file


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "credgate-key").write_bytes(bytes(range(32)))
    (folder / "credgate-key").chmod(0o400)
    return folder


def test_a_credential_is_the_key_and_none_is_written(directory: Path, credentials: Path):
    ring = SealedKeyring(directory, credentials)
    ring.set_password("credgate", "github", VALUE)
    assert ring.get_password("credgate", "github") == VALUE
    assert [file.name for file in directory.iterdir()] == ["values.json"]
    with pytest.raises(SealedError) as caught:
        SealedKeyring(directory).get_password("credgate", "github")
    assert caught.value.code == "sealed_key_missing"


@pytest.mark.parametrize("mode", [0o444, 0o420, 0o604])
def test_a_credential_that_others_can_read_or_write_is_refused(directory: Path, credentials: Path, mode: int):
    (credentials / "credgate-key").chmod(mode)
    with pytest.raises(SealedError) as caught:
        SealedKeyring(directory, credentials).set_password("credgate", "github", VALUE)
    assert caught.value.code == "sealed_key_open"


def test_a_credential_that_is_no_file_is_refused(directory: Path, credentials: Path):
    (credentials / "credgate-key").unlink()
    (credentials / "credgate-key").mkdir(mode=0o700)
    with pytest.raises(SealedError) as caught:
        SealedKeyring(directory, credentials).set_password("credgate", "github", VALUE)
    assert caught.value.code == "sealed_key_open"


def test_a_credential_of_another_length_is_refused(directory: Path, credentials: Path):
    (credentials / "credgate-key").chmod(0o600)
    (credentials / "credgate-key").write_bytes(b"x" * 33)
    with pytest.raises(SealedError) as caught:
        SealedKeyring(directory, credentials).set_password("credgate", "github", VALUE)
    assert caught.value.code == "sealed_key_wrong"


def test_a_credentials_directory_without_ours_is_an_error(directory: Path, tmp_path: Path):
    (tmp_path / "bare").mkdir()
    with pytest.raises(SealedError) as caught:
        SealedKeyring(directory, tmp_path / "bare").set_password("credgate", "github", VALUE)
    assert caught.value.code == "sealed_key_missing"
