"""Where state lies, and that a wrong owner or mode is an error which names path, got, expected and mend."""

import os
import stat
from pathlib import Path

import pytest

from credgate.paths import (
    PlaceError,
    Places,
    check_private_dir,
    open_private,
    private_dir,
    read_private,
    write_private,
)


def test_places_by_home_and_by_xdg():
    home = Places.from_env({"HOME": "/h"})
    assert (home.state, home.config) == (Path("/h/.local/state/credgate"), Path("/h/.config/credgate"))
    xdg = Places.from_env({"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"})
    assert (xdg.state, xdg.config) == (Path("/s/credgate"), Path("/c/credgate"))
    assert home.ledger == Path("/h/.local/state/credgate/ledger")
    assert home.control == Path("/h/.local/state/credgate/run/control")
    assert (home.ca.name, home.sealed.name, home.trusted.name) == ("ca", "sealed", "trusted.json")
    empty = Places.from_env({"HOME": "/h", "XDG_STATE_HOME": ""})
    assert empty.state == home.state


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ({}, "no_home"),
        ({"HOME": ""}, "no_home"),
        ({"HOME": "h"}, "path_not_absolute"),
        ({"HOME": "/h", "XDG_STATE_HOME": "./s"}, "path_not_absolute"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "~/c"}, "path_not_absolute"),
        ({"XDG_STATE_HOME": "/s"}, "no_home"),
    ],
)
def test_places_that_are_none(env: dict[str, str], code: str):
    with pytest.raises(PlaceError) as caught:
        Places.from_env(env)
    assert caught.value.code == code
    assert caught.value.hint


def test_a_socket_path_at_the_bound_and_one_beyond_it():
    rest = len("/credgate/run/control")
    fits = Places.from_env({"HOME": "/h", "XDG_STATE_HOME": "/" + "x" * (107 - rest - 1)})
    assert len(str(fits.control)) == 107
    beyond = Places.from_env({"HOME": "/h", "XDG_STATE_HOME": "/" + "x" * (107 - rest)})
    with pytest.raises(PlaceError, match="socket_path_too_long"):
        _ = beyond.control
    wide = Places.from_env({"HOME": "/h", "XDG_STATE_HOME": "/" + "é" * 50})
    with pytest.raises(PlaceError, match="has 122 bytes"):
        _ = wide.control


def test_directories_are_made_private_with_their_parents(tmp_path: Path):
    old = os.umask(0o022)
    try:
        private_dir(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / p).stat().st_mode) for p in ("a", "a/b")] == [0o700, 0o700]
    private_dir(tmp_path / "a" / "b")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o500, 0o1700])
def test_a_directory_of_another_mode_is_named_and_not_mended(tmp_path: Path, mode: int):
    path = private_dir(tmp_path / "d")
    path.chmod(mode)
    with pytest.raises(PlaceError) as caught:
        private_dir(path)
    error = caught.value
    assert error.code == "wrong_mode"
    assert error.detail == f"{path}: mode is {mode:04o}, expected 0700"
    assert f"chmod 0700 {path}" in error.hint
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.needs("root")
def test_another_owner_is_named_and_not_mended(tmp_path: Path):
    path = private_dir(tmp_path / "d")
    write_private(path / "f", b"x")
    os.chown(path / "f", 12345, -1)
    with pytest.raises(PlaceError) as caught:
        read_private(path / "f", 10)
    assert caught.value.detail == f"{path / 'f'}: owner is uid 12345, expected uid 0"
    os.chown(path, 12345, -1)
    with pytest.raises(PlaceError) as caught:
        check_private_dir(path)
    assert caught.value.code == "wrong_owner"
    assert path.stat().st_uid == 12345


def test_links_and_other_kinds_are_refused(tmp_path: Path):
    real = private_dir(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch(0o700)
    for name in ("link", "dangling", "file"):
        with pytest.raises(PlaceError) as caught:
            private_dir(tmp_path / name)
        assert caught.value.code == "not_a_directory"
    assert not (tmp_path / "nowhere").exists()
    write_private(real / "f", b"x")
    (real / "flink").symlink_to(real / "f")
    os.mkfifo(real / "fifo", 0o600)
    for name in ("flink", "fifo"):
        with pytest.raises(PlaceError):
            read_private(real / name, 10)
    with pytest.raises(PlaceError):
        read_private(real, 10)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602, 0o400, 0o4600])
def test_a_file_of_another_mode_is_named_and_not_mended(tmp_path: Path, mode: int):
    write_private(tmp_path / "f", b"x")
    assert read_private(tmp_path / "f", 10) == b"x"
    (tmp_path / "f").chmod(mode)
    with pytest.raises(PlaceError) as caught:
        read_private(tmp_path / "f", 10)
    assert caught.value.detail == f"{tmp_path / 'f'}: mode is {mode:04o}, expected 0600"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


def test_a_file_that_is_missing_or_too_large(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "f", 10)
    write_private(tmp_path / "f", b"x" * 11)
    with pytest.raises(PlaceError, match="file_too_large"):
        read_private(tmp_path / "f", 10)


def test_a_write_replaces_and_what_a_crash_left_behind_does_not_matter(tmp_path: Path):
    (tmp_path / "other").write_bytes(b"of another")
    (tmp_path / ".f.new").symlink_to(tmp_path / "other")
    write_private(tmp_path / "f", b"one")
    write_private(tmp_path / "f", b"two")
    assert read_private(tmp_path / "f", 10) == b"two"
    assert (tmp_path / "other").read_bytes() == b"of another"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "other"]


def test_a_write_that_cannot_be_done(tmp_path: Path):
    with pytest.raises(PlaceError) as caught:
        write_private(tmp_path / "none" / "f", b"x")
    assert caught.value.code == "place_unusable"
    with pytest.raises(PlaceError):
        private_dir(Path("/proc/self/none"))


def test_descriptors_are_not_inherited(tmp_path: Path):
    fd = open_private(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    assert not os.get_inheritable(fd)
    os.close(fd)
