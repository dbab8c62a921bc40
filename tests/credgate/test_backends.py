"""Which keyring is chosen, and which never is, whatever the caller's environment says."""

import os
import subprocess
import sys
from pathlib import Path

import keyring.backend
import pytest
from keyring.backend import KeyringBackend

from credgate.backends import BackendKind, backend_named, choose_backend, is_refused
from credgate.paths import Places
from credgate.secretvalue import SecretUnavailable


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.from_env({"HOME": str(tmp_path)})


def _ring(module: str, name: str, priority: float) -> KeyringBackend:
    """An object of a class of that name; not a subclass, which would enter keyring's own list for good."""
    cls = type(name, (), {"__module__": module, "priority": priority})
    return cls()


REFUSED = [
    ("keyring.backends.null", "Keyring"),
    ("keyring.backends.fail", "Keyring"),
    ("keyring.backends.chainer", "ChainerBackend"),
    ("keyrings.alt.file", "PlaintextKeyring"),
    ("keyrings.alt.file", "EncryptedKeyring"),
    ("keyrings.alt.Gnome", "Keyring"),
    ("somewhere.else", "MyPlainTextKeyring"),
    ("somewhere.else", "UnencryptedStore"),
]
TAKEN = [
    ("keyring.backends.SecretService", "Keyring", BackendKind.DESKTOP),
    ("keyring.backends.libsecret", "Keyring", BackendKind.DESKTOP),
    ("keyring.backends.kwallet", "DBusKeyring", BackendKind.DESKTOP),
    ("keyring_pass", "PasswordStoreBackend", BackendKind.OTHER),
    ("keyrings.alternative", "Vault", BackendKind.OTHER),
]


@pytest.mark.parametrize(("module", "name"), REFUSED)
def test_refused_by_name_however_good_it_says_it_is(
    places: Places, module: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: [_ring(module, name, 99)])
    assert is_refused(f"{module}.{name}")
    assert choose_backend(places, {}).kind is BackendKind.SEALED
    with pytest.raises(SecretUnavailable) as caught:
        backend_named(f"{module}.{name}", places, {})
    assert caught.value.code == "keyring_refused"


@pytest.mark.parametrize(("module", "name", "kind"), TAKEN)
def test_a_real_one_is_taken(
    places: Places, module: str, name: str, kind: BackendKind, monkeypatch: pytest.MonkeyPatch
):
    ring = _ring(module, name, 1)
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: [_ring(*REFUSED[0], 99), ring])
    chosen = choose_backend(places, {})
    assert (chosen.name, chosen.kind, chosen.ring) == (f"{module}.{name}", kind, ring)
    assert backend_named(f"{module}.{name}", places, {}).ring is ring


def test_the_best_one_is_taken_and_none_that_says_it_is_no_good(places: Places, monkeypatch: pytest.MonkeyPatch):
    rings = [_ring("a.b", "Low", 0.2), _ring("a.b", "High", 5), _ring("a.b", "Zero", 0), _ring("a.b", "Minus", -1)]
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: rings)
    assert choose_backend(places, {}).name == "a.b.High"
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: rings[2:])
    assert choose_backend(places, {}).kind is BackendKind.SEALED


_CHOOSE = """
import os, sys
from credgate.backends import choose_backend
from credgate.paths import Places
print(choose_backend(Places.from_env(os.environ), os.environ).name)
"""


@pytest.mark.parametrize("forced", ["keyring.backends.null.Keyring", "keyrings.alt.file.PlaintextKeyring"])
def test_the_environment_and_keyrings_own_file_force_nothing(tmp_path: Path, forced: str):
    config = tmp_path / "config" / "python_keyring"
    config.mkdir(parents=True)
    (config / "keyringrc.cfg").write_text(f"[backend]\ndefault-keyring={forced}\n")
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "PYTHON_KEYRING_BACKEND": forced}
    # control: keyring itself follows them
    itself = "import keyring; print(type(keyring.get_keyring()).__module__)"
    followed = subprocess.run(
        [sys.executable, "-I", "-c", itself], env=env, capture_output=True, text=True, check=False
    )
    assert followed.returncode != 0 or followed.stdout.strip() == forced.rpartition(".")[0]
    ours = subprocess.run([sys.executable, "-I", "-c", _CHOOSE], env=env, capture_output=True, text=True, check=True)
    assert not is_refused(ours.stdout.strip())


def test_a_property_in_the_environment_does_not_move_the_sealed_file(places: Places, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)
    monkeypatch.setenv("KEYRING_PROPERTY__DIRECTORY", "/nonexistent")
    monkeypatch.setenv("KEYRING_PROPERTY__KEY_FILE", "/nonexistent/key")
    backend = choose_backend(places, dict(os.environ))
    backend.ring.set_password("credgate", "x", "value")
    assert sorted(file.name for file in places.sealed.iterdir()) == ["key", "values.json"]


def test_a_credentials_directory_counts_only_with_our_key_in_it(places: Places, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)
    env = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    choose_backend(places, env).ring.set_password("credgate", "x", "value")
    assert (places.sealed / "key").exists()
    (tmp_path / "credgate-key").touch(mode=0o400)
    (tmp_path / "credgate-key").chmod(0o600)
    (tmp_path / "credgate-key").write_bytes((places.sealed / "key").read_bytes())
    (places.sealed / "key").unlink()
    assert choose_backend(places, env).ring.get_password("credgate", "x") == "value"


def test_a_backend_that_cannot_be_reached_is_named(places: Places, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)
    with pytest.raises(SecretUnavailable) as caught:
        backend_named("keyring.backends.SecretService.Keyring", places, {})
    assert caught.value.code == "keyring_missing"
    assert "keyring.backends.SecretService.Keyring" in caught.value.detail


def test_repr_shows_no_ring(places: Places):
    assert "ring=" not in repr(choose_backend(places, {}))
