"""The benchmark's client and target: what they measure with has happened, and needs the credential."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.load import Asked
from tests.bench.world import CREDENTIAL, HOST, target
from tests.targets.pki import Authority


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    ca = Authority(tmp_path_factory.mktemp("bench"), "bench-ca")
    with target(ca) as port:
        yield port, ca.ca


@contextmanager
def asked(place: tuple[int, Path], credential: str = CREDENTIAL) -> Iterator[Asked]:
    made = Asked(HOST, "127.0.0.1", str(place[0]), str(place[1]), "0", credential)
    try:
        yield made
    finally:
        made.close()


def test_requests_over_kept_connections(place: tuple[int, Path]) -> None:
    with asked(place) as client:
        told = client.requests(4, 40)
        assert (len(client.links), 0 < told["p50"] < told["seconds"]) == (4, True)


@pytest.mark.parametrize("credential", ["", "Bearer another"])
def test_without_the_credential_nothing_is_measured(place: tuple[int, Path], credential: str) -> None:
    with asked(place, credential) as client, pytest.raises(ConnectionError, match="401"):
        client.requests(1, 1)


def test_events_arrive_after_they_were_sent(place: tuple[int, Path]) -> None:
    with asked(place) as client:
        told = client.events(10)
    assert 0 < told["p50"] <= told["p99"] < 1


def test_bodies_each_way_on_one_connection(place: tuple[int, Path]) -> None:
    with asked(place) as client:
        for _ in range(2):
            assert client.down(1 << 20)["seconds"] > 0
            assert client.up(1 << 20)["seconds"] > 0
        assert len(client.links) == 1


def test_new_connections(place: tuple[int, Path]) -> None:
    with asked(place) as client:
        assert client.connect(3)["seconds"] > 0
        assert client.links == []
