"""What may go into a line, and that no input makes a line too long."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.ledger.chain import Head, link, parse_line
from credgate.ledger.record import (
    FIELDS,
    MAX_INT,
    MAX_LINE,
    OWN_FIELDS,
    Event,
    Number,
    Pairs,
    Stamp,
    Text,
    Texts,
    canonical,
    clean_fields,
)
from credgate.secretvalue import Secret

STAMP = Stamp(ts="2026-01-02T03:04:05.000006Z", boot="b" * 36, mono_ns=MAX_INT)
# Each of these is dearer in the file than in memory, or acts on a terminal.
NASTY = ["\x1b[2J", '"', "\\", "\x00", "\x7f", "\x9b", "\u202e", "\u2028", "\ud800", "\U0001f600", "é", "\n"]


def test_contract_fields_are_all_there():
    contract = (
        "v seq ts run ev verdict reason rule binding secret host port method path query_names pin status req_bytes "
        "resp_bytes ms ids ua_tag cred_fp policy_sha256 proof intent_seq prev"
    )
    assert set(contract.split()) <= FIELDS.keys() | OWN_FIELDS
    assert not FIELDS.keys() & OWN_FIELDS


def test_contract_events_are_all_there():
    contract = (
        "run.start run.end run.refused proof dns intent outcome deny tunnel mint grant revoke alarm off_route "
        "recovered key_change checkpoint pruned final"
    )
    assert contract.split() == [str(event) for event in Event]


def _fullest(filler: str) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, kind in FIELDS.items():
        match kind:
            case Number():
                fields[name] = MAX_INT
            case Text():
                fields[name] = filler * 5000
            case Texts():
                fields[name] = [filler * 5000] * 500
            case Pairs(count=count):
                fields[name] = {f"{n}{filler * 5000}": filler * 5000 for n in range(count)}
    return fields


@pytest.mark.parametrize("filler", ["a", *NASTY])
def test_fullest_line_stays_below_the_bound(filler: str):
    fields = clean_fields("run.start", _fullest(filler))
    assert fields.keys() == FIELDS.keys()
    line, _ = link(Head(seq=MAX_INT - 1), "run.start", fields, STAMP)
    assert len(line) <= MAX_LINE
    assert parse_line(line)["ev"] == "run.start"


@pytest.mark.parametrize(
    "fields",
    [
        {"hots": "x"},
        {"seq": 1},
        {"prev": "x"},
        {"ts": "x"},
        {"hash": "x"},
        {"host": b"x"},
        {"host": 1},
        {"ms": 1.5},
        {"ms": True},
        {"ms": "1"},
        {"ms": -1},
        {"ms": 2**63},
        {"query_names": "page"},
        {"query_names": [b"page"]},
        {"ids": ["x"]},
        {"ids": {"a": 1}},
        {"ids": {str(n): "x" for n in range(21)}},
    ],
)
def test_wrong_fields_are_the_callers_mistake(fields: dict[str, object]):
    with pytest.raises(TypeError, match="ledger: "):
        clean_fields("deny", fields)


def test_right_fields_pass_where_the_wrong_ones_fail():
    fields = {"host": "x", "ms": 1, "query_names": ("page",), "ids": {"a": "1"}}
    assert clean_fields("deny", fields) == {"host": "x", "ms": 1, "query_names": ["page"], "ids": {"a": "1"}}


def test_unknown_event():
    with pytest.raises(TypeError, match="unknown event"):
        clean_fields("denied", {})


@pytest.mark.parametrize("wrap", [lambda s: {"secret": s}, lambda s: {"query_names": [s]}, lambda s: {"ids": {"a": s}}])
def test_a_secret_cannot_enter_by_type(wrap):
    with pytest.raises(TypeError) as caught:
        clean_fields("intent", wrap(Secret("github", "canary-value")))
    assert "Secret" in str(caught.value)
    assert "canary-value" not in str(caught.value)


def test_what_does_not_apply_is_left_out():
    assert clean_fields("deny", {"host": "", "ms": None, "query_names": (), "ids": {}, "port": 0}) == {"port": 0}


def test_control_characters_are_escaped_and_the_escape_is_told_from_text():
    escaped = clean_fields("deny", {"path": "/\x1b", "host": "\u202e"})
    assert escaped == {"path": "/\\x1b", "host": "\\u202e"}
    assert clean_fields("deny", {"path": "/\\x1b"}) == {"path": "/\\\\x1b"}


def test_a_cut_value_says_so_and_two_of_them_differ():
    one, two = (clean_fields("deny", {"path": "/" + "a" * 5000 + end})["path"] for end in "xy")
    assert re.search(r"a~cut 5002 [0-9a-f]{8}$", str(one))
    assert one != two


def test_a_cut_list_says_how_many():
    names = clean_fields("deny", {"query_names": [f"q{n}" for n in range(40)]})["query_names"]
    assert isinstance(names, list)
    assert len(names) == 32
    assert names[-1] == "~cut 9 more"


@given(st.text(max_size=3000))
def test_any_text_fits_and_cannot_act_on_a_terminal(text: str):
    cleaned = clean_fields("deny", {"path": text}).get("path", "")
    assert isinstance(cleaned, str)
    assert len(json.dumps(cleaned, ensure_ascii=False).encode()) - 2 <= 2048
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ud800-\udfff]", cleaned)


def test_canonical_form_is_the_one_of_rfc_8785():
    assert canonical({"b": 1, "a": {"d": "é\\x00", "c": []}}) == '{"a":{"c":[],"d":"é\\\\x00"},"b":1}'.encode()


_ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)
_ANY_VALUE = st.recursive(
    st.one_of(_ANY_TEXT, st.integers(0, MAX_INT)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_ANY_TEXT, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(_ANY_TEXT, _ANY_VALUE, max_size=6))
def test_canonical_form_is_the_one_that_anybodys_json_gives(record: dict[str, object]):
    def theirs() -> bytes:
        return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    try:
        expected = theirs()
    except UnicodeEncodeError:
        with pytest.raises(UnicodeEncodeError):
            canonical(record)
    else:
        assert canonical(record) == expected


def test_docs_list_every_field_and_event():
    text = Path(__file__).parents[2].joinpath("docs/ledger.md").read_text()
    assert [f for f in sorted(FIELDS.keys() | OWN_FIELDS) if f"`{f}`" not in text] == []
    assert [e for e in Event if f"`{e}`" not in text] == []
