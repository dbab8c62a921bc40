"""The plan is pure: what is mounted where, in which order, and what of the host is never in it."""

import dataclasses
import json
import os
from typing import Any

import pytest

from jail.plan import ETC_ALLOWED, MIB, JailSpec, SystemEntry, Tree, build_plan, common, mounts, private_trees, under

SPEC = JailSpec(
    run="r1",
    uid=1000,
    gid=1001,
    user="ann",
    home="/home/ann",
    workdir="/home/ann/work",
    workdir_write=False,
    cwd="/home/ann/work",
    argv=("sh",),
    exe="/usr/bin/sh",
    env=(("A", "b"),),
    system=(SystemEntry(path="/usr"), SystemEntry(path="/bin", link="usr/bin")),
    etc=(SystemEntry(path="/etc/alternatives"), SystemEntry(path="/etc/localtime", link="/usr/share/zoneinfo/UTC")),
)


def spec(**changes: Any) -> JailSpec:
    return dataclasses.replace(SPEC, **changes)


def at(made: JailSpec, path: str) -> dict[str, object]:
    """The one operation at a path."""
    (found,) = [op for op in mounts(made) if op["at"] == path]
    return found


def test_it_survives_json_whatever_the_names_are() -> None:
    name = os.fsdecode(b"/home/ann/a b\n\xff")
    plan = build_plan(spec(workdir=name, cwd=name, argv=("sh", os.fsdecode(b"\xfe"))))
    assert json.loads(json.dumps(plan)) == plan


def test_the_work_tree_is_read_only_unless_the_role_writes() -> None:
    assert at(SPEC, SPEC.workdir)["write"] is False
    assert at(spec(workdir_write=True), SPEC.workdir)["write"] is True


def test_nothing_but_the_work_tree_is_writable() -> None:
    made = spec(workdir_write=True, trees=(Tree(path="/opt/tool"),), trust=(("/state/ssl", "/etc/ssl"),))
    assert [op["at"] for op in mounts(made) if op.get("write")] == [SPEC.workdir]


def test_parents_come_before_what_lies_below_them() -> None:
    made = spec(workdir="/tmp/w/deep", trees=(Tree(path="/home/ann/.local/lib"), Tree(path="/run/x/tool")))
    order = [op["at"] for op in mounts(made)]
    for below, above in (("/tmp/w/deep", "/tmp"), ("/home/ann/.local/lib", "/home/ann"), ("/run/x/tool", "/run")):
        assert order.index(below) > order.index(above)


def test_a_link_of_the_host_is_a_link_inside() -> None:
    assert at(SPEC, "/bin") == {"op": "link", "at": "/bin", "to": "usr/bin"}


def test_a_tree_that_something_shows_already_is_bound_once() -> None:
    trees = tuple(Tree(path=path) for path in ("/usr/lib/x", "/opt/a/b", "/opt/a", "/home/ann/work/.venv", "/opt/ab"))
    bound = {op["at"] for op in mounts(spec(trees=trees)) if op["op"] == "bind"}
    assert {path for path in bound if path.startswith("/opt")} == {"/opt/a", "/opt/ab"}
    assert not bound & {"/usr/lib/x", "/home/ann/work/.venv"}


@pytest.mark.parametrize(
    ("link", "made"),
    [
        ("/home/ann/.local/bin/tool", True),
        ("/etc/alternatives/awk", False),
        ("/home/ann/work/tool", False),
        ("/usr/bin/x", False),
        ("/opt/a/bin/x", False),
        ("/opt/ab", True),
    ],
)
def test_a_link_is_made_where_nothing_bound_shows_it(link: str, made: bool) -> None:
    planned = mounts(spec(links=((link, "/target"),), trees=(Tree(path="/opt/a"),)))
    assert any(op["at"] == link and op["op"] == "link" for op in planned) is made


def test_files_that_hold_passwords_on_real_machines_are_not_in_the_list() -> None:
    assert not {"shadow", "gshadow", "pip.conf", "environment", "ssh", "sudoers", "netrc", "."} & set(ETC_ALLOWED)


def test_names_are_asked_at_the_gateway_alone() -> None:
    text = str(at(spec(gateway="10.9.8.7"), "/etc/resolv.conf")["text"])
    assert [line for line in text.splitlines() if line.startswith("nameserver")] == ["nameserver 10.9.8.7"]
    assert "search" not in text and "domain" not in text


def test_every_tmpfs_is_bounded() -> None:
    sizes = [(op["size"], op["inodes"]) for op in mounts(SPEC) if op["op"] == "tmpfs"]
    assert len(sizes) >= 5
    assert all(0 < size <= 1024 * MIB and 0 < inodes <= 1 << 17 for size, inodes in sizes)


def test_what_is_private_is_mounted() -> None:
    made = {op["at"] for op in mounts(SPEC) if op["op"] in ("tmpfs", "devpts")}
    assert set(private_trees(SPEC.home)) <= made


@pytest.mark.parametrize(
    ("path", "tree", "said"),
    [("/a/b", "/a", True), ("/a", "/a", True), ("/ab", "/a", False), ("/a", "/a/b", False), ("/a", "/", True)],
)
def test_under_goes_by_components(path: str, tree: str, said: bool) -> None:
    assert under(path, tree) is said


def test_a_plan_begins_with_what_is_common_to_all_of_a_user() -> None:
    made = common(SPEC)
    assert mounts(spec(workdir_write=True, trees=(Tree(path="/srv/tools"),)))[: len(made)] == made
    assert len(made) > 40


def test_a_tree_above_what_is_the_jails_own_comes_before_it() -> None:
    planned = [op["at"] for op in mounts(spec(trees=(Tree(path="/var"),))) if op["op"] in ("bind", "tmpfs")]
    assert planned.index("/var") < planned.index("/var/tmp")
