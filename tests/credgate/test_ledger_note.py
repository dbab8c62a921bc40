"""Signed notes: a published example checks, each other byte is refused, and only NoteError comes out of the parser."""

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.ledger.keys import Key, parse_public, public_pem
from credgate.ledger.note import Checkpoint, Note, NoteError, check, key_id, parse_note, parse_notes, vkey

# From the documentation of Go's golang.org/x/mod/sumdb/note: a key, a text, its signature.
GO_VKEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = b"If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_SIGNATURE = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="


@pytest.fixture(scope="module")
def key() -> Key:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    return Key(private=private, public=private.public_key().public_bytes_raw())


@pytest.fixture(scope="module")
def note(key: Key) -> Note:
    return key.note(Checkpoint(origin="credgate/ledger/x", size=3, root=bytes(32), extra=("segment 1", "final")))


def test_the_example_of_another_implementation():
    public = parse_public(GO_VKEY)
    data = base64.b64decode(GO_SIGNATURE)
    assert key_id("PeterNeumann", public) == data[:4] == bytes.fromhex("c74f20a3")
    assert check(public, data[4:], GO_TEXT)
    assert not check(public, data[4:], GO_TEXT + b"\n")
    assert vkey("PeterNeumann", public) == GO_VKEY


def test_a_note_is_read_as_it_was_written(key: Key, note: Note):
    notes, end = parse_notes(note.data() * 3)
    assert notes == [note] * 3
    assert end == len(note.data()) * 3
    assert notes[0].signed_by(key.public)
    assert not notes[0].signed_by(bytes(32))
    assert note.checkpoint.text().splitlines()[:2] == [b"credgate/ledger/x", b"3"]
    assert parse_note(note.data().strip()) == parse_note(note.data() + b"\n\n") == [note]


def test_what_a_crash_cut_off_is_behind_the_last_whole_note(note: Note):
    data = note.data()
    for cut in range(1, len(data)):
        assert parse_notes(data + data[:-cut]) == ([note], len(data))


def test_each_changed_byte_is_found(key: Key, note: Note):
    data = note.data()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            notes, end = parse_notes(changed)
        except NoteError:
            continue
        assert end != len(data) or not notes[0].signed_by(key.public), at


@pytest.mark.parametrize(
    "text",
    [
        b"o\n3\n",
        b"o\n03\nAAAA\n",
        b"o\n-3\nAAAA\n",
        b"o\n3\nAAAA\n",
        b"o\n3\n!!!!\n",
        b"o\n3\n" + b"A" * 42 + b"B=\n",  # bits behind the last byte that count for nothing
        b"o\n3\n" + b"A" * 43 + b"=\n\x1b[2J\n",
        b"o\n" + b"9" * 20 + b"\n" + b"A" * 43 + b"=\n",
        b"o\n3\n" + b"A" * 43 + b"=\n" + b"x" * 5000 + b"\n",
        b"\xff\n3\n" + b"A" * 43 + b"=\n",
    ],
)
def test_what_is_no_checkpoint(note: Note, text: bytes):
    signature = b"\xe2\x80\x94 o " + base64.b64encode(bytes(68)) + b"\n"
    assert parse_notes(b"o\n3\n" + b"A" * 43 + b"=\n\n" + signature + b"\n")[0]
    with pytest.raises(NoteError):
        parse_notes(text + b"\n" + signature + b"\n")


@pytest.mark.parametrize("line", [b"o AAAA", b"\xe2\x80\x94 p " + base64.b64encode(bytes(68)), b"\xe2\x80\x94 o AAAA"])
def test_what_is_no_signature(line: bytes):
    with pytest.raises(NoteError):
        parse_notes(b"o\n3\n" + b"A" * 43 + b"=\n\n" + line + b"\n\n")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"x", b"a\n\nb\n\nc"])
def test_a_file_that_holds_no_note(data: bytes):
    with pytest.raises(NoteError):
        parse_note(data)


@given(st.binary(max_size=300) | st.text(alphabet="ab\n=—0 ", max_size=80).map(str.encode))
def test_only_note_errors_come_out(data: bytes):
    for parse in (parse_notes, parse_note):
        with contextlib.suppress(NoteError):
            parse(data)


def test_public_keys_in_three_forms(key: Key):
    forms = [public_pem(key.public).decode(), vkey("a", key.public), base64.b64encode(key.public).decode() + "\n"]
    assert {parse_public(form) for form in forms} == {key.public}


@pytest.mark.parametrize(
    "text", ["", "x", "AAAA", "a+00000000+AAAA", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"]
)
def test_what_is_no_public_key(text: str):
    with pytest.raises(ValueError, match="not an Ed25519"):
        parse_public(text)
