"""Three words, and that nothing but all three looks together makes a guard shown."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jail.guards import BY_ID, GROUPS, GUARDS
from jail.verdict import AS_PLANNED, NONE, Row, State, against, judge

PLANNED: dict[str, tuple[str, ...]] = dict.fromkeys(GROUPS, ())
VSOCK = BY_ID["vsock"]  # refused by EAFNOSUPPORT, closed by the same
USERNS = BY_ID["userns"]  # refused by EPERM, never closed by the host


def one(guard, inside: str | None, control: str | None, differences=PLANNED) -> Row:
    words = {} if inside is None else {guard.id: inside}
    controls = {} if control is None else {guard.id: control}
    (row,) = judge([guard], differences, words, controls)
    return row


def test_shown() -> None:
    row = one(USERNS, "EPERM", "done")
    assert (row.state, row.why, row.readback) == (State.SHOWN, "", AS_PLANNED)


def test_closed_by_host_needs_an_errno_listed_for_that() -> None:
    assert one(VSOCK, "EAFNOSUPPORT", "EAFNOSUPPORT").state is State.CLOSED
    assert one(USERNS, "EPERM", "EPERM").state is State.NOT_SHOWN


@pytest.mark.parametrize(
    ("inside", "control", "why"),
    [
        ("done", "done", "the attempt succeeded inside"),
        ("EINVAL", "done", "inside: got EINVAL, expected EPERM"),
        ("crashed: no answer in 8 s", "done", "inside: got crashed: no answer in 8 s, expected EPERM"),
        (None, "done", "inside: got not tried, expected EPERM"),
        ("EPERM", "crashed: wait status 9", "control: got crashed: wait status 9, expected done"),
        ("EPERM", None, "control: got not tried, expected done"),
        ("EPERM", "ENOSYS", "control: got ENOSYS, expected done"),
    ],
)
def test_not_shown(inside: str | None, control: str | None, why: str) -> None:
    row = one(USERNS, inside, control)
    assert (row.state, row.why) == (State.NOT_SHOWN, why)


def test_read_back_that_differs_or_is_missing() -> None:
    differs = PLANNED | {"seccomp": ("pid 1: seccomp: expected 2, got 0",)}
    row = one(USERNS, "EPERM", "done", differs)
    assert row.state is State.NOT_SHOWN
    assert row.why == "read-back: seccomp: pid 1: seccomp: expected 2, got 0"
    missing = {name: lines for name, lines in PLANNED.items() if name != "seccomp"}
    assert one(USERNS, "EPERM", "done", missing).state is State.NOT_SHOWN


def test_guard_that_the_kernel_shows_nothing_of() -> None:
    row = one(BY_ID["landlock"], "EACCES", "done")
    assert (row.state, row.readback) == (State.SHOWN, NONE)


def test_against_names_differences_once_and_each_attempt() -> None:
    differs = PLANNED | {"seccomp": ("pid 1: seccomp: expected 2, got 0",)}
    rows = judge(
        GUARDS, differs, {g.id: min(g.refused) for g in GUARDS} | {"userns": "done"}, {g.id: "done" for g in GUARDS}
    )
    assert against(rows, differs) == [
        "pid 1: seccomp: expected 2, got 0",
        "userns: the attempt succeeded inside",
    ]


def test_against_a_group_that_was_not_read() -> None:
    rows = judge(GUARDS, {}, {g.id: min(g.refused) for g in GUARDS}, {g.id: "done" for g in GUARDS})
    assert against(rows, {}) == [f"{name}: not read" for name in GROUPS]


WORDS = st.sampled_from(
    ["done", "EPERM", "EACCES", "ENOENT", "EROFS", "SIGSYS", "crashed: x", "", "shown", "EAFNOSUPPORT"]
)


@given(
    guard=st.sampled_from(GUARDS),
    inside=st.none() | WORDS,
    control=st.none() | WORDS,
    broken=st.sets(st.sampled_from(GROUPS)),
    missing=st.sets(st.sampled_from(GROUPS)),
)
def test_nothing_else_is_ever_shown(guard, inside, control, broken, missing) -> None:
    """A guard that is not "not shown" was refused inside by its own errno, beside a control, as planned."""
    differences = {name: (("differs",) if name in broken else ()) for name in GROUPS if name not in missing}
    row = one(guard, inside, control, differences)
    sound = not set(guard.readback) & (broken | missing) and inside in guard.refused
    expected = {
        (True, True): State.SHOWN,
        (True, False): State.CLOSED if control in guard.closed else State.NOT_SHOWN,
    }.get((sound, control == "done"), State.NOT_SHOWN)
    assert row.state is expected
    assert bool(row.why) == (row.state is State.NOT_SHOWN)
    assert {field.name for field in dataclasses.fields(row)} >= {"guard", "mechanism", "readback", "inside", "control"}
    if row.state is State.NOT_SHOWN or broken or missing:
        assert against([row], differences)
