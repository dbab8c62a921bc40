"""What is read back of a jail, field by field; the reading itself is in tests/jail and tests/e2e."""

import dataclasses

import pytest

from credgate.proof import FIELD_GROUPS, Shown, writable
from jail.guards import GROUPS
from jail.readback import Facts
from tests.jail.test_plan import SPEC


def test_every_field_that_can_differ_belongs_to_a_group() -> None:
    assert {field.name for field in dataclasses.fields(Facts)} <= FIELD_GROUPS.keys()
    assert set(FIELD_GROUPS.values()) <= set(GROUPS)


@pytest.mark.parametrize("write", [False, True])
def test_the_work_tree_may_be_writable_where_the_role_says_so(write: bool) -> None:
    places = writable(dataclasses.replace(SPEC, workdir_write=write))
    assert (SPEC.workdir in places) is write


def test_nothing_of_the_hosts_is_writable() -> None:
    assert not {"/", "/usr", "/etc", "/dev", "/proc/sys", "/sys"} & writable(SPEC)


def test_more_differences_are_added_to_a_group() -> None:
    shown = Shown(id="p1", groups=dict.fromkeys(GROUPS, ()))
    more = shown.with_more("mounts", ["one", "two"]).with_more("mounts", ["three"])
    assert more.groups["mounts"] == ("one", "two", "three")
    assert shown.groups["mounts"] == ()
