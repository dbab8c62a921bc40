"""The spellings of a secret, and the scrubber over every way to cut a stream."""

import base64
import html
import json
import re
import time
from random import Random
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.needles import MIN_LENGTH, basic_needles, needles
from rules.scrub import HEAD, MASK, STEP, Scrubber, Table

VALUE = "ghp_Ab+9/x=~Q<&>'\"\\ é0123456789abcdefghij"
RAW = VALUE.encode()


def table(*values: str) -> Table:
    return Table({form: value for value in values for form in needles(value)})


def streamed(found: Table, pieces: list[bytes]) -> tuple[bytes, list[bytes], dict[str, int]]:
    scrubber = Scrubber(found)
    out = [scrubber.feed(piece) for piece in pieces]
    out.append(scrubber.finish())
    return b"".join(out), out, scrubber.hits


def json_forms() -> dict[str, bytes]:
    plain = json.dumps(VALUE)[1:-1]
    wide = json.dumps(VALUE, ensure_ascii=False)[1:-1]
    units = "".join(f"\\u{ord(c):04x}" for c in VALUE)
    go = wide.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return {
        "json": plain.encode(),
        "json, UTF-8": wide.encode(),
        "json, slash escaped": plain.replace("/", "\\/").encode(),
        "json as Go writes it": go.encode(),
        "json, each character escaped": units.encode(),
        "json, each character escaped, capitals": ("".join(f"\\u{ord(c):04X}" for c in VALUE)).encode(),
    }


FORMS: dict[str, bytes] = {
    "raw": RAW,
    "latin-1": VALUE.encode("latin-1"),
    "hex": RAW.hex().encode(),
    "hex, capitals": RAW.hex().upper().encode(),
    "percent": quote(VALUE, safe="").encode(),
    "percent, slash left": quote(VALUE).encode(),
    "percent of a form": quote_plus(VALUE).encode(),
    "percent, lower": re.sub("%..", lambda found: found[0].lower(), quote(VALUE, safe="")).encode(),
    "percent of every byte": b"".join(b"%%%02X" % c for c in RAW),
    "percent of every byte, lower": b"".join(b"%%%02x" % c for c in RAW),
    "html": html.escape(VALUE).encode(),
    **json_forms(),
}
TABLE = table(VALUE)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_found_at_every_split(form: str) -> None:
    echoed = b'{"said": "' + FORMS[form] + b'"}'
    start, size = echoed.index(FORMS[form]), len(FORMS[form])
    for at in range(len(echoed) + 1):
        out, pieces, hits = streamed(TABLE, [echoed[:at], echoed[at:]])
        assert hits == {VALUE: 1}
        shown = max(0, at - start) if at - start < HEAD else 0  # what went out before it could be told
        assert out == echoed[: start + shown] + MASK * (size - shown) + echoed[start + size :]
        assert len(pieces[0]) <= at


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_found_byte_by_byte(form: str) -> None:
    out, _, hits = streamed(TABLE, [bytes([c]) for c in b"<" + FORMS[form] + b">"])
    assert hits == {VALUE: 1}
    assert out == b"<" + FORMS[form][: HEAD - 1] + MASK * (len(FORMS[form]) - HEAD + 1) + b">"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("ahead", range(4))
@pytest.mark.parametrize("behind", range(3))
def test_base64_wherever_the_value_stands_in_it(encode: "type[bytes]", ahead: int, behind: int) -> None:
    text = encode(b"u:x:"[:ahead] + RAW + b"!?"[:behind])
    for at in range(len(text) + 1):
        out, _, hits = streamed(TABLE, [text[:at], text[at:]])
        assert hits == {VALUE: 1}
        # at most the characters that hold bits of a neighbour too, and what went out at the split
        seen = sum(a == b for a, b in zip(out, text, strict=True))
        assert seen <= 8 + 4 + (HEAD - 1 if at else 0)


def test_control_what_is_no_secret_passes_as_it_came() -> None:
    near = [FORMS[form][:-1] + b"\x01" for form in FORMS if FORMS[form][-2:-1] != b"%"]
    for text in [*near, RAW[1:], RAW[:-1], RAW.lower(), b"ghp_Ab+9"]:
        assert streamed(TABLE, [text])[::2] == (text, {})


def test_a_whole_basic_credential() -> None:
    found = Table(dict.fromkeys(basic_needles("x-access-token:" + VALUE), "token"))
    text = b"Basic " + base64.b64encode(b"x-access-token:" + RAW)
    out, names = found.clean(text)
    assert (set(out[6:].rstrip(b"=")), names) == ({42}, {"token"})


def test_a_short_value_is_not_looked_for() -> None:
    assert needles("a" * (MIN_LENGTH - 1)) == frozenset()
    assert needles("hunter22")
    with pytest.raises(ValueError, match="7 bytes"):
        Table({b"1234567": "x"})


# What is held back, and when


