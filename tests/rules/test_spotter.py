"""Needles counted in a stream that is not held: those that the scrubber finds, and cheap where they only begin."""

import time

from hypothesis import given
from hypothesis import strategies as st

from rules.scrub import Scrubber, Spotter, Table

TABLE = Table({b"abababab": "a", b"ababababcc": "b", b"xabababab": "c", b"0123456789" * 9: "d"})
PIECES = st.sampled_from([b"ab", b"abababab", b"cc", b"x", b"0123456789", b"0123456789" * 9, b"-"])


@given(st.lists(st.lists(PIECES, max_size=12).map(b"".join), max_size=8))
def test_it_counts_what_the_scrubber_finds_at_every_cut(chunks: list[bytes]) -> None:
    spotter, scrubber = Spotter(TABLE), Scrubber(TABLE)
    for chunk in chunks:
        spotter.feed(chunk)
        scrubber.feed(chunk)
    assert spotter.hits == scrubber.hits


def test_beginnings_alone_cost_little() -> None:
    """345 KB of gzip that decode to 32 MiB of a key's well-known beginning kept the gateway's loop for 8 s."""
    table = Table({b"sk-ant-api03-" + b"Qx7Zk2Lm9Pq4Rt8V" * 6: "key"})
    data = b"sk-ant-api03-" * (5 << 16)

    hidden = data + b"sk-ant-api03-Qx7Zk2Lm"  # held: the value may go on
    scrubber = Scrubber(table)
    assert scrubber.feed(hidden) == data
    assert scrubber.feed(b"9Pq4Rt8V" + b"Qx7Zk2Lm9Pq4Rt8V" * 5 + b"!") == b"*" * 109 + b"!"

    def cost(taker: Spotter | Scrubber) -> float:
        before = time.process_time()
        taker.feed(data)
        return time.process_time() - before

    assert cost(Spotter(table)) < 1.0
    assert cost(Scrubber(table)) < 1.0  # over 1 s without the look for whole needles


def test_without_needles() -> None:
    spotter = Spotter(Table({}))
    spotter.feed(b"abababab")
    assert spotter.hits == {}
