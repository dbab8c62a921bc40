"""Records: bounded text, and a reader that doesn't read costs counts, not memory, and no event is lost from the sum."""

import asyncio
import json
import socket
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.errors import ResolverError
from resolver.events import MAX_NAME_TEXT, Code, Event, Outbox, spell


@given(st.lists(st.binary(max_size=80), max_size=8).map(tuple))
def test_spelled_names_are_short_printable_ascii(labels: tuple[bytes, ...]) -> None:
    """Even of labels that the parser would never let through."""
    text = spell(labels)
    assert text.isascii()
    assert text.isprintable()
    assert 0 < len(text) <= MAX_NAME_TEXT


def test_spelling() -> None:
    """The root is a dot."""
    assert spell((b"api", b"example")) == "api.example"
    assert spell(()) == "."
    assert spell((b"a\nb", b"\xff")) == "a\\x0ab.\\xff"


def drain(sock: socket.socket) -> list[dict[str, object]]:
    """All that has arrived."""
    messages: list[dict[str, object]] = []
    while True:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return messages
        messages.append(json.loads(data))


def pair() -> tuple[socket.socket, socket.socket]:
    """A non-blocking control pair."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def test_slow_reader_costs_counts() -> None:
    """50,000 events to nobody: two counters; then every one of them is in the sum, and replies kept their order."""

    async def run() -> None:
        ours, theirs = pair()
        outbox = Outbox(theirs, gone=lambda: None)
        for n in range(2_000):
            outbox.post(Event(run="r", code=Code.DENY, name=f"n{n}.example"))
        tracemalloc.start()
        for n in range(24_000):
            outbox.post(Event(run="r", code=Code.DENY, name=f"n{n}.example"))
            outbox.post(Event(run="r", code=Code.MALFORMED))
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 20_000
        outbox.reply({"ok": True, "op": "add", "run": "x"})
        outbox.reply({"ok": True, "op": "remove", "run": "x"})
        messages: list[dict[str, object]] = []
        for _ in range(50):
            messages += drain(ours)
            await asyncio.sleep(0.001)
        counts = [m["count"] for m in messages if "count" in m]
        assert sum(n for n in counts if isinstance(n, int)) == 50_000
        assert [m["op"] for m in messages if "ok" in m] == ["add", "remove"]
        held = [m for m in messages if m.get("name") == ""]
        assert {m["code"] for m in held} == {"dns.deny", "dns.malformed"}
        ours.close()
        theirs.close()

    asyncio.run(run())


def test_replies_that_nobody_reads_end_the_process() -> None:
    """Bounded as well, by an error."""

    async def run() -> None:
        ours, theirs = pair()
        outbox = Outbox(theirs, gone=lambda: None)

        def ask_without_reading() -> None:
            for _ in range(20_000):
                outbox.reply({"ok": True, "op": "add", "run": "x"})

        with pytest.raises(ResolverError, match="control_unread"):
            ask_without_reading()
        ours.close()
        asyncio.get_running_loop().remove_writer(theirs)
        theirs.close()

    asyncio.run(run())


def test_a_closed_reader_is_told() -> None:
    """The daemon's end is gone."""

    async def run() -> None:
        ours, theirs = pair()
        gone: list[bool] = []
        outbox = Outbox(theirs, gone=lambda: gone.append(True))
        outbox.post(Event(run="r", code=Code.DENY))
        ours.close()
        outbox.post(Event(run="r", code=Code.DENY))
        assert gone == [True]
        theirs.close()

    asyncio.run(run())
