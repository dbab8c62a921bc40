"""The socket between daemon and worker, and what a worker may say: hostile bytes, large packets, a deaf other side."""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.gateway.records import Records
from credgate.ledger.record import LedgerError, clean_fields
from credgate.ledger.writer import Ledger
from credgate.runs import Run
from credgate.secretvalue import Secret
from credgate.workers import channel as channels
from credgate.workers import messages as m
from credgate.workers.channel import GONE, Channel, ChannelError
from credgate.workers.desk import Desk
from credgate.workers.knowing import SharedValues
from credgate.workers.line import Line, Told, Way, fresh
from credgate.workers.settings import SettingsError, parse_processes
from rules.grants import Use
from rules.reasons import Reason
from rules.verdict import Deny

FIELDS: m.Fields = {"run": "r1", "reason": "no_rule"}


class Ends:
    """A daemon's end and the other one, raw; what came, and why it ended."""

    def __init__(self, most: int = 1 << 20) -> None:
        ours, self.raw = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.got: list[tuple[Any, list[int]]] = []
        self.why: list[str] = []
        self.channel = Channel(ours, m.for_daemon, lambda *each: self.got.append(each), self.why.append, most)

    def close(self) -> None:
        self.channel.end("over")
        self.raw.close()


def with_ends(body: Callable[[Ends], Awaitable[None]], most: int = 1 << 20) -> None:
    async def main() -> None:
        ends = Ends(most)
        try:
            await body(ends)
        finally:
            ends.close()

    asyncio.run(main())


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(message)) + message for message in messages)


@given(st.one_of(st.binary(max_size=200), st.lists(st.binary(max_size=40), max_size=4).map(lambda x: framed(*x))))
def test_whatever_bytes_come_the_loop_goes_on(data: bytes) -> None:
    async def body(ends: Ends) -> None:
        ends.raw.send(data or b"\0")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ends.channel.drain()
        assert ends.why or ends.got or not data.strip(b"\0")
        assert all(isinstance(message, m.Message) for message, _ in ends.got)

    with_ends(body)


def test_messages_in_order_and_no_others_behind_a_bad_one() -> None:
    async def body(ends: Ends) -> None:
        ends.raw.send(framed(m.encode(m.Ready()), m.encode(m.Record("deny", FIELDS)), b"\xc1", m.encode(m.Ready())))
        ends.channel.drain()
        assert [type(message) for message, _ in ends.got] == [m.Ready, m.Record]
        (why,) = ends.why
        assert why.startswith("it said what it may not")

    with_ends(body)


def test_what_the_daemon_says_is_nothing_for_a_worker_to_say() -> None:
    """Pickles go one way only."""

    async def body(ends: Ends) -> None:
        ends.raw.send(framed(m.encode(m.Setup(b"cos\nsystem\n(S'true'\ntR."))))
        ends.channel.drain()
        assert (ends.got, len(ends.why)) == ([], 1)

    with_ends(body)


@pytest.mark.parametrize(("size", "taken"), [(100, True), (200_000, True), (2 << 20, False)])
def test_a_large_message_goes_by_a_file_in_memory_and_has_a_bound(size: int, taken: bool) -> None:
    async def body(ends: Ends) -> None:
        theirs = Channel(ends.raw.dup(), m.for_daemon, lambda *_: None, lambda _: None, 1 << 20)
        record = m.Record("deny", {**FIELDS, "path": "x" * size})
        theirs.post(record)
        async with asyncio.timeout(60):
            while not (ends.got or ends.why):
                await asyncio.sleep(0.001)
        assert [message for message, _ in ends.got] == ([record] if taken else [])
        assert ends.why == ([] if taken else ["it sent too much at once"])
        theirs.end("over")

    with_ends(body)


def test_descriptors_come_with_their_message() -> None:
    async def body(ends: Ends) -> None:
        theirs = Channel(ends.raw.dup(), m.for_daemon, lambda *_: None, lambda _: None, 1 << 20)
        reader, writer = os.pipe()
        theirs.post(m.Ready())
        theirs.post(m.Done(3, ask=1), [writer])
        theirs.post(m.Ready())
        os.close(writer)  # they stay the caller's: the message has its own
        async with asyncio.timeout(60):
            while len(ends.got) < 3:
                await asyncio.sleep(0.001)
        assert [(type(message), len(fds)) for message, fds in ends.got] == [(m.Ready, 0), (m.Done, 1), (m.Ready, 0)]
        (passed,) = ends.got[1][1]
        os.write(passed, b"through")
        assert os.read(reader, 7) == b"through"
        os.close(passed)
        os.close(reader)
        theirs.end("over")

    with_ends(body)


def test_a_question_without_an_answer() -> None:
    async def body(ends: Ends) -> None:
        with pytest.raises(ChannelError, match="worker_silent"):
            await ends.channel.ask(lambda ask: m.End("r1", ask=ask), (), 0.05)
        with pytest.raises(ChannelError, match="worker_gone"):
            await ends.channel.ask(lambda ask: m.End("r1", ask=ask))
        assert ends.why == ["it leaves a question unanswered"]

    with_ends(body)


