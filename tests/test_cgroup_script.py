"""What root's set-up leaves of the control groups, on a tree of plain files; the kernel's own is in tests/jail."""

import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent


def delegate(root: Path) -> None:
    code = f". scripts/lib/cgroup.sh; delegate_cgroups {os.getuid()} {os.getgid()} {root}"
    subprocess.run(["bash", "-euc", code], cwd=CHECKOUT, check=True, timeout=30)


def test_version_1_leaves_a_group_in_each_hierarchy_that_is_mounted(tmp_path: Path) -> None:
    for name in ("memory", "pids"):
        group = tmp_path / name / "credgate" / str(os.getuid())
        group.mkdir(parents=True)  # the kernel makes its files with the directory
        (group / "cgroup.procs").touch()
    delegate(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "pids"]


def test_version_2_hands_the_controllers_down_and_leaves_a_place_for_launchers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    group = tmp_path / "credgate" / str(os.getuid())
    (group / "launchers").mkdir(parents=True)
    for directory in (group, group / "launchers"):
        (directory / "cgroup.procs").touch()
    delegate(tmp_path)
    for directory in (tmp_path, tmp_path / "credgate", group):
        assert (directory / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert not (group / "launchers/cgroup.subtree_control").exists()  # it holds processes
