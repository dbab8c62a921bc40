"""The two ways to read a ledger's line give the same, and neither trusts a type."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.ledger.record import FIELDS, OWN_FIELDS
from credgate.reconcile import lines
from credgate.reconcile.lines import Line, line_of
from credgate.reconcile.model import ReconcileError
from tests.credgate.reconcile.rig import Case, web

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=8), st.floats(allow_nan=False),
    st.lists(st.text(max_size=4) | st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.text(), max_size=3),
)  # fmt: skip


def test_every_field_is_one_of_the_ledgers() -> None:
    assert set(Line.__struct_fields__) <= FIELDS.keys() | OWN_FIELDS


@given(st.dictionaries(st.sampled_from(Line.__struct_fields__), VALUES))
def test_a_line_of_whatever_values_is_read_by_type(record: dict[str, object]) -> None:
    data = json.dumps(record).encode()
    try:
        line = line_of(data)
    except msgspec.DecodeError:  # a number that no reader of JSON has to take
        assert any(isinstance(value, (int, float)) and abs(value) > 2**53 for value in record.values())
        return
    assert line == lines._coerced(lines._ANY(data))
    for name, value in record.items():
        found = getattr(line, name)
        assert found == getattr(Line(), name) or type(found) is type(value)


def test_text_that_acts_on_a_reader_is_escaped() -> None:
    assert line_of(b'{"host":"a\x7fb"}').host == "a\\x7fb"
    assert line_of('{"host":"a\u202eb"}'.encode()).host == "a\\u202eb"
    assert line_of(b'{"host":"a\\u001bb"}').host == "a\\x1bb"
    assert len(line_of(b'{"path":"%s"}' % (b"x" * 9000)).path) == 2048


def test_a_signed_line_without_a_time_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the key may have signed anything."""
    monkeypatch.setattr("credgate.reconcile.fabricate._ledger_time", lambda _: "soon")
    case = Case(directory=tmp_path)
    case.call(10)
    case.export("log", "")
    with pytest.raises(ReconcileError, match="record 1: time not understood"):
        case.run("nginx@a.example=log")


@pytest.mark.parametrize("name", ["ms", "status", "req_bytes", "resp_bytes", "count", "intent_seq", "seq"])
@pytest.mark.parametrize("value", [-1, 2**63, 2**64 - 1, 2**70])
def test_a_number_that_no_writer_gives_is_none(name: str, value: int) -> None:
    """They are added up, and go into columns of 64 bits: one of them was the end of the whole report."""
    assert line_of(json.dumps({name: value}).encode()) == Line()
    assert line_of(json.dumps({name: value, "host": "\x1b"}).encode()) == Line(host="\\x1b")


@pytest.mark.parametrize(
    "forged",
    [{"resp_bytes": 2**63}, {"count": 2**63}, {"count": -5}, {"count": 0}, {"ms": 2**63 - 1}, {"ms": -(2**62)}],
)
def test_a_forged_number_changes_no_count(
    forged: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credgate.reconcile.fabricate.clean_fields", lambda _ev, fields: dict(fields))
    case = Case(directory=tmp_path)
    case.call(10, path="/a")
    for *_, fields in case.entries:
        fields.update(forged)
    case.deny(20, path="/b", **forged)
    case.export("log", web(10, "/a"))
    said = case.run("nginx@a.example=log")
    assert said.requests[0] == "matched"
    assert said.result.seen.denied == 1
