"""The compiled chain against the one in Python: the same lines, heads, trees and refusals, whatever both are given."""

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

from credgate import buildfront, buildmodules, compiled, compiling
from credgate.errors import CredgateError
from credgate.ledger import linking
from credgate.ledger.host import moment
from credgate.unchanged import identities
from tests.credgate import chain_fuzz
from tests.credgate.chain_fuzz import CASES, END, HOLES, new, steps, template

pytestmark = pytest.mark.needs("compiler")
SANITIZED = ("-Werror", "-g", "-O1", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def module() -> Any:
    """The one that set-up built."""
    found = compiled.load("chain")
    assert found is not None, "scripts/setup builds it"
    return found


@given(case=CASES)
def test_both_chains_go_the_same_way(case: chain_fuzz.Case) -> None:
    end, todo = case
    assert steps(module(), end, todo) == steps(linking, end, todo)


def test_digests_are_those_of_hashlib() -> None:
    for size in range(260):
        data = os.urandom(size)
        assert {module().sha256(data, plain) for plain in (False, True)} == {hashlib.sha256(data).digest()}


def test_a_line_of_the_host_is_of_this_moment() -> None:
    for of in (module(), linking):
        chain, form = new(of, END), template(of, {"run": "r"})
        none = (None,) * len(HOLES)
        assert chain.put(form, none, b"", "", None, 0) == chain.put(form, none, b"", "2001-01-01", None, 0) == 0
        assert chain.take() == b"" and chain.end == END
        before = moment()
        assert chain.put(form, none, b"", "9999-01-01", None, 0) == END[0] + 1
        line = chain.take().decode()
        after = moment()
        ts = line.partition('"ts":"')[2].partition('"')[0]
        mono = int(line.partition('"mono_ns":')[2].partition(",")[0])
        assert len(ts) == len(before[0]) and before[1] <= mono <= after[1]


@pytest.mark.parametrize("end", [(-1, END[1]), (2**62, END[1]), (1, "ab"), (1, END[1] + "0")])
def test_what_is_no_end_of_a_chain_is_refused(end: linking.End) -> None:
    with pytest.raises(ValueError, match="end of a chain"):
        module().Chain(*end, (b"\0" * 32,) * (max(end[0], 0)).bit_count())


@pytest.mark.parametrize("nodes", [(), (b"\0" * 31,), (b"\0" * 32,) * 2, (None,)])
def test_a_tree_of_another_size_is_refused(nodes: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="end of a chain"):
        module().Chain(4, END[1], nodes)


@pytest.mark.parametrize("lacks", ["leaf_hash", "Tree"])
def test_the_one_in_python_keeps_a_line_or_is_as_it_was(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    chain = linking.Chain(*END, (b"\0" * 32,) * END[0].bit_count())
    before = chain.end, chain.nodes
    with monkeypatch.context() as patch:
        patch.setattr(linking, lacks, full)
        with pytest.raises(MemoryError):
            chain.add(b"line\n")
    assert ((chain.end, chain.nodes), chain.take()) == (before, b"")
    assert (chain.add(b"line\n"), chain.take()) == (END[0] + 1, b"line\n")


def test_no_sanitizer_complains(tmp_path: Path) -> None:
    built = tmp_path / "chain.so"
    failed = buildmodules.compile_to(built, "chain", SANITIZED)
    assert not failed, failed
    compiler = compiling.compiler()
    assert compiler is not None
    found = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in _RUNTIMES]
    env = {
        **os.environ,
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "PYTHONMALLOC": "malloc",  # the interpreter's own allocator would hide what lies beside
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    argv = [sys.executable, str(Path(chain_fuzz.__file__)), str(built)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["same"]), done.stderr[-4000:]


_RUNTIMES = ("libasan.so", "libubsan.so")


def test_both_looks_see_the_same_files(tmp_path: Path) -> None:
    look = compiled.load("look")
    assert look is not None
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "l\u00e4nger\udcff").write_bytes(b"x" * 77)
    paths = tuple(str(tmp_path / name) for name in ("", "none", "link", "l\u00e4nger\udcff"))
    assert look.identities(paths) == identities(paths) and look.identities(()) == identities(())
    before = identities(paths[3:])
    os.utime(paths[3], ns=(1, 2))
    assert before != look.identities(paths[3:]) == identities(paths[3:])
    for bad, error in [((paths[3] + "/x",), NotADirectoryError), (("a\0",), ValueError), (("\ud800",), UnicodeError)]:
        for ask in (look.identities, identities):
            with pytest.raises(error):
                ask(bad)
    for odd in ((b"x",), ["x"], ("x",) * 9, None):
        with pytest.raises(TypeError):
            look.identities(odd)


def test_a_module_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "stamp", lambda _name: "other")
    assert compiled.load.__wrapped__("chain") is None
    monkeypatch.undo()
    assert compiled.load.__wrapped__("chain") is not None
    monkeypatch.setattr(compiled, "full_name", lambda name: f"_credgate_no_{name}")
    assert compiled.load.__wrapped__("chain") is None


@pytest.mark.parametrize("well", [True, False])
def test_a_module_with_digests_of_its_own_is_not_used(well: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256 if well else hashlib.sha3_256
    other = SimpleNamespace(STAMP=compiled.stamp("chain"), sha256=lambda data, _plain: digest(data).digest())
    monkeypatch.setitem(sys.modules, "_credgate_chain", other)
    assert (compiled.load.__wrapped__("chain") is other) is well


def test_a_compiler_that_does_not_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiling, "compiler", lambda: str(slow))
    monkeypatch.setattr(compiling, "SECONDS", 0.1)
    with pytest.raises(CredgateError, match="not done in"):
        buildmodules.build("chain", tmp_path)
    with pytest.raises(CredgateError, match="not done in"):
        buildfront.build(tmp_path / "credgate")
    assert os.listdir(tmp_path) == ["cc"]


def test_it_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    inner, place = os.fsync, tmp_path / f"_credgate_look{compiled.SUFFIX}"

    def fsync(fd: int) -> None:
        inner(fd)
        assert not place.exists()
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    buildmodules.build("look", tmp_path)
    assert synced == [place.stat().st_ino] and list(tmp_path.iterdir()) == [place]


def test_what_is_missing_to_build_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildmodules, "HEADERS", tmp_path)
    with pytest.raises(CredgateError, match=r"no .*Python\.h") as caught:
        buildmodules.build("chain", tmp_path)
    assert "python3-dev" in caught.value.hint and not list(tmp_path.iterdir())
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.raises(CredgateError, match="no C compiler"):
        buildmodules.build("chain", tmp_path)


@pytest.mark.parametrize("of", [buildmodules, buildfront])
def test_what_can_not_be_built_is_told_to_who_ran_it(
    of: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/env/bin")

    monkeypatch.setattr(buildmodules, "missing", lambda: ["chain"])
    monkeypatch.setattr(buildfront, "is_current", lambda: False)
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    assert of.main() == 1
    assert capsys.readouterr().err.startswith("error: no C compiler: each ")
    monkeypatch.setattr(of, "build", denied)
    assert of.main() == 1
    assert capsys.readouterr().err == "error: /env/bin: Permission denied\nhint: run it as its owner\n"
    monkeypatch.setattr(of, "build", lambda *_: None)
    assert of.main() == 0


def test_what_set_up_built_is_for_everyone_to_read() -> None:
    built = Path(module().__file__)
    assert built.parent == buildmodules.PLACE and built.stat().st_mode & 0o777 == 0o755
    assert buildmodules.missing() == [] and compiled.stamp("chain") == module().STAMP
