"""By what a run's limits are held, and the word for its end."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from credgate import limits, scope
from credgate.errors import CredgateError
from credgate.limits import held_by, judged, sums
from jail.cgroups import Base, Counters, Place
from jail.errors import JailError

V1 = Base(version=1, places=tuple(Place(controller=c, directory="/x", shown="/x") for c in ("memory", "pids")))
V1_CPU = Base(version=1, places=(*V1.places, Place(controller="cpuacct", directory="/x", shown="/x")))
V2 = Base(version=2, places=(Place(controller="", directory="/x", shown="/x"),))


@pytest.mark.parametrize(
    ("base", "summed", "memory"),
    [
        (None, ("memory", "processes", "cpu"), "memory=summed by pid 1"),
        (V1, ("cpu",), "memory=cgroup v1"),
        (V1_CPU, (), "memory=cgroup v1"),
        (V2, (), "memory=cgroup v2"),
    ],
)
def test_what_no_cgroup_holds_pid_1_sums_and_it_is_said(
    base: Base | None, summed: tuple[str, ...], memory: str
) -> None:
    assert sums(base) == summed
    assert held_by(base)[0] == memory
    assert [text.partition("=")[0] for text in held_by(base)] == ["memory", "processes", "cpu", "deadline"]


def test_open_swap_is_said() -> None:
    assert held_by(V2, closes_swap=False)[0] == "memory=cgroup v2, swap not closed"


@pytest.mark.parametrize(
    ("counters", "status", "reason", "word"),
    [
        ((1, 0, 0.1), 137, "signaled", "oom"),
        ((1, 0, 0.1), 137, "killed", "oom"),  # pid 1 itself was the victim
        ((1, 0, 0.1), 0, "exited", "exited"),  # it did without the child that was killed
        ((1, 5, 99.0), 1, "exited", "oom"),
        ((0, 0, 60.0), 137, "signaled", "timeout"),
        ((0, 0, 59.9), 137, "signaled", "timeout"),  # RLIMIT_CPU counts from the fork on
        ((0, 0, 59.7), 137, "signaled", "signaled"),
        ((0, 0, None), 137, "signaled", "signaled"),
        ((0, 3, 0.1), 2, "exited", "processes"),
        ((0, 3, 0.1), 0, "exited", "exited"),
        ((9, 9, 99.0), 137, "gateway", "gateway"),
        ((9, 9, 99.0), 143, "timeout", "timeout"),
    ],
)
def test_the_word_for_an_end(counters: tuple[int, int, float | None], status: int, reason: str, word: str) -> None:
    kills, forks, cpu = counters
    assert judged(Counters(oom_kills=kills, refused_forks=forks, cpu=cpu), 60, status, reason) == word


def test_a_launcher_that_is_gone_is_an_error_and_no_weaker_mechanism() -> None:
    with pytest.raises(JailError) as caught:
        limits.base_for(2**22 + 1)
    assert caught.value.code == "cgroup_unknown"


# The scope of a service manager


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A host where a service manager runs, with a stand-in that does what systemd-run --scope does: exec the rest."""
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/private").touch()
    stand_in = tmp_path / "systemd-run"
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do echo "$1"; shift; done; shift; exec "$@"\n')
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(scope, "SYSTEMD_RUN", str(stand_in))
    monkeypatch.setattr(scope, "UNIFIED", str(tmp_path / "systemd/private"))
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_the_daemon_is_started_in_a_delegated_scope_of_a_name_that_is_known_again(managed: dict[str, str]) -> None:
    argv = scope.in_scope(["echo", "started"], managed)
    assert argv is not None
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\n")
    assert said[:3] == ["--user", "--scope", "--quiet"]
    assert any(word.startswith("--unit=credgate-") for word in said)
    assert "--property=Delegate=yes" in said
    assert said[-2] == "started"


@pytest.mark.parametrize("lack", ["manager", "unified", "program"])
def test_without_one_there_is_no_scope(managed: dict[str, str], monkeypatch: pytest.MonkeyPatch, lack: str) -> None:
    match lack:
        case "manager":
            managed = {}
        case "unified":
            monkeypatch.setattr(scope, "UNIFIED", "/nonexistent")
        case _:
            monkeypatch.setattr(scope, "SYSTEMD_RUN", "/nonexistent")
    assert scope.in_scope(["true"], managed) is None


def test_a_scope_that_is_refused_is_no_end(managed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from credgate import controlclient
    from credgate.paths import Places

    tried: list[bool] = []

    def spawn(_places: Places, _idle: float, _environment: dict[str, str], *, scoped: bool) -> int:
        reader, writer = os.pipe()
        if not scoped:
            os.write(writer, b'{"ok": true}\n')
        os.close(writer)
        tried.append(scoped)
        return reader

    monkeypatch.setattr(controlclient, "_spawn", spawn)
    monkeypatch.setenv("XDG_RUNTIME_DIR", managed["XDG_RUNTIME_DIR"])
    places = Places.from_env({"HOME": managed["XDG_RUNTIME_DIR"]})
    controlclient._start(places, 1.0)
    assert tried == [True, False]
    monkeypatch.setattr(scope, "UNIFIED", "/nonexistent")
    controlclient._start(places, 1.0)
    assert tried == [True, False, False]
    monkeypatch.setattr(controlclient, "_spawn", lambda *_a, **_k: os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(CredgateError):
        controlclient._start(places, 1.0)