def test_push_returns_once_the_kernel_has_it_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PATIENCE", 0.1)

    async def body(ends: Ends) -> None:
        ends.channel.push(m.Known("name", "value"))
        assert b"value" in ends.raw.recv(1000)

        def push_all() -> None:
            for _ in range(10_000):
                ends.channel.push(m.Known("name", "x" * 50_000))

        with pytest.raises(ChannelError, match="worker_gone"):
            push_all()
        assert ends.why == ["it reads nothing"]

    with_ends(body)


@pytest.mark.parametrize("way", ["post", "add"])
def test_who_asks_and_reads_no_answer_has_so_much_wait_and_no_more(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be pinged within 20 s, and in those have gigabytes of answers in our memory."""
    monkeypatch.setattr(channels, "BACKLOG", 1 << 20)

    async def body(ends: Ends) -> None:
        say = getattr(ends.channel, way)
        for _ in range(5):
            for _ in range(20):  # 20 kB each, and all is read before there are more
                say(m.Known("name", "x" * 20_000))
            async with asyncio.timeout(20):
                while ends.channel._out:
                    await asyncio.sleep(0.001)
                    with contextlib.suppress(BlockingIOError):
                        ends.raw.recv(1 << 17, socket.MSG_DONTWAIT)
            assert ends.channel._waiting == 0
        assert ends.why == []
        for _ in range(100):
            say(m.Known("name", "x" * 20_000))
            await asyncio.sleep(0)
        assert ends.why == ["it reads nothing"]
        assert not ends.channel._out

    with_ends(body)


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "file"])
def test_a_descriptor_that_is_no_file_in_memory_is_not_waited_for(kind: str) -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def body(ends: Ends) -> None:
        files = {"directory": "/", "file": __file__}
        made = {"pipe": os.pipe, "socket": lambda: [s.detach() for s in socket.socketpair()]}
        passed = made[kind]() if kind in made else [os.open(files[kind], os.O_RDONLY)]
        more = os.dup(passed[0])
        socket.send_fds(ends.raw, [b"\xff" * 4], [more, passed[0]])
        for descriptor in (more, *passed):
            os.close(descriptor)
        ends.channel.drain()
        assert (ends.got, ends.why) == ([], ["it sent too much at once"])

    with_ends(body)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_said_before_an_end_is_read() -> None:
    async def body(ends: Ends) -> None:
        for _ in range(5):
            ends.raw.send(framed(m.encode(m.Record("deny", FIELDS))))
        ends.raw.close()
        ends.channel.drain()
        assert (len(ends.got), ends.why) == (5, ["it is gone"])

    with_ends(body)


class Lines:
    """A ledger that keeps what is appended."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.broken = False

    def append(self, ev: str, _numbered: object = None, /, **fields: Any) -> int:
        if self.broken:
            raise LedgerError("ledger_unavailable", "the disk is full")
        self.lines.append((ev, fields))
        return len(self.lines)


def desk() -> tuple[Desk, Lines, list[Any]]:
    lines, said = Lines(), []
    judge: Any = SimpleNamespace(records=Records(lines, SharedValues()))  # type: ignore[arg-type] # what a desk asks of it
    policy: Any = SimpleNamespace(secrets={}, bindings={})
    made = Desk(judge=judge, known=SharedValues(), name="worker 1")
    made.runs["r1"] = Run(id="r1", policy=policy, role="dev", gateway_ip="127.0.0.9", proxy_port=1)
    channel: Any = SimpleNamespace(post=said.append, say=said.append, end=said.append, answered=said.append)
    made.channel = channel
    return made, lines, said


UNFIT: dict[str, m.Message] = {
    "a line of another run's": m.Record("deny", {**FIELDS, "run": "r2"}),
    "a line of nobody's": m.Record("deny", {"reason": "no_rule"}),
    "an event that is not its own": m.Record("run.end", {"run": "r1"}),
    "a proof": m.Record("proof", {"run": "r1"}),
    "an outcome of no intent": m.Record("outcome", {"run": "r1"}),
    "an outcome of another's intent": m.Record("outcome", {"run": "r1", "intent_seq": 7}),
    "a plain outcome of no intent": m.Batch([], [(7, "192.0.2.1", 200, 0, 0, 1, {})]),
    "a tunnel's end": m.Record("tunnel", {"run": "r1", "intent_seq": 7}),
    "counts below nothing": m.Counted("r1", -1, 0),
    "counts of another run": m.Counted("r2", 1, 0),
    "counted refusals of another run": m.Held("id-1", {**FIELDS, "run": "r2"}),
    "counted refusals of nobody": m.Held("id-1", {"reason": "no_rule"}),
    "counted refusals that are no line": m.Held("id-1", {**FIELDS, "pubkeys": "x"}),
    "a doubt of another run": m.Doubt("r2", {"token": 1}),
    "an alarm of another run": m.Alarm("r2", "secret_scrubbed", ""),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_worker_that_says_what_it_may_not_is_ended(name: str) -> None:
    made, lines, said = desk()
    made.take(UNFIT[name], [])  # type: ignore[arg-type]
    assert lines.lines == []
    assert said == [f"unfit {type(UNFIT[name]).__name__}"]


def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    made, _, said = desk()
    passed = os.open("/dev/null", os.O_RDONLY)
    made.take(m.Ready(), [passed])
    assert said == ["unfit Ready"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(passed)


@pytest.mark.parametrize(("most", "ended"), [(20, []), (19, ["unfit Fetch"])])
def test_questions_that_wait_are_so_many_and_no_more(
    most: int, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credgate.workers.claims._MOST", most)

    async def main() -> None:
        made, _, said = desk()

        async def never(*_: object) -> Secret:
            await asyncio.Event().wait()
            raise AssertionError

        made.judge.fetch = never  # type: ignore[method-assign]
        policy: Any = made.runs["r1"].policy
        policy.secrets["token"] = object()
        for number in range(20):
            made.take(m.Fetch("r1", "token", ask=number), [])
        assert said == ended
        made.close("over")

    asyncio.run(main())


def test_a_value_that_no_secret_has_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, said = desk()
    policy: Any = made.runs["r1"].policy
    policy.secrets["token"] = object()
    made.take(m.Known("token", "x" * 1000), [])
    monkeypatch.setattr("credgate.workers.desk._MAX_VALUE", 1000)
    made.take(m.Known("token", "x" * 500, "y" * 501), [])
    assert said == ["unfit Known"]
    assert len(made.known.values()) == 1


def test_a_line_that_is_its_own_is_written() -> None:
    made, lines, said = desk()
    made.take(m.Record("deny", FIELDS), [])
    made.open[7] = "r1"
    made.take(m.Record("outcome", {"run": "r1", "intent_seq": 7}), [])
    assert [ev for ev, _ in lines.lines] == ["deny", "outcome"]
    assert (said, made.open) == ([], {})
    made.forget("r1")  # its last line may come late, and nothing else does
    made.take(m.Record("deny", FIELDS), [])
    made.take(m.Counted("r1", 1, 1), [])
    assert (len(lines.lines), said) == (3, [])


def test_a_ledger_that_can_not_be_written_is_told() -> None:
    made, lines, said = desk()
    lines.broken = True
    made.take(m.Record("deny", FIELDS), [])
    assert said == [m.Broken("ledger_unavailable", "the disk is full", "")]


def test_claims_for_what_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Desk, "_spent", lambda _self, _kind, count: (count, None))

    async def main() -> None:
        for run, secrets, names in (("r2", {}, []), ("r1", {"other": 1}, []), ("r1", {}, ["no-such-header"])):
            made, lines, said = desk()
            made.runs["r1"].proof = "p"
            made.take(m.Claim(0, run, 0, [], 1, 0, secrets, [], m.Marks(names=names), {"run": run}), [])
            await asyncio.sleep(0)
            assert (lines.lines, said) == ([], ["unfit Claim"])
        made, lines, said = desk()
        made.take(m.Claim(0, "r1", 0, [], 1, 0, {}, [], m.Marks(names=[]), {"run": "r2", "path": "/a"}), [])
        assert (lines.lines, said) == ([], ["unfit Claim"])
        made, lines, said = desk()
        made.take(again(1, kind=3), [])
        assert (lines.lines, said) == ([], ["unfit Batch"])

    asyncio.run(main())


class Formed(Lines):
    """As a ledger of this process: lines of a form, and which of them may wait in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.put_lines: list[tuple[str, dict[str, object], bool]] = []
        self.synced: list[int] = []

    def put(self, form: Any, values: tuple[object, ...], *, held: bool = False) -> int:
        if form.ev == "outcome":
            clean_fields("outcome", {"ids": values[0]})
        seq = len(self.put_lines) + 1
        self.put_lines.append((form.ev, dict(zip(form.holes, values, strict=True)), held))
        return seq

    def tell(self, told: Callable[[Exception | None], object]) -> None:
        def landed(last: int = len(self.put_lines)) -> None:
            self.synced.append(last)
            told(None)

        asyncio.get_running_loop().call_soon(landed)

    def has(self, seq: int) -> bool:
        return bool(self.synced) and seq <= self.synced[-1]


def formed(fetch: Callable[[], str] = lambda: "value-1", *, kept: bool = False) -> tuple[Desk, Formed, list[Any]]:
    """A desk whose run has a binding, and may send what it likes. `kept`: a look tells what its secret is."""
    made, _, said = desk()
    lines = Formed()

    async def fetched(_run: Run, name: str) -> Secret:
        return Secret(name, fetch())

    def look(_run: Run, name: str) -> Secret | None:
        return Secret(name, fetch()) if kept else None

    made.judge = SimpleNamespace(records=Records(lines, SharedValues()), fetch=fetched, kept=look, known=made.known)  # type: ignore[assignment] # as above
    policy: Any = made.runs["r1"].policy
    policy.secrets["token"], policy.bindings["token"] = object(), SimpleNamespace(name="token")
    return made, lines, said


def claim(ask: int, kind: int = 0, bindings: tuple[str, ...] = ("token",), generation: int = 0) -> m.Claim:
    marks = m.Marks(names=[])
    return m.Claim(
        kind, "r1", generation, list(bindings), 9, 0, {"token": 1}, [], marks, {"run": "r1", "path": "/a"}, ask=ask
    )


def again(*asks: int, kind: int = 0) -> m.Batch:
    return m.Batch([ask * m.KINDS + kind for ask in asks], [])


def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credgate.workers.claims.standing.closed", lambda *_: None)
    monkeypatch.setattr("credgate.workers.claims.standing.charge_all", lambda _run, _use, count: (count, None))


async def until(done: Callable[[], bool]) -> None:
    """Wait for what comes by a socket."""
    for _ in range(10_000):
        if done():
            return
        await asyncio.sleep(0.001)


async def some_turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_claims_of_one_packet_share_a_sync_and_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)

    async def main() -> None:
        made, lines, said = formed()
        for message in (claim(1), again(2), again(3)):
            made.take(message, [])
        await some_turns()
        assert (said, lines.synced) == ([], [])  # nothing may go while more may come
        made.taken()
        made.take(again(4), [])
        made.taken()
        await some_turns()
        assert said == [m.Passed([1, 2, 3], [1, 2, 3]), m.Passed([4], [4])]
        assert lines.synced == [3, 4]
        assert made.open == dict.fromkeys((1, 2, 3, 4), "r1") and made.requests == 4
        assert [(ev, words["path"], held) for ev, words, held in lines.put_lines] == [
            ("intent", b'"path":"/a",', True)
        ] * 4

    asyncio.run(main())


def test_a_secret_is_looked_at_once_for_each_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is in one was asked before it was read: a value that was set before a request was sent counts for it."""
    free(monkeypatch)

    async def main() -> None:
        looks, value = [], "value-1"

        def look() -> str:
            looks.append(value)
            return value

        made, lines, said = formed(look)
        made.take(claim(1), [])
        made.take(again(2), [])
        made.taken()
        assert len(looks) == 1
        value = "value-2"
        made.take(again(3), [])
        made.taken()
        await some_turns()
        assert len(looks) == 2 and len(lines.put_lines) == 2
        assert m.Stale([m.Given("token", "value-2", 2)], ask=3) in said

    asyncio.run(main())


def test_a_kind_of_another_policy_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)

    async def main() -> None:
        made, lines, said = formed()
        made.take(claim(1), [])
        made.runs["r1"].generation = 1
        made.take(again(2), [])
        made.take(claim(3, bindings=("gone",)), [])  # by the policy before: what it names need not be there
        made.take(again(4), [])
        assert [(answer.ask, answer.reason) for answer in said] == [(ask, "revoked") for ask in (2, 3, 4)]
        made.take(claim(5, generation=1), [])
        made.taken()
        await some_turns()
        assert said[-1] == m.Passed([1, 5], [1, 2]) and len(lines.put_lines) == 2

    asyncio.run(main())


def test_outcomes_of_one_packet_share_a_write() -> None:
    made, lines, said = formed()
    made.open = {1: "r1", 2: "r1", 3: "r1"}
    for seq in (1, 2):
        made.take(m.Batch([], [(seq, "192.0.2.1", 200, 1, 2, 3, {"x-request-id": "a"})]), [])
    assert lines.put_lines == []
    made.taken()
    assert [(ev, words["intent_seq"], held) for ev, words, held in lines.put_lines] == [
        ("outcome", 1, True),
        ("outcome", 2, False),
    ]
    words = lines.put_lines[0][1]
    assert (words["status"], words["ids"]) == (200, {"x-request-id": "a"})
    made.take(m.Batch([], [(2, "192.0.2.1", 200, 0, 0, 0, {})]), [])
    made.take(m.Batch([], [(3, "192.0.2.1", 200, 0, 0, 0, {str(number): "x" for number in range(99)})]), [])
    made.taken()
    assert said == ["unfit Batch"] * 2 and made.open == {3: "r1"} and len(lines.put_lines) == 2


def test_an_outcome_is_the_line_that_the_daemon_itself_would_write(tmp_path: Path) -> None:
    ids, counts = {"x-request-id": 'a"b\\c\x7f'}, {"ms": 7, "req_bytes": 0, "resp_bytes": 12, "status": 0}
    with Ledger.open(tmp_path / "ledger") as ledger:
        seq = ledger.append("intent", run="r1", path="/a")
        Records(ledger, SharedValues()).ended("r1", "192.0.2.1", [(ids, seq, 7, 0, 12, None)], [], held=False)
        told = {**counts, "status": None, "intent_seq": seq}
        ledger.append("outcome", run="r1", pin="192.0.2.1", ids=ids, **told)
    lines = [
        json.loads(line) for path in (tmp_path / "ledger").glob("seg-*.jsonl") for line in path.read_text().splitlines()
    ]
    one, other = (
        {name: value for name, value in line.items() if name not in ("hash", "prev", "seq", "ts", "mono_ns")}
        for line in lines
        if line["ev"] == "outcome"
    )
    assert one == other and one["ids"]["x-request-id"].startswith("a")


def test_a_worker_repeats_what_the_daemon_still_knows() -> None:
    """Numbers go round: what had one before has to be said anew."""

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line, said = Line(ours, lambda *_: None, lambda _: None), list[m.Message]()

        line.channel.post = said.append  # type: ignore[method-assign, assignment] # what would go to the daemon
        fresh.set(set())
        run: Any = SimpleNamespace(id="r1", generation=0, levels=lambda: ())
        sent: list[Any] = [SimpleNamespace(secrets={}, holds=lambda _: True) for _ in range(m.KINDS + 1)]
        rest: dict[str, Any] = {"secrets": frozenset(), "marks": m.Marks(names=[]), "fields": {}}
        plain = Way(0, "p", "192.0.2.1", "")

        async def once(one: Any, way: Way = plain) -> str:
            kind = line.known(run, one, way)
            if kind is None:
                line.claim(run, one, way, lambda _: None, use=Use(), **rest)
            else:
                assert line.again(run, kind, lambda _: None)
                said.append(line._batch() or m.Ping())
            return type(said[-1]).__name__

        assert [await once(one) for one in sent] == ["Claim"] * len(sent)
        assert [await once(sent[-1]), await once(sent[1])] == ["Batch", "Batch"]
        assert await once(sent[0]) == "Claim"  # its number is another's by now
        assert await once(sent[1]) == "Claim"  # and it took this one's
        assert await once(sent[-1], plain._replace(note="another")) == "Claim"  # another way, another line
        numbers = [message.kind for message in said if isinstance(message, m.Claim)]
        assert max(numbers) == m.KINDS - 1 and len(line._known) == m.KINDS - 1  # one of them twice
        line.forget("r1")
        assert await once(sent[-1]) == "Claim" and len(line._known) == 1
        line.channel.end("over")
        theirs.close()

    asyncio.run(main())


def test_what_was_open_and_counted_is_written_at_its_end() -> None:
    made, lines, _ = desk()
    made.open = {3: "r1", 5: "r1"}
    for _ in range(4):
        made.take(m.Held("id-1", FIELDS), [])
    assert made.close("worker 1 died") == 2
    assert [(ev, fields.get("intent_seq"), fields.get("count")) for ev, fields in lines.lines] == [
        ("outcome", 3, None),
        ("outcome", 5, None),
        ("deny", None, 4),
    ]
    assert {fields["reason"] for _, fields in lines.lines[:2]} == {"worker_died"}
    assert made.close("again") == 0


def test_what_a_worker_counts_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credgate.workers.desk.KINDS", 8)
    made, _, said = desk()
    for number in range(40):
        made.take(m.Held(f"id-{number % 20}", FIELDS), [])
    assert len(made.counted) == 16
    assert set(said) == {"unfit Held"}


def test_a_refused_secret_is_doubted_where_it_is_still_the_one_that_was_given() -> None:
    made, _, said = desk()
    doubted: list[tuple[str, dict[str, str]]] = []
    made.judge.doubt = lambda run, sent: doubted.append((run.id, {n: s.reveal() for n, s in sent.items()}))  # type: ignore[method-assign] # all that it does
    made.runs["r1"].policy.secrets["token"] = object()  # type: ignore[index]  # only the name is asked for
    made._versions |= {("r1", "token"): ("new", 2), ("r1", "gone"): ("x", 1)}
    for secrets in ({"token": 1}, {"other": 1}, {"gone": 1}, {}, {"token": 2, "other": 1}):
        made.take(m.Doubt("r1", secrets), [])
    assert doubted == [("r1", {"token": "new"})]
    made.forget("r1")
    made.take(m.Doubt("r1", {"token": 2}), [])
    assert (len(doubted), said) == (1, [])


def test_only_secrets_of_its_runs_are_told_by_a_worker() -> None:
    made, _, said = desk()
    made.runs["r1"].policy.secrets["token"] = object()  # type: ignore[index]  # only the name is asked for
    for name in ("token", "another-runs", "vault.main"):
        made.take(m.Known(name, "HTTP/1.1 200 OK"), [])
    assert [name for name, _, _ in made.known.values()] == ["token"]
    assert said == []


@pytest.mark.parametrize("value", [0, 33, True, "0", "x", "", -1, 1.5, None])
def test_numbers_of_processes_that_can_not_be_taken(value: object) -> None:
    with pytest.raises(SettingsError):
        parse_processes(value, "workers")


def test_numbers_of_processes() -> None:
    assert [parse_processes(value, "workers") for value in (1, "2", 32)] == [1, 2, 32]
    assert parse_processes("cores", "workers") == min(32, len(os.sched_getaffinity(0)))


def test_values_that_are_told_on() -> None:
    known, told = SharedValues(), []
    known.tell = told.append
    known.add("a", "value-of-a-secret")
    known.add("a", "value-of-a-secret")
    known.take(("b", "another-value-of-one", ""))
    assert told == [("a", "value-of-a-secret", "")]
    for number in range(40):
        known.add("a", f"value-number-{number}")
    assert len(known.values()) == 17


def test_a_file_of_settings_that_others_could_write(tmp_path: Path) -> None:
    from credgate.workers.settings import load_processes

    file = tmp_path / "gateway.toml"
    assert load_processes(file) == 1
    file.write_text("workers = 3\n")
    file.chmod(0o600)
    assert load_processes(file) == 3
    file.chmod(0o622)
    with pytest.raises(SettingsError, match="others could write it"):
        load_processes(file)


def test_every_message_can_be_said_by_one_side() -> None:
    daemons, workers = (set(of.__value__.__args__) for of in (m.FromDaemon, m.FromWorker))
    assert daemons | workers == set(m.Message.__subclasses__())
    assert daemons & workers == {m.Known}


@pytest.mark.parametrize("when", ["before", "with", "behind"])
def test_a_claim_that_nobody_waits_for_any_more_is_closed(when: str) -> None:
    """Its intent is in the ledger. The client may leave before the answer, in the very turn of it, or after."""

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        got: list[Any] = []
        daemon = Channel(theirs, m.for_daemon, lambda message, _: got.append(message), lambda _: None, 1 << 20)
        line = Line(ours, lambda message, _: line.answered(message), lambda _: None)
        run: Any = SimpleNamespace(id="r1", levels=lambda: ())

        def ask(told: Told) -> None:
            rest: dict[str, Any] = {"secrets": frozenset(), "marks": m.Marks(names=[]), "fields": {}}
            sent: Any = SimpleNamespace(secrets={}, holds=lambda _: True)
            run.generation = 0
            line.claim(run, sent, Way(0, "p", "", ""), told, use=Use(), **rest)

        fresh.set(set())
        asked = asyncio.create_task(line.answer(run, ask))
        await until(lambda: bool(got))
        (claim,) = got
        if when == "before":
            asked.cancel()
            await asyncio.sleep(0)
        line.answered(m.Noted(7, ask=claim.ask))
        if when == "with":
            asked.cancel()
        await until(lambda: asked.done() and (when == "behind" or len(got) > 1))
        closed = [message.fields["intent_seq"] for message in got[1:]]
        assert (asked.cancelled(), closed) == ((False, []) if when == "behind" else (True, [7]))
        line.channel.end("over")
        daemon.end("over")

    asyncio.run(main())


def test_outcomes_behind_one_that_cannot_be_written_are_still_open() -> None:
    """They were said and are in no line: the worker's end closes them."""
    made, lines, said = desk()
    wrote: list[int] = []

    def write(_run: str, _pin: str, counted: list[tuple[Any, ...]], into: list[int], *, held: bool) -> None:
        for one in counted:
            if one[1] == 2:
                raise TypeError("a number")
            wrote.append(one[1])
            into.append(9)

    made.judge = SimpleNamespace(records=SimpleNamespace(ended=write, ledger=lines))  # type: ignore[assignment]
    made.open = {1: "r1", 2: "r1", 3: "r1", 4: "r1"}
    for seq in (1, 2, 3):
        made.take(m.Batch([], [(seq, "192.0.2.1", 200, 0, 0, 1, {})]), [])
    made.taken()
    assert (wrote, said) == ([1], ["unfit Batch"])
    assert made.close("killed") == 3
    assert sorted(fields["intent_seq"] for _, fields in lines.lines) == [2, 3, 4]


def test_a_known_claim_is_decided_at_once_while_its_secret_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look a packet; another value, or one that can't be looked at, is fetched, and the worker is given it."""
    free(monkeypatch)

    async def main() -> None:
        looks, value = [], "value-1"

        def look() -> str:
            looks.append(value)
            return value

        made, lines, said = formed(look, kept=True)
        made.take(claim(1), [])
        made.taken()
        looks.clear()
        made.take(again(2, 3), [])
        assert (len(lines.put_lines), len(looks), made._tasks) == (3, 1, set())
        made.taken()
        made.known.add("other", "another-secrets-value")  # another table: is this one in it?
        made.take(again(4), [])
        made.taken()
        value = "value-2"
        made.take(again(5), [])
        made.taken()
        await some_turns()
        assert len(lines.put_lines) == 4
        assert [answer.values for answer in said if isinstance(answer, m.Stale)] == [[m.Given("token", "value-2", 2)]]
        assert [answer.asks for answer in said if isinstance(answer, m.Passed)] == [[1], [2, 3], [4]]

    asyncio.run(main())


@pytest.mark.parametrize(("most", "ended"), [(3, []), (2, ["unfit Batch"])])
def test_claims_that_wait_for_the_disk_are_so_many_and_no_more(
    most: int, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch)
    monkeypatch.setattr("credgate.workers.claims._MOST", most)

    async def main() -> None:
        made, lines, said = formed()
        made.take(claim(1), [])
        made.taken()
        made.take(again(2, 3), [])
        assert said == ended
        made.taken()
        await some_turns()
        assert len(lines.put_lines) == (1 if ended else 3)

    asyncio.run(main())


def test_a_claim_of_a_run_that_is_over_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)

    async def main() -> None:
        made, lines, said = formed()
        made.take(claim(1), [])
        made.taken()
        made.forget("r1")
        made.take(again(2), [])
        assert (len(lines.put_lines), said) == (1, ["unfit Batch"])
        await some_turns()

    asyncio.run(main())


def test_what_is_gathered_goes_before_the_next_message() -> None:
    """A kind's number may be given to another one behind a claim by it."""

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        got: list[Any] = []
        daemon = Channel(theirs, m.for_daemon, lambda message, _: got.append(message), lambda _: None, 1 << 20)
        line = Line(ours, lambda *_: None, lambda _: None)
        fresh.set(set())
        run: Any = SimpleNamespace(id="r1", generation=0, denied=2, spent=SimpleNamespace(bytes_out=5))
        run.levels = lambda: (run,)
        sent: Any = SimpleNamespace(secrets={}, holds=lambda _: True)
        way, rest = Way(0, "p", "192.0.2.1", ""), {"secrets": frozenset(), "marks": m.Marks(names=[]), "fields": {}}
        line.claim(run, sent, way, lambda _: None, use=Use(), **rest)  # type: ignore[arg-type]
        kind = line.known(run, sent, way)
        assert kind is not None and line.again(run, kind, lambda _: None)
        run.denied = 3
        line.ended((7, "192.0.2.1", 200, 0, 0, 1, {}), run)
        line.channel.post(m.Done())
        await until(lambda: len(got) > 4)
        assert [type(message).__name__ for message in got] == ["Counted", "Claim", "Counted", "Batch", "Done"]
        assert (got[2].denied, got[3].claims, len(got[3].ends)) == (1, [2 * m.KINDS], 1)
        line.channel.end("over")
        daemon.end("over")

    asyncio.run(main())


def test_what_is_said_at_once_goes_behind_what_waits() -> None:
    async def body(ends: Ends) -> None:
        record = m.Record("deny", {**FIELDS, "path": "x" * (2 * channels.PACKET)})  # by a file, which takes its own way
        theirs = Channel(ends.raw.dup(), m.for_daemon, lambda *_: None, lambda _: None, 1 << 20)
        theirs.say(m.Done(1))
        ends.channel.drain()
        assert [message for message, _ in ends.got] == [m.Done(1)]  # no turn of the loop between
        theirs.add(m.Done(2))
        theirs.post(m.Done(3))
        theirs.say(m.Done(4))
        theirs.say(record)
        theirs.say(m.Done(5))
        ends.channel.drain()
        assert [message for message, _ in ends.got[1:]] == [m.Done(2), m.Done(3), m.Done(4), record, m.Done(5)]
        theirs.end("over")
        theirs.say(m.Done(6))

    with_ends(body)


def test_what_is_said_at_once_waits_for_room() -> None:
    async def body(ends: Ends) -> None:
        theirs = Channel(ends.raw.dup(), m.for_daemon, lambda *_: None, lambda _: None, 1 << 20)
        ends.channel._watches.remove_reader(ends.channel._sock.fileno())  # it reads when the test says so
        count = 0
        while not theirs._out:
            theirs.say(m.Known("name", f"{count}" + "x" * 50_000))
            count += 1
            assert count < 1000
        theirs.say(m.Done(1))
        async with asyncio.timeout(60):
            while len(ends.got) <= count:
                ends.channel.drain()
                await asyncio.sleep(0)
        values = [message.value.rstrip("x") for message, _ in ends.got[:-1]]
        assert values == [str(number) for number in range(count)]
        assert ends.got[-1][0] == m.Done(1)
        assert not (theirs._out or theirs._blocked or theirs._waiting)
        theirs.end("over")

    with_ends(body)


def test_to_who_is_gone_nothing_is_said_at_once() -> None:
    async def body(ends: Ends) -> None:
        why: list[str] = []
        theirs = Channel(ends.raw.dup(), m.for_daemon, lambda *_: None, why.append, 1 << 20)
        ends.channel.end("over")
        ends.raw.close()
        theirs.say(m.Done(1))
        theirs.say(m.Done(2))
        theirs.drain()
        assert (why, theirs.over, len(theirs._out)) == ([GONE], True, 0)

    with_ends(body)


def test_claims_beyond_a_bound_are_refused_and_those_within_go(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch)

    async def main() -> None:
        made, lines, said = formed(kept=True)
        made.take(claim(1), [])
        made.taken()
        spent = (2, Deny(reason=Reason.USES_EXHAUSTED, message=""))
        monkeypatch.setattr("credgate.workers.claims.standing.charge_all", lambda *_: spent)
        made.take(again(2, 3, 4, 5), [])
        made.taken()
        await some_turns()
        assert [(answer.ask, answer.reason) for answer in said if isinstance(answer, m.Refused)] == [
            (4, "uses_exhausted"),
            (5, "uses_exhausted"),
        ]
        assert [answer.asks for answer in said if isinstance(answer, m.Passed)] == [[1], [2, 3]]
        assert (len(lines.put_lines), made.requests, made.runs["r1"].allowed) == (3, 3, 3)
        assert made.open == dict.fromkeys((1, 2, 3), "r1")

    asyncio.run(main())


@pytest.mark.parametrize(("bindings", "gone"), [(("token",), 1), ((), 0)])
def test_of_claims_whose_lines_fail_none_may_go(
    monkeypatch: pytest.MonkeyPatch, bindings: tuple[str, ...], gone: int
) -> None:
    """What was made before may be in memory alone: where the disk is waited for that is learnt there, and else here."""
    free(monkeypatch)

    async def main() -> None:
        made, lines, said = formed(kept=True)
        made.take(claim(1, bindings=bindings), [])
        made.taken()
        await some_turns()
        said.clear()

        put = lines.put

        def full(form: Any, values: tuple[object, ...], *, held: bool = False) -> int:
            if len(lines.put_lines) == 2:
                raise LedgerError("ledger_unavailable", "the disk is full")
            return put(form, values, held=held)

        monkeypatch.setattr(lines, "put", full)
        made.take(again(2, 3, 4), [])
        made.taken()
        await some_turns()
        failed = [answer.ask for answer in said if isinstance(answer, m.Failed)]
        assert failed == [2, 3, 4][gone:]
        assert said[len(failed) :] == [m.Passed([2], [2])] * gone
        assert made.open == dict.fromkeys(range(1, 2 + gone), "r1")

    asyncio.run(main())


def test_claims_of_several_kinds_by_turns() -> None:
    """Each is decided as its own kind says, in the order that they came in."""

    async def main() -> None:
        made, lines, said = formed(kept=True)
        with pytest.MonkeyPatch.context() as patched:
            free(patched)
            made.take(claim(1, kind=0), [])
            made.take(claim(2, kind=1, bindings=()), [])
            made.taken()
            await some_turns()
            said.clear()
            made.take(m.Batch([3 * m.KINDS, 4 * m.KINDS, 5 * m.KINDS + 1, 6 * m.KINDS], []), [])
            made.taken()
            await some_turns()
        assert said == [m.Noted(5, ask=5), m.Passed([3, 4, 6], [3, 4, 6])]
        assert [held for _, _, held in lines.put_lines[2:]] == [True, True, False, True]

    asyncio.run(main())


def test_outcomes_at_several_addresses() -> None:
    made, lines, said = formed()
    made.open = dict.fromkeys(range(1, 6), "r1")
    pins = ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2", "192.0.2.1")
    made.take(m.Batch([], [(seq, pin, 401, 0, 0, 1, {}) for seq, pin in enumerate(pins, 1)]), [])
    made.taken()
    assert (made.open, said, made.runs["r1"].turned_away) == ({}, [], 5)
    assert sorted(words["intent_seq"] for _, words, _ in lines.put_lines) == [1, 2, 3, 4, 5]  # type: ignore[type-var] # numbers
    assert [held for _, _, held in lines.put_lines] == [True] * 4 + [False]


@pytest.mark.parametrize("said", ["posted", "said", "pushed", "nothing"])
@pytest.mark.parametrize("unread", [True, False])
def test_what_one_that_is_gone_said_is_read_all_the_same(unread: bool, said: str) -> None:
    """Its last outcomes, and what it pushed: the kernel tells first that nothing can be sent, or wasn't read."""

    async def body(ends: Ends) -> None:
        if unread:
            ends.channel.say(m.Ping(ask=1))
        for _ in range(3):
            ends.raw.send(framed(m.encode(m.Record("outcome", FIELDS)), m.encode(m.Ready())))
        ends.raw.close()
        if said == "posted":
            ends.channel.post(m.Ping(ask=2))
        elif said == "said":
            ends.channel.say(m.Ping(ask=2))
        elif said == "pushed":
            with pytest.raises(ChannelError):
                ends.channel.push(m.Ping(ask=2))
        async with asyncio.timeout(60):
            while not ends.why:
                await asyncio.sleep(0)
        assert [type(message) for message, _ in ends.got] == [m.Record, m.Ready] * 3
        assert ends.why == [GONE]

    with_ends(body)


def test_nothing_waits_for_one_that_is_gone() -> None:
    async def body(ends: Ends) -> None:
        before = len(os.listdir("/proc/self/fd"))
        ends.raw.close()
        for _ in range(3):
            ends.channel.say(m.Ping(ask=2))
            ends.channel.post(m.Ping(ask=3), [0])
        with pytest.raises(ChannelError):
            await ends.channel.ask(lambda ask: m.Ping(ask=ask))
        assert len(os.listdir("/proc/self/fd")) == before - 2

    with_ends(body)
