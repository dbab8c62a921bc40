"""Placeholders in a body are found wherever it is cut, and nothing else is."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.gateway.quoted import Quoted

DECOY, OTHER = "ghp_decoydecoydecoy1", "a+b/c=decoydecoydecoy2"


def found(*pieces: bytes) -> set[str]:
    quoted = Quoted({"one": DECOY, "two": OTHER, "none": ""})
    quoted.feed(pieces)
    return quoted.found


@pytest.mark.parametrize("cut", range(len(DECOY) + 3))
def test_at_every_split_point(cut: int) -> None:
    body = b"x" + DECOY.encode() + b"y"
    assert found(body[:cut], body[cut:]) == {"one"}
    assert found(body[:cut], b"-", body[cut:]) == (set() if 1 < cut < len(DECOY) + 1 else {"one"})


@given(st.lists(st.integers(0, 60), max_size=12), st.binary(max_size=20))
def test_cut_in_any_way(cuts: list[int], around: bytes) -> None:
    body = around + DECOY.encode() + around
    at = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert found(*(body[a:b] for a, b in itertools.pairwise(at))) == {"one"}


def test_byte_by_byte_and_as_a_form_spells_it() -> None:
    body = b"a=" + OTHER.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D").encode()
    assert found(*(bytes([byte]) for byte in body)) == {"two"}
    assert found(OTHER.encode(), DECOY.encode()) == {"one", "two"}


def test_nothing_is_found_where_nothing_is() -> None:
    assert found(b"", DECOY.encode()[:-1], b"", DECOY.encode()[1:]) == set()
    assert found() == set()


def test_chunks_of_one_byte_cost_no_more_than_their_bytes() -> None:
    """Forty thousand of them in one read, and forty placeholders; each searched by itself they took 1.5 s."""
    quoted = Quoted({f"b{number}": f"tok_{number:032d}" for number in range(40)})
    pieces = [bytes([byte]) for byte in b"a transcript " * 3300]
    begin = time.process_time()
    quoted.feed([*pieces, *(bytes([byte]) for byte in f"tok_{7:032d}".encode()), *pieces])
    assert time.process_time() - begin < 0.3
    assert quoted.found == {"b7"}
