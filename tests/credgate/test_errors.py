"""How an error looks to a person."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.errors import CredgateError, print_error
from credgate.text import escape


def test_error_then_hint_and_the_status():
    out = io.StringIO()
    assert print_error(CredgateError("code", "got a, expected b", "do c", 3), out) == 3
    assert out.getvalue() == "error: got a, expected b\nhint: do c\n"


def test_no_hint_no_line(capsys: pytest.CaptureFixture[str]):
    assert print_error(CredgateError("code", "why")) == 1
    assert capsys.readouterr().err == "error: why\n"


def test_control_characters_do_not_act():
    out = io.StringIO()
    print_error(CredgateError("code", "a\x1b[2Jb\nerror: forged", "c\u202ed"), out)
    assert out.getvalue() == "error: a\\x1b[2Jb\\x0aerror: forged\nhint: c\\u202ed\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 😀", "plain é 漢 😀"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u200b\u2028\ue000\udc80", "\\u200b\\u2028\\ue000\\udc80"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_escape(text: str, shown: str):
    assert escape(text) == shown


@given(st.text())
def test_escape_is_printable_encodable_and_leaves_no_more_to_do(text: str):
    shown = escape(text)
    shown.encode()
    assert not any(c in shown for c in "\x00\x07\x08\t\n\r\x1b\x7f\x9b\u2028\u202e")
    assert escape(shown) == shown
