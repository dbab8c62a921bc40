"""What TLS has to say behind a handshake: when it goes, and what it counts for."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from credgate.gateway import pipe as pipes
from credgate.gateway.pipe import Pipe
from tests.credgate.gateway_rig import TargetCa, server_tls


class Wire:
    """A transport that keeps each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def get_extra_info(self, _name: str) -> Any:
        return self

    def setsockopt(self, *_: object) -> None:
        """As a socket's."""

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        """Nothing is left to be sent."""

    def get_write_buffer_size(self) -> int:
        return 0


class Side:
    """The end of a pipe: what it gets, and what it does once it is secured."""

    def __init__(self, then: Callable[[Pipe], None]) -> None:
        self.then, self.got, self.over = then, b"", False

    def received(self, _pipe: Pipe, data: bytes) -> None:
        self.got += data

    def secured(self, pipe: Pipe) -> None:
        self.then(pipe)

    def insecure(self, _pipe: Pipe, error: ssl.SSLError) -> None:
        raise error

    def ended(self, _pipe: Pipe) -> None:
        self.over = True


class Pair:
    """A pipe as the server and one as the client, without sockets."""

    def __init__(self, place: Path, version: ssl.TLSVersion, then: Callable[[Pipe], None]) -> None:
        ca = TargetCa(place, "targets")
        front, back = server_tls(ca, "api.good.test"), ssl.create_default_context(cafile=str(ca.ca))
        back.maximum_version = version
        self.served, self.asked = Side(lambda _: None), Side(then)
        self.server, self.client = Pipe(self.served), Pipe(self.asked)  # type: ignore[arg-type] # what a handshake calls
        self.near, self.far = Wire(), Wire()  # what the client writes, and the server
        self.client.connection_made(self.near)  # type: ignore[arg-type] # as above
        self.server.connection_made(self.far)  # type: ignore[arg-type] # as above
        self.server.start_tls(lambda i, o: front.wrap_bio(i, o, server_side=True))
        self.client.start_tls(lambda i, o: back.wrap_bio(i, o, server_hostname="api.good.test"))

    def move(self, wire: Wire, to: Pipe) -> int:
        """Carry what was written, all in one read; how many writes it was."""
        writes, wire.writes = wire.writes, []
        data = b"".join(writes)
        to.get_buffer(0)[: len(data)] = data
        if data:
            to.buffer_updated(len(data))
        return len(writes)

    def shake(self) -> None:
        """Until both are secure; what the server says behind it stays in `far`."""
        while not self.server.secure:
            self.move(self.near, self.server)
            if not self.server.secure:
                self.move(self.far, self.client)


def test_the_clients_finished_goes_with_its_first_request(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ssl.TLSVersion.TLSv1_3, lambda pipe: pipe.send(b"GET"))
    pair.move(pair.near, pair.server)
    pair.move(pair.far, pair.client)
    assert len(pair.near.writes) == 1
    pair.move(pair.near, pair.server)
    assert pair.server.secure and pair.served.got == b"GET"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_sends_nothing_yet_finishes_all_the_same(tmp_path: Path, version: ssl.TLSVersion) -> None:
    pair = Pair(tmp_path, version, lambda _: None)
    pair.shake()
    pair.move(pair.far, pair.client)
    assert pair.client.secure and pair.server.secure


def test_a_ticket_goes_with_the_first_answer(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ssl.TLSVersion.TLSv1_3, lambda pipe: pipe.send(b"GET"))
    pair.shake()
    assert pair.far.writes == []
    pair.server.send(b"200")
    assert pair.move(pair.far, pair.client) == 1
    assert pair.asked.got == b"200"
    tls = pair.client.tls
    assert tls is not None and tls.session is not None and tls.session.has_ticket


def test_a_ticket_that_waits_is_no_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "OWN", 64)  # bytes, less than a ticket
    pair = Pair(tmp_path, ssl.TLSVersion.TLSv1_3, lambda _: None)
    pair.shake()
    for _ in range(5):
        pair.client.send(b"body")
        pair.move(pair.near, pair.server)
    assert pair.served.got == b"body" * 5
    assert not (pair.served.over or pair.server.broken or pair.far.writes)


@pytest.mark.parametrize("properly", [True, False])
def test_tlss_end_is_said_to_who_is_there_to_read_it(properly: bool, tmp_path: Path) -> None:
    pair = Pair(tmp_path, ssl.TLSVersion.TLSv1_3, lambda pipe: pipe.send(b"GET"))
    pair.shake()
    pair.server.send(b"200")
    pair.move(pair.far, pair.client)
    if properly:
        pair.client.close(notify=True)
        pair.move(pair.near, pair.server)
        assert pair.served.over and not pair.server.broken
    pair.server.eof_received()
    pair.server.close(notify=True)
    assert pair.move(pair.far, pair.client) == int(properly)


class Slow(Side):
    """Takes `pace` seconds of a clock for each byte."""

    def __init__(self, clock: list[float], pace: float) -> None:
        super().__init__(lambda _pipe: None)
        self.clock, self.pace = clock, pace

    def received(self, _pipe: Pipe, data: bytes) -> None:
        self.clock[0] += self.pace * len(data)


def test_fewer_bytes_are_read_where_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(pipes.time, "monotonic", lambda: clock[0])
    end = Slow(clock, 2e-7)
    pipe = Pipe(end)  # type: ignore[arg-type]  # an End but for what is not called

    def reads(count: int) -> list[int]:
        sizes = []
        for _ in range(count):
            sizes.append(len(pipe.get_buffer(-1)))
            pipe.buffer_updated(sizes[-1])
        return sizes

    assert reads(4) == [256 << 10, 64 << 10, 16 << 10, 16 << 10]
    end.pace = 1e-9
    assert reads(6) == [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 256 << 10]
    end.pace = 1e-5
    pipe.buffer_updated(1000)  # short ones take what they take: no clock is asked
    assert reads(1) == [256 << 10]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("way", ["to the server", "to the client"])
def test_a_record_that_comes_in_pieces_is_whole_with_its_last_one(
    version: ssl.TLSVersion, way: str, tmp_path: Path
) -> None:
    """Wherever it is cut: what is left in TLS is not asked for before more comes, and the other side waits by then."""
    pair = Pair(tmp_path, version, lambda pipe: pipe.send(b"GET"))
    pair.shake()
    for _ in range(2):
        pair.move(pair.far, pair.client)
        pair.move(pair.near, pair.server)
    sender, wire, to = (
        (pair.client, pair.near, pair.server) if way == "to the server" else (pair.server, pair.far, pair.client)
    )
    side, sent = to.end, b"GET" if way == "to the server" else b""
    assert isinstance(side, Side)
    assert side.got == sent
    for size in (16000, 300, 16384 + 200, 40000):
        for share in (0.0, 0.1, 0.5, 0.9, 1.0):
            sender.send(b"x" * size)
            data, wire.writes = b"".join(wire.writes), []
            cut = 3 + int((len(data) - 6) * share)
            for piece in (data[:cut], data[cut:]):
                to.get_buffer(0)[: len(piece)] = piece
                to.buffer_updated(len(piece))
            sent += b"x" * size
            assert len(side.got) == len(sent)
    assert side.got == sent
