"""The suite's own rules: features that CI requires cannot be skipped or forgotten, and the contracts can break."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel import Scheduling

CHECKOUT = Path(__file__).parent.parent

FAKE_FEATURES = """
    import tests.needs
    tests.needs.FEATURES = {"here": lambda: "", "gone": lambda: "this kernel has none"}
    tests.needs.lack.cache_clear()
"""
NEEDS_HERE = """
    import pytest
    @pytest.mark.needs("here")
    def test_here(): pass
"""
NEEDS_GONE = """
    import pytest
    @pytest.mark.needs("gone")
    def test_gone(): raise AssertionError("must not run")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.delenv("CREDGATE_REQUIRE", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second for each of them, and none has a say here
    options = "-p xdist -p tests.needs -p fake_features --strict-markers"
    pytester.makeini(f"[pytest]\ntestpaths = .\naddopts = {options}")
    pytester.makepyfile(fake_features=FAKE_FEATURES)
    return pytester


def test_a_missing_feature_skips_with_the_reason(suite: pytest.Pytester) -> None:
    suite.makepyfile(NEEDS_GONE)
    result = suite.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no gone: this kernel has none*"])


def test_a_missing_feature_fails_where_it_is_required(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "gone")
    suite.makepyfile(NEEDS_GONE)
    result = suite.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gone is required*this kernel has none*"])


def test_a_required_feature_that_no_test_exercises_fails_the_session(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    suite.makepyfile("def test_other(): pass")
    result = suite.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR here is required*no test that passed needs it"])


def test_a_test_that_is_skipped_in_its_body_exercises_nothing(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    suite.makepyfile(NEEDS_HERE.replace("pass", "pytest.skip('not today')"))
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.TESTS_FAILED


def test_a_required_feature_that_is_exercised_passes(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    suite.makepyfile(NEEDS_HERE)
    result = suite.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


def test_what_one_of_several_workers_exercised_counts(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    suite.makepyfile(test_a=NEEDS_HERE, test_b="def test_b(): pass", test_c="def test_c(): pass")
    result = suite.runpytest_subprocess("-n2", "--dist=loadfile")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.OK


def test_what_no_worker_exercised_fails_the_session(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    suite.makepyfile(test_a=NEEDS_HERE.replace("pass", "pytest.skip('not today')"), test_b="def test_b(): pass")
    result = suite.runpytest_subprocess("-n2", "--dist=loadfile")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR here is required*no test that passed needs it"])


# A second look


@pytest.fixture
def failures(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the tests that failed are written; the suite has the plugin that does."""
    told = tmp_path / "failed"
    monkeypatch.setenv("CREDGATE_TEST_FAILED", str(told))
    monkeypatch.delenv("CREDGATE_TEST_AGAIN", raising=False)
    return told


@pytest.mark.parametrize("workers", [(), ("-n2", "--dist=loadfile")])
def test_what_failed_is_written_down(suite: pytest.Pytester, failures: Path, workers: tuple[str, ...]) -> None:
    torn = "import pytest\n@pytest.fixture\ndef torn():\n    yield\n    assert False\ndef test_torn(torn): pass"
    suite.makepyfile(test_a="def test_a(): assert False\ndef test_well(): pass", test_b=torn)
    assert suite.runpytest_subprocess("-p", "tests.again", *workers).ret == pytest.ExitCode.TESTS_FAILED
    assert sorted(failures.read_text().split()) == ["test_a.py::test_a", "test_b.py::test_torn"]


@pytest.mark.parametrize("lost", ["import os\ndef test_c(): os._exit(1)", "import no_such_module"])
def test_nothing_is_written_where_a_second_run_could_not_tell_all(
    suite: pytest.Pytester, failures: Path, lost: str
) -> None:
    """A worker that died, a module that was not read."""
    suite.makepyfile(test_a="def test_a(): assert False", test_c=lost)
    assert suite.runpytest_subprocess("-p", "tests.again", "-n2", "--max-worker-restart=0").ret != pytest.ExitCode.OK
    assert not failures.exists()


def test_in_a_second_run_to_skip_is_to_fail(
    suite: pytest.Pytester, failures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures.with_name("failed.features").touch()
    suite.makepyfile(test_a="def test_a(): pass", test_b=NEEDS_GONE)
    assert suite.runpytest_subprocess("-p", "tests.again").ret == pytest.ExitCode.OK
    monkeypatch.setenv("CREDGATE_TEST_AGAIN", "1")
    assert suite.runpytest_subprocess("-p", "tests.again", "test_a.py").ret == pytest.ExitCode.OK
    assert suite.runpytest_subprocess("-p", "tests.again").ret == pytest.ExitCode.TESTS_FAILED


def test_a_second_run_exercises_what_the_first_one_did_not(
    suite: pytest.Pytester, failures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    suite.makepyfile(test_a=NEEDS_HERE.replace("pass", "assert False"), test_b="def test_b(): pass")
    assert suite.runpytest_subprocess("-p", "tests.again", "-n2").ret == pytest.ExitCode.TESTS_FAILED
    assert failures.read_text() == "test_a.py::test_here\n"
    monkeypatch.setenv("CREDGATE_TEST_AGAIN", "1")
    assert suite.runpytest_subprocess("-p", "tests.again", "test_b.py").ret == pytest.ExitCode.TESTS_FAILED
    suite.makepyfile(test_a=NEEDS_HERE)
    assert suite.runpytest_subprocess("-p", "tests.again", "test_a.py").ret == pytest.ExitCode.OK


WHERE = """
    import os, socket
    def test_where():
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            print("NETWORK", os.readlink("/proc/self/ns/net"))
            assert False
"""


def test_the_files_that_the_second_pass_names_are_there() -> None:
    text = (CHECKOUT / "scripts/test").read_text()
    arrays = re.findall(r"^(?:AS_ORDINARY_USER|NOT_TWICE)=\(.*?^\)", text, re.MULTILINE | re.DOTALL)
    script = "\n".join([*arrays, 'printf "%s\\n" "${AS_ORDINARY_USER[@]}" "${NOT_TWICE[@]}"'])
    named = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout.split()
    assert len(named) > 40
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_what_is_one_workers() -> None:
    scope = Scheduling._split_scope
    apart = "tests/agents/test_clis.py::test_a[x::y]"
    assert scope(Scheduling.__new__(Scheduling), apart) == apart
    assert scope(Scheduling.__new__(Scheduling), "tests/rules/test_b.py::test_b[x::y]") == "tests/rules/test_b.py"


@pytest.mark.needs("root")
def test_each_worker_of_roots_suite_has_a_network_of_its_own(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_a=WHERE, test_b=WHERE)
    result = suite.runpytest_subprocess("-p", "tests.parallel", "-n2", "--dist=loadfile")
    result.assert_outcomes(failed=2)
    seen = {line for line in result.outlines if line.startswith("NETWORK")}
    assert len(seen) == 2 and f"NETWORK {os.readlink('/proc/self/ns/net')}" not in seen


def test_a_part_of_the_suite_is_not_asked_for_all_features(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDGATE_REQUIRE", "here")
    part = suite.makepyfile("def test_other(): pass")
    assert suite.runpytest_subprocess(part).ret == pytest.ExitCode.OK


def test_a_feature_that_nobody_knows_is_an_error(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.makepyfile(NEEDS_HERE.replace('"here"', '"heer"'))
    suite.runpytest_subprocess().assert_outcomes(errors=1)
    monkeypatch.setenv("CREDGATE_REQUIRE", "heer")
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.USAGE_ERROR


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, to break a contract in."""
    shutil.copytree(CHECKOUT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command as c; c()"
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-I", "-c", code, "--no-cache"], cwd=tree, env=env, capture_output=True, text=True, check=False
    )


def test_the_sources_keep_the_import_contract(tree: Path) -> None:
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout + done.stderr


FORBIDDEN = (
    ("rules/request.py", "socket", "rules does no I/O"),
    ("rules/request.py", "jail", "credgate -> jail | resolver -> rules"),
    ("jail/__init__.py", "resolver", "credgate -> jail | resolver -> rules"),
    ("resolver/__init__.py", "credgate", "credgate -> jail | resolver -> rules"),
    ("jail/__init__.py", "keyring", "only the daemon's side"),
    ("jail/pid1.py", "pyroute2", "standard library only"),
    ("credgate/commands/run.py", "asyncio", "standard library only"),
)


def test_each_forbidden_import_breaks_its_contract(tree: Path) -> None:
    """All in one tree, as looking through the sources is what takes the time: each is named where its contract is."""
    for module, name, _ in FORBIDDEN:
        path = tree / "src" / module
        path.write_text(f"{path.read_text()}\nimport {name}\n")
    done = lint_imports(tree)
    assert done.returncode == 1, done.stderr
    broken = [row for row in done.stdout.splitlines() if "BROKEN" in row]
    told = done.stdout.partition("Broken contracts")[2]
    for module, name, contract in FORBIDDEN:
        importer = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert any(contract in row for row in broken), done.stdout
        assert re.search(rf"(?m)\b{re.escape(importer)} -> {name}\b", told), (importer, name, told)


OUTSIDE = """
import importlib, sys
importlib.import_module(sys.argv[1])
tops = {name.partition(".")[0] for name in sys.modules}
print(" ".join(sorted(tops - sys.stdlib_module_names - {"credgate", "jail", "resolver", "rules", "__main__"})))
"""


@pytest.mark.parametrize(
    "module",
    [
        "credgate.becomeuser",
        "credgate.commands.run",
        "credgate.commands.ended",
        "jail.launcher",
        "jail.pid1",
        "jail.relay",
        "jail.starter",
        "jail.workload",
    ],
)
def test_the_launcher_and_the_jail_load_nothing_but_the_standard_library(module: str) -> None:
    argv = [sys.executable, "-I", "-c", OUTSIDE, module]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    # What a .pth file of the venv imports is there before any code of ours.
    base = subprocess.run([*argv[:-1], "sys"], capture_output=True, text=True, check=True)
    assert done.stdout == base.stdout


def test_that_comparison_sees_a_package() -> None:
    argv = [sys.executable, "-I", "-c", OUTSIDE, "pytest"]
    assert "pytest" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
