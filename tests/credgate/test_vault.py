"""Sources of secrets: what each gives, and each way in which it gives nothing."""

import asyncio
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keyring.backend
import pytest
from keyring.errors import KeyringError, KeyringLocked

from credgate.backends import BackendKind, choose_backend
from credgate.paths import Places
from credgate.secretindex import read_index
from credgate.secretvalue import SecretUnavailable
from credgate.vault import Vault, forget, store
from rules.sources import SecretRule, SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = "canary-91d2"
AT = "2026-01-01T00:00:00Z"


class Desktop:
    """Stands for a desktop keyring. No subclass of KeyringBackend, which would enter keyring's own list for good."""

    priority = 5

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.before: Callable[[], None] = lambda: None

    def get_password(self, service: str, username: str) -> str | None:
        self.before()
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.before()
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self.before()
        del self.held[service, username]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.from_env({"HOME": str(tmp_path)})


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host that runs the tests may have a keyring of its own, which is none of ours."""
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch) -> Desktop:
    ring = Desktop()
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: [ring])
    return ring


def rule(kind: SourceKind, ref: str) -> SecretRule:
    return SecretRule(name="gh", kind=kind, ref=ref)


KEYRING = rule(SourceKind.KEYRING, "credgate/github")


def fetch(vault: Vault, asked: SecretRule, env: dict[str, str] | None = None) -> str:
    secret = asyncio.run(vault.fetch(asked, env or {}))
    assert secret.name == "gh"
    return secret.reveal()


def refused(vault: Vault, asked: SecretRule, env: dict[str, str] | None = None) -> SecretUnavailable:
    with pytest.raises(SecretUnavailable) as caught:
        fetch(vault, asked, env)
    assert VALUE not in f"{caught.value} {caught.value.detail} {caught.value.hint}"
    return caught.value


# --- keyring


def test_what_was_stored_is_fetched(places: Places):
    entry = store(places, {}, "github", VALUE, AT)
    assert entry.backend == "credgate.sealed.SealedKeyring"
    assert fetch(Vault(places, {}), KEYRING) == VALUE
    forget(places, {}, "github")
    assert refused(Vault(places, {}), KEYRING).code == "secret_not_set"


def test_what_was_never_stored_is_not_there_and_says_how_to_set_it(places: Places):
    error = refused(Vault(places, {}), KEYRING)
    assert (error.code, error.hint) == ("secret_not_set", "credgate secret set github")
    assert refused(Vault(places, {}), rule(SourceKind.KEYRING, "other/x")).hint == "keyring set other x"


@pytest.mark.parametrize("ref", ["github", "/github", "credgate/", ""])
def test_a_keyring_source_without_service_or_name(places: Places, ref: str):
    assert refused(Vault(places, {}), rule(SourceKind.KEYRING, ref)).code == "source_invalid"


def test_the_desktop_keyring_is_taken_where_one_works(places: Places, desktop: Desktop):
    store(places, {}, "github", VALUE, AT)
    assert desktop.held == {("credgate", "github"): VALUE}
    assert not places.sealed.exists()
    assert fetch(Vault(places, {}), KEYRING) == VALUE


def test_an_entry_of_another_program_is_found_by_service_and_name(places: Places, desktop: Desktop):
    desktop.held["acme", "deploy/key"] = VALUE
    assert fetch(Vault(places, {}), rule(SourceKind.KEYRING, "acme/deploy/key")) == VALUE


def test_a_value_stays_findable_when_a_better_backend_appears(places: Places, monkeypatch: pytest.MonkeyPatch):
    store(places, {}, "github", VALUE, AT)
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: [Desktop()])
    assert choose_backend(places, {}).name.endswith(".Desktop")
    assert fetch(Vault(places, {}), KEYRING) == VALUE


def test_a_backend_that_is_gone_is_named_and_no_other_is_asked(
    places: Places, desktop: Desktop, monkeypatch: pytest.MonkeyPatch
):
    store(places, {}, "github", VALUE, AT)
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)
    error = refused(Vault(places, {}), KEYRING)
    assert error.code == "keyring_missing"
    assert "Desktop" in error.detail


def test_a_locked_keyring_is_no_reason_to_go_elsewhere(places: Places, desktop: Desktop):
    def locked() -> None:
        raise KeyringLocked(VALUE)

    desktop.before = locked
    assert choose_backend(places, {}).ring is desktop
    assert refused(Vault(places, {}), KEYRING).code == "keyring_locked"
    with pytest.raises(SecretUnavailable):
        store(places, {}, "github", VALUE, AT)
    assert not places.sealed.exists()
    assert read_index(places) is None


@pytest.mark.parametrize(("error", "code"), [(KeyringError, "keyring_failed"), (RuntimeError, "secret_unavailable")])
def test_whatever_a_backend_raises_is_unavailable_and_its_text_is_not_shown(
    places: Places, desktop: Desktop, error: type[Exception], code: str
):
    def fail() -> None:
        raise error(VALUE)

    desktop.before = fail
    assert refused(Vault(places, {}), KEYRING).code == code


def test_a_keyring_that_hangs_is_given_up_and_keeps_nobody_waiting(places: Places, desktop: Desktop):
    release = threading.Event()
    desktop.before = lambda: release.wait(30) and None
    vault = Vault(places, {}, timeout=0.05)

    async def ask() -> list[object]:
        started = time.monotonic()
        first = await asyncio.gather(*(vault.fetch(KEYRING, {}) for _ in range(8)), return_exceptions=True)
        assert time.monotonic() - started < 5
        last = await asyncio.gather(vault.fetch(KEYRING, {}), return_exceptions=True)
        release.set()
        desktop.held["credgate", "github"] = VALUE
        desktop.before = lambda: None
        for _ in range(100):
            await asyncio.sleep(0.02)
            if vault._hanging == 0:
                break
        return [*first, *last, await vault.fetch(KEYRING, {})]

    *errors, secret = asyncio.run(ask())
    codes = [error.code for error in errors if isinstance(error, SecretUnavailable)]
    assert codes == ["keyring_timeout"] * 8 + ["keyring_hangs"]
    assert str(secret) == "<Secret gh>"


def test_many_look_ups_at_once_wait_for_their_turn(places: Places, desktop: Desktop):
    """Requests of a run in parallel, none of which hangs."""
    desktop.held["credgate", "github"] = VALUE
    running, most = [0], [0]
    lock = threading.Lock()

    def slow() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1

    desktop.before = slow
    vault = Vault(places, {}, timeout=60)

    async def ask() -> list[object]:
        asked = [asyncio.ensure_future(vault.fetch(KEYRING, {})) for _ in range(60)]
        await asyncio.sleep(0)
        for one in asked[20:30]:  # clients that leave, while they wait and while they are served
            one.cancel()
        return await asyncio.gather(*asked[:20], *asked[30:])

    assert [str(one) for one in asyncio.run(ask())] == ["<Secret gh>"] * 50
    assert most[0] <= 8
    assert vault._hanging == 0  # private: nothing is left


def test_look_ups_that_were_left_alone_hold_their_room_until_they_end(places: Places, desktop: Desktop):
    desktop.held["credgate", "github"] = VALUE
    release = threading.Event()
    desktop.before = lambda: release.wait(30) and None
    vault = Vault(places, {}, timeout=0.2)

    async def ask() -> Any:
        left = [asyncio.ensure_future(vault.fetch(KEYRING, {})) for _ in range(8)]
        await asyncio.sleep(0.01)
        for one in left:
            one.cancel()
        with pytest.raises(SecretUnavailable) as refused:
            await vault.fetch(KEYRING, {})
        assert refused.value.code == "keyring_timeout"
        release.set()
        for _ in range(100):
            with suppress(SecretUnavailable):
                return await vault.fetch(KEYRING, {})
        raise AssertionError("it never has room again")

    assert str(asyncio.run(ask())) == "<Secret gh>"


def test_a_value_that_cannot_be_injected_is_refused_at_fetch_too(places: Places, desktop: Desktop):
    desktop.held["credgate", "github"] = f"{VALUE}\r\nx: y"
    assert refused(Vault(places, {}), KEYRING).code == "secret_invalid"


def test_a_refused_value_changes_nothing(places: Places):
    with pytest.raises(SecretUnavailable):
        store(places, {}, "github", "a\nb", AT)
    assert not places.state.exists()


def test_a_sealed_file_that_was_changed_is_unavailable(places: Places):
    store(places, {}, "github", VALUE, AT)
    (places.sealed / "key").write_bytes(bytes(32))
    assert refused(Vault(places, {}), KEYRING).code == "sealed_key_wrong"


def test_state_that_is_open_to_others_is_unavailable(places: Places):
    store(places, {}, "github", VALUE, AT)
    (places.sealed / "key").chmod(0o644)
    assert refused(Vault(places, {}), KEYRING).code == "wrong_mode"


def test_a_value_is_kept_until_its_file_is_another(places: Places):
    store(places, {}, "github", VALUE, AT)
    vault, end = Vault(places, {}), time.monotonic() + 60
    assert vault.kept(KEYRING, {}) is None
    fetch(vault, KEYRING)  # in a thread, which finds out where it lies
    while vault.kept(KEYRING, {}) is None:  # what is read right behind a change is read again
        assert fetch(vault, KEYRING) == VALUE
        assert time.monotonic() < end
    kept = vault.kept(KEYRING, {})
    assert kept is not None
    assert kept.reveal() == VALUE
    store(places, {}, "github", VALUE[::-1], AT)
    assert vault.kept(KEYRING, {}) is None
    assert fetch(vault, KEYRING) == VALUE[::-1]


# --- the caller's environment


def test_a_value_of_the_environment_is_known_while_it_is_the_same(places: Places):
    vault, asked = Vault(places, {}), rule(SourceKind.ENV, "GH_TOKEN")
    assert vault.kept(asked, {"GH_TOKEN": "one-91d2"}) is None
    asyncio.run(vault.fetch(asked, {"GH_TOKEN": "one-91d2"}))
    known = vault.kept(asked, {"GH_TOKEN": "one-91d2"})
    assert known is not None
    assert known.reveal() == "one-91d2"
    assert vault.kept(asked, {"GH_TOKEN": "two-91d2"}) is None  # another run's caller
    assert vault.kept(asked, {}) is None


def test_a_file_is_read_each_time(places: Places, file: Path):
    vault, asked = Vault(places, {}), rule(SourceKind.FILE, str(file))
    asyncio.run(vault.fetch(asked, {}))
    assert vault.kept(asked, {}) is None


def test_env_is_the_callers_and_not_ours(places: Places, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GH_TOKEN", "ours")
    asked = rule(SourceKind.ENV, "GH_TOKEN")
    assert fetch(Vault(places, dict(os.environ)), asked, {"GH_TOKEN": VALUE}) == VALUE
    assert refused(Vault(places, dict(os.environ)), asked).code == "secret_not_set"


@pytest.mark.parametrize("value", ["", f"{VALUE}\n", f"{VALUE}\udcff"])
def test_env_values_are_checked_and_not_trimmed(places: Places, value: str):
    assert refused(Vault(places, {}), rule(SourceKind.ENV, "T"), {"T": value}).code == "secret_invalid"


# --- a file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(f"{VALUE}\n")
    return path


def test_a_file_loses_one_newline(places: Places, file: Path):
    assert fetch(Vault(places, {}), rule(SourceKind.FILE, str(file))) == VALUE
    file.write_text(VALUE)
    assert fetch(Vault(places, {}), rule(SourceKind.FILE, str(file))) == VALUE
    file.write_text(f"{VALUE}\n\n")
    assert refused(Vault(places, {}), rule(SourceKind.FILE, str(file))).code == "secret_invalid"


def test_a_file_below_the_callers_home(places: Places, file: Path):
    asked = rule(SourceKind.FILE, "~/token")
    assert fetch(Vault(places, {}), asked, {"HOME": str(file.parent)}) == VALUE
    assert refused(Vault(places, {}), asked).code == "source_invalid"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_a_file_that_others_may_use_is_refused(places: Places, file: Path, mode: int):
    file.chmod(mode)
    error = refused(Vault(places, {}), rule(SourceKind.FILE, str(file)))
    assert error.code == "file_refused"
    assert f"{mode:04o}" in error.detail
    file.chmod(0o400)
    assert fetch(Vault(places, {}), rule(SourceKind.FILE, str(file))) == VALUE


@pytest.mark.needs("root")
def test_a_file_of_somebody_else_is_refused(places: Places, file: Path):
    os.chown(file, 12345, -1)
    assert refused(Vault(places, {}), rule(SourceKind.FILE, str(file))).code == "file_refused"


@pytest.mark.parametrize("ref", ["token", "./token", "", "~token", "~"])
def test_a_file_by_a_relative_name_is_refused(places: Places, file: Path, ref: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    assert refused(Vault(places, {}), rule(SourceKind.FILE, ref)).code == "source_invalid"


def test_what_is_no_file_is_refused_at_once(places: Places, tmp_path: Path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path, code in (
        (tmp_path / "fifo", "file_refused"),
        (tmp_path, "file_refused"),
        (Path("/dev/zero"), "file_refused"),
        (tmp_path / "none", "secret_not_set"),
    ):
        assert refused(Vault(places, {}), rule(SourceKind.FILE, str(path))).code == code


@pytest.mark.parametrize("content", [b"", b"\n", b"a\0b", b"a\r\n", b"\xff\xfe", b"x" * (64 * 1024 + 1)])
def test_a_file_with_a_value_that_cannot_be_injected(places: Places, file: Path, content: bytes):
    file.write_bytes(content)
    assert refused(Vault(places, {}), rule(SourceKind.FILE, str(file))).code == "secret_invalid"


def test_a_file_with_the_longest_value(places: Places, file: Path):
    file.write_bytes(b"x" * (64 * 1024) + b"\n")
    assert len(fetch(Vault(places, {}), rule(SourceKind.FILE, str(file)))) == 64 * 1024


def test_kind_of_the_sealed_backend(places: Places):
    assert choose_backend(places, {}).kind is BackendKind.SEALED


def test_our_own_file_and_the_environment_are_read_without_a_thread(places: Places, monkeypatch: pytest.MonkeyPatch):
    def none(*_: object, **__: object) -> None:
        raise AssertionError("a thread was started")

    store(places, {}, "github", VALUE, AT)
    vault = Vault(places, {})
    assert fetch(vault, KEYRING) == VALUE  # the first one chooses the backend, which may take long
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", none)
        assert fetch(vault, KEYRING) == VALUE
        assert fetch(vault, rule(SourceKind.ENV, "T"), {"T": VALUE}) == VALUE
    forget(places, {}, "github")
    assert refused(vault, KEYRING).code == "secret_not_set"


def test_a_desktop_keyring_is_always_asked_in_a_thread(places: Places, desktop: Desktop):
    asked_by: list[str] = []
    desktop.before = lambda: asked_by.append(threading.current_thread().name)
    desktop.held["credgate", "github"] = VALUE
    vault = Vault(places, {})
    assert [fetch(vault, KEYRING) for _ in range(2)] == [VALUE] * 2
    assert asked_by == ["vault", "vault"]
