"""What is read back of a jail, field by field; the reading itself is in tests/jail and tests/e2e."""

import dataclasses
from typing import Any

import pytest

from credgate import proof
from credgate.proof import FIELD_GROUPS, writable
from jail.guards import GROUPS
from jail.readback import Facts
from tests.jail.test_plan import SPEC
from tests.jail.test_readback import SHOWN


def test_every_field_that_can_differ_belongs_to_a_group() -> None:
    assert {field.name for field in dataclasses.fields(Facts)} <= FIELD_GROUPS.keys()
    assert set(FIELD_GROUPS.values()) <= set(GROUPS)


@pytest.mark.parametrize("write", [False, True])
def test_the_work_tree_may_be_writable_where_the_role_says_so(write: bool) -> None:
    places = writable(dataclasses.replace(SPEC, workdir_write=write))
    assert (SPEC.workdir in places) is write


def test_nothing_of_the_hosts_is_writable() -> None:
    assert not {"/", "/usr", "/etc", "/dev", "/proc/sys", "/sys"} & writable(SPEC)


def test_a_limit_that_the_kernel_shows_otherwise_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((proof.readback, "compare"), (proof.berthfacts, "wrong"), (proof, "_program")):
        monkeypatch.setattr(module, name, lambda *_: [])
    for module, name in ((proof.readback, "beside"), (proof, "expected")):
        monkeypatch.setattr(module, name, lambda *_, **__: None)
    told = proof.Told(groups=(), launcher=1, pid1=2, workload=3, keyring=None)
    nothing: Any = None
    seen = proof.Look(first=SHOWN, second=SHOWN, inherited={"terminal": ("one",)})
    berth: Any = Berth
    for limits in ([], ["memory.max: expected 1, got max"]):
        shown = proof.read_back(SPEC, berth, proof.Read(told=told, seen=seen, network=nothing, limits=limits), {})
        assert shown.groups["limits"] == tuple(limits)
        assert shown.groups["terminal"] == ("one",)


def test_a_read_back_is_named_after_all_that_was_read() -> None:
    named = {
        proof._digest(run, first, second, network)
        for run, first, second, network in (
            ("r1", SHOWN, SHOWN, {}),
            ("r2", SHOWN, SHOWN, {}),
            ("r1", dataclasses.replace(SHOWN, pid=7), SHOWN, {}),
            ("r1", dataclasses.replace(SHOWN, mounts=()), SHOWN, {}),
            ("r1", SHOWN, dataclasses.replace(SHOWN, mounts=()), {}),
            ("r1", SHOWN, SHOWN, {"nft": ""}),
        )
    }
    assert len(named) == 6


class Berth:
    tcp: tuple[int, ...] = ()
