"""The list of guards: complete, the same in code, attempts and documentation."""

import pytest

from credgate.ledger.record import FIELDS, Texts
from jail.guards import BY_ID, GROUPS, GUARDS, needed
from jail.probes.attempts import ALONE, ATTEMPTS
from jail.verdict import State
from tests.jail.guards_table import PAGE, PARTS, split, tables


def test_each_guard_has_its_attempt_and_the_other_way_round() -> None:
    assert len(BY_ID) == len(GUARDS)
    assert set(ATTEMPTS) == set(BY_ID)
    assert set(BY_ID) >= ALONE
    assert sum(len(module.ATTEMPTS) for module in PARTS.values()) == len(GUARDS)


def test_page_is_the_list() -> None:
    _, shown, _ = split(PAGE.read_text())
    assert shown == tables(), "write it anew: python -m tests.jail.guards_table"


def test_read_back_names_groups_and_each_group_carries_a_guard() -> None:
    named = {group for guard in GUARDS for group in guard.readback}
    assert named == set(GROUPS)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.id)
def test_guard_can_be_told_refused_from_done(guard) -> None:
    assert guard.refused
    assert "done" not in guard.refused | guard.closed
    assert guard.mechanism


def test_ledger_takes_every_guard_uncut() -> None:
    kind = FIELDS["guards"]
    assert isinstance(kind, Texts)
    assert len(GUARDS) <= kind.count
    assert max(len(f"{guard.id}={state}") for guard in GUARDS for state in State) <= kind.cap


def test_switch_takes_its_guards_out_and_no_other() -> None:
    every = {guard.id for guard in needed(per_run=False, copy=True)}
    assert every == set(BY_ID)
    opened = {guard.id for guard in needed(per_run=False, switches=frozenset({"allow_debug"}), copy=True)}
    assert every - opened == {guard.id for guard in GUARDS if guard.unless == "allow_debug"} != set()
    cheap = {guard.id for guard in needed(per_run=True, copy=True)}
    assert cheap == {guard.id for guard in GUARDS if guard.per_run}
    assert cheap < every


def test_guard_of_a_copy_is_asked_for_where_there_is_one() -> None:
    copy = {guard.id for guard in GUARDS if guard.copy}
    assert copy == {"copy_write"}
    for per_run in (False, True):
        with_copy, without = ({g.id for g in needed(per_run=per_run, copy=there)} for there in (True, False))
        assert with_copy - without == copy
