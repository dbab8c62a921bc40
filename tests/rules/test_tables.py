from datetime import date

import pytest

from rules.policy import Foreign
from rules.tables import MAX_ITEMS, Report, Table, closest, is_name, join, kind_of, show


def table(raw: dict[str, object], *known: str, later: tuple[str, ...] = ()) -> Table:
    return Table(raw, "t", Report(), known=frozenset(known), later=frozenset(later))


def said(made: Table) -> list[tuple[str, str]]:
    return [(problem.where, problem.message) for problem in made.report.problems]


def test_values_of_the_right_type_come_through_without_a_word() -> None:
    made = table({"a": "x", "b": True, "c": 3, "d": ["x", "y"], "e": {"f": "g"}}, *"abcde")
    assert (made.text("a"), made.flag("b", default=False), made.number("c", 0)) == ("x", True, 3)
    assert made.texts("d") == ("x", "y")
    assert made.table("e", known=("f",)).text("f") == "g"
    assert said(made) == []


def test_missing_keys_are_defaults_or_faults() -> None:
    made = table({})
    assert (made.text("a", "x"), made.flag("b", default=True), made.number("c", 7), made.texts("d")) == (
        "x",
        True,
        7,
        (),
    )
    assert said(made) == []
    made.text("a", required=True)
    assert said(made) == [("t.a", "missing, expected a string")]


@pytest.mark.parametrize("value", [1, 1.5, True, [], {}, date(2025, 1, 1)])
def test_another_type_than_text_is_a_fault(value: object) -> None:
    made = table({"a": value}, "a")
    assert made.text("a", "default") == "default"
    assert said(made)[0][1].startswith(f"got {kind_of(value)} (")


@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_a_boolean_is_no_integer(value: object) -> None:
    made = table({"a": value}, "a")
    assert made.number("a", 5) == 5
    assert len(said(made)) == 1


@pytest.mark.parametrize("value", [0, 1, "true"])
def test_an_integer_is_no_boolean(value: object) -> None:
    made = table({"a": value}, "a")
    assert made.flag("a", default=False) is False
    assert len(said(made)) == 1


@pytest.mark.parametrize(("value", "faults"), [(0, 1), (1, 0), (9, 0), (10, 1), (-1, 1)])
def test_bounds_are_included(value: int, faults: int) -> None:
    made = table({"a": value}, "a")
    made.number("a", 5, low=1, high=9)
    assert len(said(made)) == faults


@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[0m", "a\u202eb", "a\u200bb", "\x7f", "a\x00"])
def test_text_that_can_not_be_seen_is_a_fault(text: str) -> None:
    made = table({"a": text, "b": [text]}, "a", "b")
    made.text("a")
    assert made.texts("b") == ()
    assert [where for where, _ in said(made)] == ["t.a", "t.b[0]"]
    assert all(message.isascii() and message.isprintable() for _, message in said(made))


def test_lists_name_the_entry() -> None:
    made = table({"a": ["x", 1, "x", ["y"]]}, "a")
    assert made.texts("a") == ("x",)
    assert [where for where, _ in said(made)] == ["t.a[1]", "t.a[2]", "t.a[3]"]


def test_lists_are_bounded() -> None:
    made = table({"a": [str(i) for i in range(MAX_ITEMS + 1)], "b": [{}] * (MAX_ITEMS + 1)}, "a", "b")
    assert (made.texts("a"), made.tables("b", known=())) == ((), [])
    assert len(said(made)) == 2


def test_unknown_and_later_keys_are_faults_at_once() -> None:
    made = table({"hots": 1, "ttl": "8h", "host": "x"}, "host", later=("ttl",))
    assert [(p.where, p.hint) for p in made.report.problems] == [
        ("t.hots", 'did you mean "host"?'),
        ("t.ttl", "take the key out"),
    ]
    assert "not yet" in said(made)[1][1]


def test_a_key_that_needs_quotes_is_shown_with_them() -> None:
    assert join("a", "b c") == 'a."b c"'
    assert join("", "b") == "b"
    assert "\x1b" not in join("a", "\x1b")


def test_choices() -> None:
    made = table({"a": "deny", "b": "allow", "c": "alow"}, *"abc")
    assert made.choice("a", Foreign, Foreign.STRIP) is Foreign.DENY
    assert made.choice("b", Foreign, Foreign.STRIP, but=(Foreign.ALLOW,)) is Foreign.STRIP
    assert made.choice("c", Foreign, Foreign.STRIP) is Foreign.STRIP
    assert made.choice("d", Foreign, Foreign.STRIP) is Foreign.STRIP
    assert [where for where, _ in said(made)] == ["t.b", "t.c"]


def test_what_is_switched_off_may_be_written() -> None:
    made = table({"a": False, "b": True}, "a", "b")
    made.off("a")
    made.off("b")
    made.off("c")
    assert [where for where, _ in said(made)] == ["t.b"]


def test_named_tables_and_arrays_of_them() -> None:
    made = table({"a": {"x": {"k": "v"}, "y": 1, "z.z": {}}, "b": [{"k": "v"}, 1]}, "a", "b")
    assert list(made.named("a", known=("k",))) == ["x"]
    assert [inner.where for inner in made.tables("b", known=("k",))] == ["t.b[0]"]
    assert [where for where, _ in said(made)] == ["t.a.y", 't.a."z.z"', "t.b[1]"]


@pytest.mark.parametrize(
    ("text", "expected"), [("a", True), ("a-b_C9", True), ("", False), ("-a", False), ("a.b", False), ("a" * 65, False)]
)
def test_names(text: str, expected: bool) -> None:
    assert is_name(text) is expected


def test_the_nearest_word_or_all_of_them() -> None:
    assert closest("mehtods", ["methods", "paths"]) == 'did you mean "methods"?'
    assert closest("zzz", ["methods", "paths"]) == "one of: methods, paths"
    assert closest("zzz", []) == ""


def test_shown_values_are_short_and_plain() -> None:
    assert show("a\x1bé") == '"a\\x1b\\xe9"'
    assert len(show("x" * 500)) == 80
