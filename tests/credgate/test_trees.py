"""Trees that runs share, and links that an agent planted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from credgate.paths import Places
from credgate.trees import Claims, TreeError, note_written, refuse_planted, written_before
from jail.plan import JailSpec, Tree


def spec(workdir: str, *, write: bool, trees: tuple[str, ...] = ()) -> JailSpec:
    return JailSpec(
        run="r",
        uid=1,
        gid=1,
        user="u",
        home="/home/u",
        workdir=workdir,
        workdir_write=write,
        cwd=workdir,
        argv=("true",),
        exe="/usr/bin/true",
        env=(),
        system=(),
        etc=(),
        trees=tuple(Tree(path=tree) for tree in trees),
    )


ONE, TWO = ("a" * 64, "dev"), ("a" * 64, "review")
OTHER_POLICY = ("b" * 64, "dev")


@pytest.mark.parametrize("other", [TWO, OTHER_POLICY], ids=["another role", "another policy, same role"])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (spec("/w", write=True), spec("/w", write=True)),
        (spec("/w", write=True), spec("/w", write=False)),
        (spec("/w/sub", write=True), spec("/w", write=False)),
        (spec("/w", write=True), spec("/w/sub", write=False)),
        (spec("/w", write=True), spec("/x", write=False, trees=("/w/tools",))),
    ],
)
def test_runs_of_other_rights_share_no_writable_tree(mine: JailSpec, theirs: JailSpec, other: tuple[str, str]) -> None:
    for first, second in ((mine, theirs), (theirs, mine)):
        claims = Claims()
        claims.take("r1", first, ONE)
        with pytest.raises(TreeError, match="run r1 has it too"):
            claims.take("r2", second, other)
        claims.drop("r1")
        claims.take("r2", second, other)


def test_what_is_shared_all_the_same() -> None:
    claims = Claims()
    claims.take("r1", spec("/w", write=True), ONE)
    claims.take("r2", spec("/w", write=True), ONE)  # the same rights
    claims.take("r3", spec("/x", write=True), TWO)  # another tree
    claims.take("r4", spec("/w", write=True), TWO, lineage=("r1", "r2"))  # a child of both
    claims.take("r5", spec("/y", write=False), ONE)
    claims.take("r6", spec("/y", write=False), TWO)  # nobody writes it


def test_a_planted_link_is_refused_and_an_old_one_is_not(tmp_path: Path) -> None:
    work, keys = tmp_path / "work", tmp_path / "keys"
    work.mkdir()
    keys.mkdir()
    (work / "docs").symlink_to(keys)
    refuse_planted(str(work / "docs"), [])
    for path in ("docs", "docs/sub"):
        with pytest.raises(TreeError, match="leads to"):
            refuse_planted(str(work / path), [str(work)])
    refuse_planted(str(work), [str(work)])


def test_written_trees_are_remembered(tmp_path: Path) -> None:
    places = Places(state=tmp_path / "state", config=tmp_path / "config")
    assert written_before(places) == []
    for tree in ("/a", "/b", "/a"):
        note_written(places, tree)
    assert written_before(places) == ["/b", "/a"]


def test_runs_that_begin_at_once_are_all_remembered(tmp_path: Path) -> None:
    """Without the lock two of them wrote one draft: an error, or a tree that was forgotten."""
    places = Places.from_env({"HOME": str(tmp_path)})
    trees = [f"/srv/{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda tree: note_written(places, tree), trees))
    assert sorted(written_before(places)) == sorted(trees)
