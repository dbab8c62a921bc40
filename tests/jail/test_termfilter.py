"""Invariant: whatever the bytes and however they are cut, a terminal that reads the output sees no forbidden string.

The terminal here is a small VT500 parser of its own, lenient where real ones differ: it takes a sequence for what any
of them would.
"""

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jail.answerfilter import AnswerFilter
from jail.termfilter import OutputFilter

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
    "another coding": b"\x1b%@",
    "another coding, of ISO 2022": b"\x1b%/G",
    "8-bit answers": b"\x1b G",
    "8-bit answers by level": b'\x1b[64;0"p',
    "8-bit set": b"\x1b-A",
    "many-byte set": b"\x1b$(B",
    "screen checksum": b"\x1b[1;1;1;1;1;9*y",
    "tab stop report": b"\x1b[2$w",
    "preferred set report": b"\x1b[&u",
    "terminal state report": b"\x1b[1$u",
    "macro": b"\x1b[1*z",
    "VT52 mode": b"\x1b[?7;2l",
    "locked keyboard": b"\x1b[2h",
    "notification": b"\x1b]9;read me\x07",
    "notification of another terminal": b"\x1b]777;notify;a;b\x07",
    "notification in pieces": b"\x1b]99;i=1;text\x1b\\",
    "working directory": b"\x1b]7;file://host/tmp\x07",
    "X property": b"\x1b]3;NAME=value\x07",
    "file transfer": b"\x1b]5113;ac=send\x1b\\",
    "link to a program": b"\x1b]8;;ssh://host/\x1b\\",
    "query behind a C1 control": b"\x1b]11;\xc2\x9d?\x07",
}
PASSED = {
    "text": "plain, grün, 日本語, “quoted”, 🙂\r\n\tx\x07\x08".encode(),
    "colour": b"\x1b[1;38;2;10;20;30mred\x1b[0m",
    "title": b"\x1b]0;title\x07",
    "link": b"\x1b]8;;https://example.test/\x1b\\text\x1b]8;;\x1b\\",
    "set a colour": b"\x1b]11;#102030\x1b\\",
    "reset a colour": b"\x1b]104;1\x07",
    "progress": b"\x1b]9;4;1;50\x07",
    "prompt mark": b"\x1b]133;A\x07\x1b]133;D;0\x07",
    "links": b"\x1b]8;id=1;mailto:a@example.test\x07a\x1b]8;;\x07",
    "cursor style, soft reset, region": b"\x1b[2 q\x1b[!p\x1b[2;5r\x1b[2;1H\x1b[2J\x1b[2m\x1b[2s",
    "line drawing": b"\x1b(0qqq\x1b(B\x1b)0",
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
    for start, end in (
        (b"\x1b[", b"m"),
        (b"\x1b]52;", b"\x07"),
        (b"\x1b]2;", b"\x07"),
        (b"\x1bP", b"\x07"),
        (b"\x1b ", b""),
    ):
        one = OutputFilter()
        assert one.feed(start) == b""
        for _ in range(200):
            assert one.feed((b" " if start == b"\x1b " else b"1") * 1000) == b""
            assert len(one._held) <= 4100
        assert one.feed(end) == b""


def test_the_consoles_palette_does_not_swallow_what_follows() -> None:
    assert whole(b"a\x1b]Rb") == b"ab"
    assert whole(b"a\x1b]P1ff00ffb") == b"ab"


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
        return bool(
            re.fullmatch(rb"[<=>?]*0*2[01]([;:][\x20-\x3f]*)?t|[\x20-\x3f]*i", body)
            or re.fullmatch(rb"\??([0-9;:]*[;:])?0*2([;:][0-9;:]*)?[hl]", body)
            or re.search(rb"\*[yz]|\"p|\$[wu]|&u", body)
        )
    number, _, rest = body.partition(b";")
    named = re.fullmatch(rb"0*(0|1|2|4|5|8|9|1[0-9]|21|104|105|11[0-9]|133)", number)
    coloured = re.fullmatch(rb"0*(4|5|1[0-9]|21)", number)
    return (
        not named
        or bool(coloured and b"?" in rest)
        or bool(re.fullmatch(rb"0*9", number) and not rest.startswith(b"4"))
        or bool(re.fullmatch(rb"0*8", number) and b":" in rest and not re.search(rb"(?i);(https?|mailto):", rest))
    )


def leaves_utf8(data: bytes) -> bool:
    """An escape to another coding, or to 8-bit controls, with whatever a terminal skips in between."""
    return bool(re.search(rb"\x1b+[ %\-./$]", CONTROL.sub(b"", data)))


def c1_controls(data: bytes) -> list[str]:
    """Those that begin something: in UTF-8, or as a byte that is no part of a character."""
    text = data.decode("utf-8", errors="surrogateescape")
    return [c for c in text if c in "\x90\x98\x9b\x9d\x9e\x9f" or ("\udc90" <= c <= "\udc9f" and ord(c) - 0xDC00 in C1)]


C1 = (0x90, 0x98, 0x9B, 0x9D, 0x9E, 0x9F)


pieces = st.lists(
    st.one_of(
        st.sampled_from([*DROPPED.values(), *PASSED.values()]),
        st.sampled_from([b"\x1b", b"]", b"52", b";", b"\x07", b"\\", b"[", b"P", b"\xc2", b"\x9d", b"\xe2\x80", b"?"]),
        st.sampled_from(
            [b"\x1b%@", b"\x1b%", b"@", b"\x1b G", b" ", b"G", b"\xc3", b"\xc2\x9d", b"\xc2\x9c", b"\x1b]11;"]
        ),
        st.sampled_from([b"\x1b]2;", b"\x1b]8;;", b"http:", b"9;", b"*y", b"$w", b"?2", b"l", b"\xc2\x84", b"(", b"R"]),
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
@example(b"\x1b%@\xc3\x9d52;c;aGk=\x07\x1b%G")
@example(b"\x1b]11;\xc2\x9d?\x07")
@example(b"\x1b\n%@")
@example(b"\x1b]5\x1b]52;c;aGk=\x072;c;aGk=\x07")
def test_no_forbidden_string_comes_out(data: bytes) -> None:
    out = whole(data)
    assert not [found for found in strings(out) if forbidden(*found)]
    assert not leaves_utf8(out)
    assert not c1_controls(out)


@given(pieces)
@example(b"\x1b]11;\x1b]52;c;x\x07?\x07")
def test_no_osc_comes_out_without_its_end(data: bytes) -> None:
    out = re.sub(rb"\x1b\][^\x07\x1b\x18\x1a\x00-\x06]*(\x07|\x1b\\)", b"", whole(data))
    assert b"\x1b]" not in out


@given(pieces, places)
def test_cuts_make_no_difference(data: bytes, where: list[int]) -> None:
    assert cut(data, where) == whole(data)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), places)
def test_text_passes_as_it_is(text: str, where: list[int]) -> None:
    assert cut(text.encode(), where) == text.encode()


# The other way

BODIES = {
    "clipboard": (b"]", b"52;c;c2VjcmV0"),
    "colour": (b"]", b"11;rgb:1111/2222/3333"),
    "title": (b"]", b"lsecret title"),
    "title of another script": (b"]", "lein “geheimer” Titel ”".encode()),
    "status": (b"P", b"1$r0m"),
    "capability": (b"P", b"1+r544e=787465726d"),
    "version": (b"P", b">|term 1.2"),
    "graphics": (b"_", b"Gi=1;OK"),
}
C1_OF = {b"]": b"\x9d", b"P": b"\x90", b"_": b"\x9f"}
ANSWERS = {
    f"{name}, {form}": head + body + end
    for name, (kind, body) in BODIES.items()
    for form, head, end in (
        ("BEL", b"\x1b" + kind, b"\x07"),
        ("ST", b"\x1b" + kind, b"\x1b\\"),
        ("8 bits", C1_OF[kind], b"\x9c"),
        ("UTF-8", b"\xc2" + C1_OF[kind], b"\xc2\x9c"),
    )
}
KEYS = (
    b"a",
    b"\x1b",
    b"\x1b[A",
    b"\x1bOP",
    b"\x1b]",
    b"\x1bP",
    b"\x1b_",
    b"\x1bx",
    b"\x03",
    b"\x1b[200~paste\x1b[201~",
    b"\xc3\xa9",
    "”0".encode(),
)
KEYS_AND_NUMBERS = (*KEYS, b"\x1b[12;40R", b"\x1b[?62;22c", b"\x1b[?2026;2$y", b"\x1b[8;24;80t")


def answered(data: bytes, places: list[int], *, settle: bool = True) -> bytes:
    """What the jail reads of `data` in these pieces; `settle`: a quiet moment at the end."""
    one = AnswerFilter()
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    out = b"".join(one.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    return out + (one.flush() if settle else b"")


@pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS)
def test_answers_that_are_strings_do_not_reach_the_jail(data: bytes) -> None:
    assert answered(b"x" + data + b"y", []) == b"xy"
    for place in range(len(data) + 2):
        assert answered(b"x" + data + b"y", [place]) == b"xy"
    assert answered(b"x" + data + b"y", list(range(99))) == b"xy"


@pytest.mark.parametrize("key", KEYS_AND_NUMBERS)
def test_keys_and_answers_of_numbers_pass(key: bytes) -> None:
    one = AnswerFilter()
    for _ in range(2):
        assert one.feed(key) + one.flush() == key
        assert not one.waiting
    assert answered(key, list(range(len(key)))) == key


def test_only_what_may_be_a_start_is_held() -> None:
    one = AnswerFilter()
    for key in (b"a", b"\x1b[A", b"\x03", b"\xc3\xa9", b"\x1bx"):
        assert one.feed(key) == key
        assert not one.waiting
    assert one.feed(b"\x1b") == b""
    assert one.waiting
    assert one.flush() == b"\x1b"


def test_a_truncated_answer_does_not_swallow_control_keys() -> None:
    for key in (b"\x03", b"\r", b"\x1b[A", b"\x1b"):
        one = AnswerFilter()
        assert one.feed(b"\x1b]11;rgb:11") == b""
        assert one.feed(key) + one.flush() == key
        assert one.feed(b"x") == b"x"


streams = st.lists(
    st.one_of(
        st.sampled_from([*ANSWERS.values(), *KEYS]),
        st.sampled_from([b"\x1b", b"]", b"5", b"\x9d", b"\xc2", b"\xe2\x80", b"\x9c", b"P", b"\\", b"\x90", b"G"]),
        st.binary(max_size=5),
    ),
    max_size=10,
).map(b"".join)


@given(streams, places)
@example(b"\x1b]52;c;c2VjcmV0\x07", [1])
def test_cuts_make_no_difference_to_answers(data: bytes, where: list[int]) -> None:
    assert answered(data, where) == answered(data, [])


@given(streams, places)
def test_no_answer_reaches_the_jail(data: bytes, where: list[int]) -> None:
    out = answered(data, where, settle=False)
    assert len(out) <= len(data)
    for body in (b"52;c;c2VjcmV0", b"11;rgb:1111"):
        for head in (b"\x1b]", b"\xc2\x9d"):
            assert head + body not in out
