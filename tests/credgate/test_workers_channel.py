"""The socket between daemon and worker, and what a worker may say: hostile bytes, large packets, a deaf other side."""

import asyncio
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
from credgate.ledger.record import LedgerError
from credgate.runs import Run
from credgate.workers import channel as channels
from credgate.workers import messages as m
from credgate.workers.channel import Channel, ChannelError
from credgate.workers.desk import Desk
from credgate.workers.knowing import SharedValues
from credgate.workers.settings import SettingsError, parse_processes

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
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(0.01)
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
    made.channel = SimpleNamespace(post=said.append, end=lambda why: said.append(why), answered=said.append)  # type: ignore[assignment]
    return made, lines, said


UNFIT: dict[str, m.Message] = {
    "a line of another run's": m.Record("deny", {**FIELDS, "run": "r2"}),
    "a line of nobody's": m.Record("deny", {"reason": "no_rule"}),
    "an event that is not its own": m.Record("run.end", {"run": "r1"}),
    "a proof": m.Record("proof", {"run": "r1"}),
    "an outcome of no intent": m.Record("outcome", {"run": "r1"}),
    "an outcome of another's intent": m.Record("outcome", {"run": "r1", "intent_seq": 7}),
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
    monkeypatch.setattr(Desk, "_spent", lambda *_: None)

    async def main() -> None:
        for run, secrets, names in (("r2", {}, []), ("r1", {"other": 1}, []), ("r1", {}, ["no-such-header"])):
            made, lines, said = desk()
            made.runs["r1"].proof = "p"
            made.take(m.Claim(run, 0, [], 1, 0, secrets, m.Marks(names=names), {"run": run}), [])
            await asyncio.sleep(0)
            assert (lines.lines, said) == ([], ["unfit claim"])
        made, lines, said = desk()
        made.take(m.Claim("r1", 0, [], 1, 0, {}, m.Marks(names=[]), {"run": "r2", "path": "/a"}), [])
        assert (lines.lines, said) == ([], ["unfit claim"])

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
    made.runs["r1"].policy.secrets["token"] = object()  # type: ignore[index, assignment]  # only the name is asked for
    made._versions |= {("r1", "token"): ("new", 2), ("r1", "gone"): ("x", 1)}
    for secrets in ({"token": 1}, {"other": 1}, {"gone": 1}, {}, {"token": 2, "other": 1}):
        made.take(m.Doubt("r1", secrets), [])
    assert doubted == [("r1", {"token": "new"})]
    made.forget("r1")
    made.take(m.Doubt("r1", {"token": 2}), [])
    assert (len(doubted), said) == (1, [])


def test_only_secrets_of_its_runs_are_told_by_a_worker() -> None:
    made, _, said = desk()
    made.runs["r1"].policy.secrets["token"] = object()  # type: ignore[index, assignment]  # only the name is asked for
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
