"""What a jail asks for as a child run, judged: the request's shape, its descriptors, what the child may see."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.children import Request, asked_of, judge_descriptors, rights_of
from credgate.opening import visible
from credgate.parts import Refusal
from credgate.policyfile import Effective, Origin
from credgate.proof import devices
from credgate.runs import Run
from jail.plan import JailSpec, SystemEntry, Tree
from rules.policy import Policy, Role

# The request


def test_a_request_is_taken_as_it_is() -> None:
    got = Request.parse({"op": "child", "role": "r", "argv": ["a", "b c", ""], "cwd": "/w"})
    assert (got.role, got.argv, got.cwd) == ("r", ("a", "b c", ""), "/w")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"op": "run.open", "role": "r", "argv": ["a"], "cwd": "/"},
        {"op": "child", "role": "r", "argv": [], "cwd": "/"},
        {"op": "child", "role": "r", "argv": "a", "cwd": "/"},
        {"op": "child", "role": "r", "argv": ["a", 1], "cwd": "/"},
        {"op": "child", "role": ["r"], "argv": ["a"], "cwd": "/"},
        {"op": "child", "role": "r", "argv": ["a\0b"], "cwd": "/"},
        {"op": "child", "role": "r", "argv": ["a"], "cwd": None},
    ],
)
def test_another_shape_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(Refusal) as refused:
        Request.parse(body)
    assert refused.value.code == "child_request"


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
bodies = st.fixed_dictionaries({}, optional=dict.fromkeys(("op", "role", "argv", "cwd"), json_values))


@settings(max_examples=200)
@given(st.one_of(bodies, bodies.map(lambda body: {**body, "op": "child"})))
def test_no_request_raises_anything_but_a_refusal(body: dict[str, object]) -> None:
    try:
        got = Request.parse(json.loads(json.dumps(body)))
    except Refusal:
        return
    assert got.argv and all(isinstance(word, str) for word in got.argv)


# Descriptors. This process stands for pid 1: its /proc and /dev/pts are those of the "jail".


def refused(descriptor: int) -> bool:
    null = os.open("/dev/null", os.O_RDWR)
    try:
        judge_descriptors([descriptor, null, null], devices(os.getpid()))
    except Refusal as error:
        return error.code == "child_descriptor"
    finally:
        os.close(descriptor)
        os.close(null)
    return False


def a_socket() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def a_slave() -> int:
    master, slave = os.openpty()
    os.close(master)
    return slave


def a_master() -> int:
    master, slave = os.openpty()
    os.close(slave)
    return master


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        (lambda: os.open("/etc/passwd", os.O_RDONLY), False),
        (lambda: os.open("/dev/urandom", os.O_RDONLY), False),
        (lambda: os.pipe()[0], False),
        (lambda: os.memfd_create("x"), False),
        (a_slave, False),
        (a_master, True),
        (a_socket, True),
        (lambda: os.open("/etc", os.O_RDONLY), True),
        (lambda: os.open("/etc/passwd", os.O_PATH), True),
        (lambda: os.open("/proc/self/mem", os.O_RDONLY), True),
        (lambda: os.open("/dev/tty" if os.access("/dev/tty", os.R_OK) else "/dev/ptmx", os.O_RDWR), True),
        (lambda: os.eventfd(0), True),
        (lambda: os.pidfd_open(os.getpid()), True),
    ],
)
def test_what_carries_bytes_alone_is_passed(opened: Callable[[], int], closed: bool) -> None:
    try:
        descriptor = opened()
    except OSError:
        descriptor = os.open("/dev/ptmx", os.O_RDWR)  # a /dev/tty without a terminal behind it
    assert refused(descriptor) is closed


def test_another_instance_of_devpts_is_not_the_jails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def elsewhere(path: str) -> object:
        facts = real(path)
        return SimpleNamespace(st_dev=facts.st_dev + 1) if path.endswith("dev/pts") else facts

    assert refused(a_slave()) is False  # the control
    slave = a_slave()
    monkeypatch.setattr(os, "stat", elsewhere)
    assert refused(slave) is True


def test_three_and_no_other_number(tmp_path: Path) -> None:
    for count in (0, 2, 4):
        null = [os.open("/dev/null", os.O_RDWR) for _ in range(count)]
        with pytest.raises(Refusal):
            judge_descriptors(null, devices(os.getpid()))
        for descriptor in null:
            os.close(descriptor)


# What the child sees and may


def spec(**changes: object) -> JailSpec:
    base: dict[str, object] = {
        "run": "r1",
        "uid": 1000,
        "gid": 1000,
        "user": "u",
        "home": "/home/u",
        "workdir": "/home/u/work",
        "workdir_write": False,
        "cwd": "/home/u/work",
        "argv": ("sh",),
        "exe": "/usr/bin/sh",
        "env": (("PATH", "/usr/bin"), ("KEPT", "k")),
        "system": (SystemEntry(path="/usr"), SystemEntry(path="/bin", link="usr/bin")),
        "etc": (),
        "trees": (Tree(path="/home/u/tools"),),
    }
    return JailSpec(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, True),
        ({"exe": "/bin/sh"}, True),
        ({"exe": "/home/u/work/run.sh"}, True),
        ({"exe": "/home/u/tools/bin/x", "trees": (Tree(path="/home/u/tools/bin"),)}, True),
        ({"exe": "/home/u/other/x", "trees": (Tree(path="/home/u/other"),)}, False),
        ({"trees": (Tree(path="/home/u"),)}, False),  # wider than what the parent has
        ({"exe": "/home/u/toolsmith/x"}, False),  # a name that begins alike is another tree
        ({"links": (("/home/u/.local/bin/x", "/usr/bin/x"),)}, False),  # where a link of the host leads is not told
    ],
)
def test_a_child_sees_what_its_parent_sees(changes: dict[str, object], seen: bool) -> None:
    mine = spec(**{"trees": (), **changes})
    if seen:
        visible(mine, spec())
        return
    with pytest.raises(Refusal) as told:
        visible(mine, spec())
    assert (told.value.code, told.value.exit_status) == ("not_found", 127)


def parent(*, ends: float | None = None) -> Any:
    roles = {
        "dev": Role(name="dev", env=("KEPT", "AWAY"), children=("sub",)),
        "sub": Role(name="sub", env=("KEPT", "AWAY", "MORE"), deadline=100),
    }
    policy = Policy(sha256="0", roles=roles)
    run = Run(
        id="r1",
        policy=policy,
        role="dev",
        gateway_ip="10.213.0.1",
        proxy_port=3128,
        caller_env={"PATH": "/home/u/hidden/bin:/usr/bin", "KEPT": "k", "AWAY": "a", "MORE": "m"},
    )
    chosen = Effective(policy=policy, role="dev", path=Path("/etc/x/policy.toml"), origin=Origin.FLAG)
    caller = SimpleNamespace(groups=lambda: (7,))
    return SimpleNamespace(run=run, spec=spec(), chosen=chosen, ends=ends, caller=caller)


def test_the_childs_run_is_asked_for_with_the_parents_words() -> None:
    work = "/home/u/work"
    deep = f"{work}/deep"
    asked = asked_of(parent(), Request(role="sub", argv=("x",), cwd=deep))
    assert (asked.cwd, asked.workdir, asked.read_only, asked.groups) == (deep, work, True, (7,))
    assert asked.env["PATH"] == "/usr/bin"  # the jail's: nothing is looked for where the parent can't look


@pytest.mark.parametrize("cwd", ["/", "/home/u", "/home/u/work/../private", "/tmp", "", "work"])
def test_a_directory_outside_of_the_work_tree_becomes_the_work_tree(cwd: str) -> None:
    assert asked_of(parent(), Request(role="sub", argv=("x",), cwd=cwd)).cwd == "/home/u/work"


@pytest.mark.parametrize(("ends", "deadline"), [(None, 100), (1030.5, 31), (1500.0, 100), (999.0, 1)])
def test_the_deadline_is_what_is_left_of_the_parents(ends: float | None, deadline: int) -> None:
    chosen = rights_of(parent(ends=ends), "sub", 1000.0)
    role = chosen.policy.roles[chosen.role]
    assert role.deadline == deadline
    assert role.env == ("KEPT",)  # MORE is not the parent's, AWAY is not in its jail


def test_requests_of_children_stay_counted_when_they_have_ended() -> None:
    top, child = parent().run, parent().run
    top.allowed, child.allowed, child.denied, child.unasked = 1, 2, 4, 1
    top.adopt(child)
    assert top.requests() == {"allow": 3, "deny": 3}
    top.part(child)
    assert (top.requests(), top.children) == ({"allow": 3, "deny": 3}, [])