def test_held_from_the_head_on_and_let_go_in_steps() -> None:
    """How long bytes wait says nothing about the bytes of a step, until all of them are there."""
    value = "sk-ant-api03-" + "0123456789abcdefghijklmnopqrstuv"
    for wrong in range(HEAD, HEAD + STEP):
        scrubber = Scrubber(table(value))
        guess = bytearray(value.encode()[: HEAD + STEP])
        guess[wrong] ^= 1
        held = []
        for byte in guess[:-1]:
            scrubber.feed(bytes([byte]))
            held.append(scrubber.held)
        assert held == [*[0] * (HEAD - 1), *range(1, STEP + 1)]
        assert scrubber.feed(bytes(guess[-1:])) == bytes(guess[HEAD - 1 :])
        assert scrubber.held == 0


def test_a_shorter_beginning_does_not_wait() -> None:
    scrubber = Scrubber(TABLE)
    event = b"data: " + RAW[: HEAD - 1]
    assert scrubber.feed(event) == event
    assert scrubber.feed(RAW[HEAD - 1 :]) == MASK * (len(RAW) - HEAD + 1)


def test_flushed_in_the_middle_the_rest_is_found() -> None:
    scrubber = Scrubber(TABLE)
    assert scrubber.feed(RAW[:20]) == b""
    assert scrubber.flush() == RAW[:20]
    assert scrubber.feed(RAW[20:] + b".") == MASK * (len(RAW) - 20) + b"."
    assert scrubber.hits == {VALUE: 1}


def test_one_value_is_the_beginning_of_another() -> None:
    both = table("abcdefgh12345678", "abcdefgh12345678ABCDEFGHIJKLMNOP")
    text = b"<abcdefgh12345678ABCDEFGHIJKLMNOP>"
    for at in range(len(text)):
        out, _, hits = streamed(both, [text[:at], text[at:]])
        shown = max(0, at - 1) if at - 1 < HEAD else 0
        assert (out, len(hits)) == (b"<" + text[1 : 1 + shown] + MASK * (32 - shown) + b">", 2)


def test_a_value_that_repeats_itself() -> None:
    value = "abababababababab"
    out, _, hits = streamed(table(value), [b"a", b"bab" * 3, b"ab" * 20, b"x"])
    assert hits[value] > 1
    assert b"abababab" not in out


PIECES = st.lists(st.sampled_from([*FORMS.values(), RAW[:12], RAW[5:], b"ghp_Ab+9", b"x", b"\n\ndata: ", b"g"]))


@given(PIECES, st.randoms(use_true_random=False))
def test_any_chunking(parts: list[bytes], random: Random) -> None:
    """However it is cut: the same length, no byte changed but to the mask, no spelling of the value left whole."""
    text, cut = b"".join(parts), []
    at = 0
    while at < len(text):
        size = random.randint(1, 40)
        cut.append(text[at : at + size])
        at += size
    out, _, hits = streamed(TABLE, cut)
    whole, _, found = streamed(TABLE, [text])
    assert hits == found
    assert all(o in (t, 42) for o, t in zip(out, text, strict=True))
    # what the cut lets out ahead are beginnings, never more than HEAD - 1 bytes of one
    assert all(a in (b, t) for a, b, t in zip(out, whole, text, strict=True))
    assert not any(form in out for form in needles(VALUE))


@pytest.mark.parametrize("cut", [8, 1 << 16])
def test_a_beginning_that_everybody_knows_costs_little(cut: int) -> None:
    """Many spellings of many values share it, and whoever repeats it had each of them looked at: 57 s for these."""
    known = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9."
    values = [f"{known}{Random(i).randbytes(20).hex()}/+<&\">'" for i in range(200)]
    found, flood = table(*values), known.encode() * 1500
    began = time.process_time()
    assert streamed(found, [flood[at : at + cut] for at in range(0, len(flood), cut)])[2] == {}
    assert time.process_time() - began < 5.0
    for form in needles(values[7]):
        assert found.found(flood + form + flood) == {values[7]}
        assert form not in found.clean(flood + form + flood)[0]


def test_a_value_of_very_many_steps_is_found() -> None:
    value = "".join(Random(1).choices("0123456789abcdefghijklmnopqrstuvwxyz", k=16384))
    found = table(value)
    for form in needles(value):
        assert streamed(found, [b"<" + form + b">"])[2] == {value: 1}


@pytest.mark.parametrize("others", [0, 40, 200, 2000])
def test_long_pieces_are_searched_as_short_ones_are(others: int) -> None:
    """Passed on as they are where nothing begins in them: at every cut around a border, and however many are known."""
    more = {b"%08x-another-value" % n: "other" for n in range(others)}
    found = Table({b"0123456789abcdef-secret": "token", b"9abcdef-secret-and": "inner", **more})
    secret, clear = b"0123456789abcdef-secret-and more", b"nothing of it " * 200
    for at in range(len(secret) + 1):
        pieces = [clear, clear + secret[:at], secret[at:] + clear, clear]
        out, _, hits = streamed(found, pieces)
        assert hits == {"token": 1, "inner": 1}
        assert len(out) == sum(map(len, pieces))
        assert out.count(MASK * len(b"0123456789abcdef-secret-and")) == (1 if not 0 < at < HEAD else 0)
    last = b"%08x-another-value" % (others - 1) if others else b""
    assert streamed(found, [clear + last, clear])[2] == ({"other": 1} if others else {})
    assert found._quick if others <= 1000 else not found._quick
