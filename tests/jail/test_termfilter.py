"""Invariant: whatever the bytes and however they are cut, a terminal that reads the output sees no forbidden string.

The terminal here is a small VT500 parser of its own, lenient where real ones differ: it takes a sequence for what any
of them would.
"""

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jail.termfilter import AnswerFilter, OutputFilter

DROPPED = {
    "clipboard write, BEL": b"\x1b]52;c;aGk=\x07",
    "clipboard write, ST": b"\x1b]52;c;aGk=\x1b\\",
    "clipboard query": b"\x1b]52;c;?\x07",
    "C1 OSC": b"\x9d52;c;aGk=\x9c",
    "C1 OSC as a character": b"\xc2\x9d52;c;aGk=\xc2\x9c",
    "leading zeros": b"\x1b]00000000000052;c;aGk=\x07",
    "a number that wraps": b"\x1b]4294967348;c;aGk=\x07",
    "files": b"\x1b]1337;File=name=eA==;inline=0:aGk=\x07",
    "clipboard of another terminal": b"\x1b]5522;type=write\x07",
    "colour query": b"\x1b]11;?\x1b\\",
    "title report": b"\x1b[21t",
    "icon report, padded": b"\x1b[0020;0t",
    "print": b"\x1b[5i",
    "status string": b"\x1bP$qm\x1b\\",
    "user-defined keys": b"\x1bP1;1|17/68690d\x1b\\",
    "application command": b"\x1b_Gi=1,t=f;L2V0Yy9wYXNzd2Q=\x1b\\",
    "answerback": b"\x05",
}
PASSED = {
    "text": "plain, grün, 日本語, “quoted”, 🙂\r\n\tx\x07\x08".encode(),
    "colour": b"\x1b[1;38;2;10;20;30mred\x1b[0m",
    "title": b"\x1b]0;title\x07",
    "link": b"\x1b]8;;https://example.test/\x1b\\text\x1b]8;;\x1b\\",
    "set a colour": b"\x1b]11;#102030\x1b\\",
    "reset a colour": b"\x1b]104;1\x07",
    "cursor query": b"\x1b[6n",
    "attributes query": b"\x1b[c\x1b[>c\x1b[?u\x1b[?2026$p",
    "size query": b"\x1b[14t\x1b[18t\x1b[22;0t\x1b[23;0t",
    "alternate screen": b"\x1b[?1049h\x1b7\x1b8\x1b=\x1b>\x1b(B\x1b#8\x1bM\x1bc",
    "invalid bytes": b"\xff\xfe\x80\xc0x",
}


def whole(data: bytes) -> bytes:
    return OutputFilter().feed(data)


