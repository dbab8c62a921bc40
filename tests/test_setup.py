"""scripts/setup where the host lacks something: what it says, and that it starts nothing half."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.fixture
def tree() -> Iterator[Path]:
    """A copy of what set-up reads, without a .venv, that an ordinary user can enter."""
    path = Path(tempfile.mkdtemp(prefix="credgate-setup-"))
    path.chmod(0o755)
    for name in ("scripts", "bin"):
        shutil.copytree(CHECKOUT / name, path / name)
    for name in ("pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(CHECKOUT / name, path)
    yield path
    shutil.rmtree(path)


def setup(tree: Path, *argv: str, user: bool = False) -> subprocess.CompletedProcess[str]:
    as_user = NOBODY if user and os.geteuid() == 0 else []
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tree), "CREDGATE_PREFIX": str(tree / "prefix")}
    return subprocess.run(
        [*as_user, str(tree / "scripts/setup"), *argv], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def shell(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-uc", f". scripts/lib/say.sh; . scripts/lib/python.sh; {code}"],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def replace(tree: Path, part: str, function: str) -> None:
    with (tree / "scripts/lib" / part).open("a") as file:
        file.write(f"\n{function}\n")


@pytest.mark.parametrize("user", [False, True])
def test_without_a_python_it_says_how_to_get_one(tree: Path, user: bool) -> None:
    replace(tree, "python.sh", "find_python() { return 1; }")
    done = setup(tree, user=user)
    assert done.returncode == 3
    assert done.stderr.startswith("error: no Python 3.12 or newer")
    assert "hint: " in done.stderr
    assert not (tree / ".venv").exists()


def test_an_ordinary_user_is_told_what_root_must_install(tree: Path) -> None:
    replace(tree, "python.sh", f"find_python() {{ echo {sys.executable}; }}")
    replace(tree, "host.sh", "missing_libraries() { echo libnftables1; }")
    done = setup(tree, user=True)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "error: missing on this host: libnftables1",
        "hint: root has to install them: sudo scripts/setup, or apt-get install libnftables1",
    ]


def test_what_is_not_a_venv_is_not_replaced(tree: Path) -> None:
    replace(tree, "python.sh", f"find_python() {{ echo {sys.executable}; }}")
    (tree / ".venv").mkdir()
    (tree / ".venv/thesis.txt").write_text("the only copy")
    done = setup(tree)
    assert done.returncode == 3
    assert "no virtual environment" in done.stderr
    assert (tree / ".venv/thesis.txt").read_text() == "the only copy"


def test_arguments_are_a_usage_error(tree: Path) -> None:
    assert setup(tree, "--fast").returncode == 2


def test_a_python_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "python3.13").write_text("#!/bin/sh\necho 'no such version' >&2\nexit 127\n")
    (tmp_path / "python3.12").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("python3.13", "python3.12"):
        (tmp_path / name).chmod(0o755)
    only_these = f"python_candidates() {{ printf '%s\\n' {tmp_path}/python3.13 {tmp_path}/python3.12; }}"
    done = shell(f"{only_these}; find_python", CREDGATE_PREFIX=str(tmp_path))
    assert done.stdout.strip() == os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]


@pytest.mark.needs("root")
@pytest.mark.parametrize(("mode", "runs"), [(0o755, True), (0o700, False)])
def test_others_can_run_a_python_only_if_they_reach_it(tree: Path, mode: int, runs: bool) -> None:
    place = tree / "place"
    place.mkdir(mode=mode)
    wrapper = place / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    assert (shell(f"anyone_runs {sys.executable} {wrapper}").returncode == 0) is runs