def cut(data: bytes, places: list[int]) -> bytes:
    one = OutputFilter()
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return b"".join(one.feed(data[a:b]) for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize("data", DROPPED.values(), ids=DROPPED)
def test_dropped_in_every_split(data: bytes) -> None:
    for place in range(len(data) + 1):
        # The stray end of a string that was not one is harmless.
        assert cut(b"<" + data + b">", [place + 1]).replace(b"\x1b\\", b"") == b"<>"
    assert cut(b"<" + data + b">", list(range(99))).replace(b"\x1b\\", b"") == b"<>"


@pytest.mark.parametrize("data", PASSED.values(), ids=PASSED)
def test_passed_unchanged_in_every_split(data: bytes) -> None:
    for place in range(len(data) + 1):
        assert cut(data, [place]) == data
    assert cut(data, list(range(len(data)))) == data


def test_controls_within_a_sequence_do_not_hide_it() -> None:
    assert whole(b"\x1b\n]5\r2;c;aGk=\x07x") == b"\nx"
    assert whole(b"\x1b\x00\x7f]\x0052;c;aGk=\x07x") == b"\x00x"
    assert whole(b"\x1b[2\n1tx") == b"\nx"


def test_one_string_does_not_hide_another() -> None:
    assert b"52" not in whole(b"\x1b]8;;url\x1b]52;c;aGk=\x07")
    assert b"52" not in whole(b"\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\")
    assert b"52" not in whole(b"\x1b]52;a\x1b]52;c;aGk=\x07")
    assert b"52" not in whole(b"\x1b[1;2\x1b]52;c;aGk=\x07")
    assert b"52" not in whole(b"\x1b\x9d52;c;aGk=\x07")


def test_a_quotation_mark_holds_the_byte_of_a_c1_control() -> None:
    assert whole("a”52;c;x\x07b".encode()) == "a”52;c;x\x07b".encode()


def test_memory_is_bounded_and_a_long_sequence_is_dropped() -> None:
    for start in (b"\x1b[", b"\x1b]52;", b"\x1b]11;", b"\x1bP", b"\x1b]"):
        one = OutputFilter()
        for _ in range(200):
            assert one.feed(start[:0] + b"1" * 1000 if _ else start) == b""
        assert len(one._held) <= 300


def test_ordinary_text_is_not_held_back() -> None:
    one = OutputFilter()
    for text in ("a", "é", "\n", "prompt> "):
        assert one.feed(text.encode()) == text.encode()


# The terminal of the invariant

CONTROL = re.compile(rb"[\x00-\x06\x08-\x17\x19\x1c-\x1f\x7f]")


def strings(data: bytes) -> list[tuple[str, bytes]]:
    """(introducer, body) of each string and CSI that a terminal would find, controls within left out."""
    text = CONTROL.sub(b"", data)
    found = [(m.group(1).decode(), m.group(2)) for m in re.finditer(rb"\x1b+([\]PX^_])([^\x07\x1b\x18\x1a]*)", text)]
    found += [("[", m.group(1)) for m in re.finditer(rb"\x1b+\[([\x20-\x3f]*[\x40-\x7e])", text)]
    found += [("]", m.group(1)) for m in re.finditer(rb"\xc2\x9d([^\x07\x1b\x18\x1a]*)", text)]
    return found


def forbidden(kind: str, body: bytes) -> bool:
    if kind in "PX^_":
        return True
    if kind == "[":
        return bool(re.fullmatch(rb"0*2[01](;[\x20-\x3f]*)?t|[\x20-\x3f]*i", body))
    return bool(re.match(rb"0*(50|51|52|1337|5522)(?![0-9])", body) or re.match(rb"0*(4|5|1[0-9]|21);.*\?", body))


pieces = st.lists(
    st.one_of(
        st.sampled_from([*DROPPED.values(), *PASSED.values()]),
        st.sampled_from([b"\x1b", b"]", b"52", b";", b"\x07", b"\\", b"[", b"P", b"\xc2", b"\x9d", b"\xe2\x80", b"?"]),
        st.sampled_from([b"\n", b"\x00", b"\x18", b"\x7f", b"0", b"11;", b"2", b"1t", b"\x9c", b"_", b"x", b"tmux;"]),
        st.binary(max_size=4),
    ),
    max_size=14,
).map(b"".join)
places = st.lists(st.integers(0, 400), max_size=6)


@given(pieces)
@example(b"\x1b\xc2\x9d52;c;x\x07")
@example(b"\x1b]11;\x1b?\x07")
@example(b"\x9d\x1b]52;c;aGk=\x0752")
@example(b"\x1b]5\x1b]52;c;aGk=\x072;c;aGk=\x07")
def test_no_forbidden_string_comes_out(data: bytes) -> None:
    seen = [found for found in strings(whole(data)) if forbidden(*found)]
    assert not seen


@given(pieces, places)
def test_cuts_make_no_difference(data: bytes, where: list[int]) -> None:
    assert cut(data, where) == whole(data)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), places)
def test_text_passes_as_it_is(text: str, where: list[int]) -> None:
    assert cut(text.encode(), where) == text.encode()


# The other way

ANSWERS = {
    "clipboard": b"\x1b]52;c;c2VjcmV0\x07",
    "colour": b"\x1b]11;rgb:1111/2222/3333\x1b\\",
    "title": b"\x1b]lsecret title\x1b\\",
    "status": b"\x1bP1$r0m\x1b\\",
    "capability": b"\x1bP1+r544e=787465726d\x1b\\",
    "version": b"\x1bP>|term 1.2\x1b\\",
    "graphics": b"\x1b_Gi=1;OK\x1b\\",
}
KEYS = (
    b"a",
    b"\x1b",
    b"\x1b[A",
    b"\x1bOP",
    b"\x1b]",
    b"\x1bP",
    b"\x1b_",
    b"\x03",
    b"\x1b[200~paste\x1b[201~",
    b"\xc3\xa9",
)
KEYS_AND_NUMBERS = (*KEYS, b"\x1b[12;40R", b"\x1b[?62;22c", b"\x1b[?2026;2$y", b"\x1b[8;24;80t")


@pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS)
def test_answers_that_are_strings_do_not_reach_the_jail(data: bytes) -> None:
    assert AnswerFilter().feed(b"x" + data + b"y") == b"xy"
    for place in range(3, len(data)):  # its first three bytes come in one write
        one = AnswerFilter()
        assert one.feed(b"x" + data[:place]) + one.feed(data[place:] + b"y") == b"xy"


def test_keys_and_answers_of_numbers_pass() -> None:
    one = AnswerFilter()
    for key in KEYS_AND_NUMBERS:
        assert one.feed(key) == key


def test_a_truncated_answer_does_not_swallow_control_keys() -> None:
    for key in (b"\x03", b"\r", b"\x1b[A"):
        one = AnswerFilter()
        assert one.feed(b"\x1b]11;rgb:11") == b""
        assert one.feed(key) == key
        assert one.feed(b"x") == b"x"


@given(st.lists(st.one_of(st.sampled_from([*ANSWERS.values(), *KEYS]), st.binary(max_size=5)), max_size=8))
def test_answers_are_bounded_in_what_they_add(chunks: list[bytes]) -> None:
    one = AnswerFilter()
    out = b"".join(one.feed(chunk) for chunk in chunks)
    assert len(out) <= len(b"".join(chunks))
    assert b"\x1b]52;c;c2VjcmV0\x07" not in out
