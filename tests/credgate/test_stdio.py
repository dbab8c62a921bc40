"""What may be a jail's stdin: each kind beside one that passes, in a child whose descriptor 0 it is."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECK = """
import os
from credgate.errors import CredgateError
from credgate.stdio import check_standard
try:
    check_standard()
except CredgateError as error:
    print(error.detail)
else:
    print("passes", os.fstat(0).st_mode != 0)
"""


def check(stdin: int | None) -> str:
    """Run the check with this descriptor as 0; None: with 0 closed."""
    argv = [sys.executable, "-I", "-c", CHECK]
    if stdin is None:
        argv = ["sh", "-c", 'exec "$@" <&-', "sh", *argv]
    done = subprocess.run(argv, stdin=stdin, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


@pytest.fixture
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected ends on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def test_a_network_socket_is_refused(tcp: tuple[socket.socket, socket.socket]) -> None:
    assert "got a socket" in check(tcp[0].fileno())


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_unix_socket_that_is_no_stream_is_refused(kind: int) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    with one, other:
        assert "got a socket" in check(one.fileno())


def test_an_unconnected_unix_stream_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        assert "got a socket" in check(sock.fileno())


def test_a_directory_is_refused(tmp_path: Path) -> None:
    # No interpreter starts with one as its stdin; a launcher in another process would be given it later.
    later = f"import os\nos.dup2(os.open({str(tmp_path)!r}, os.O_RDONLY), 0)\n"
    argv = [sys.executable, "-I", "-c", later + CHECK]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True)
    assert "descriptor 0: got a directory" in done.stdout


def test_a_pair_a_pipe_a_file_and_a_device_pass(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    reading, writing = os.pipe()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with one, other:
        for descriptor in (one.fileno(), reading, file, subprocess.DEVNULL):
            assert check(descriptor) == "passes True"
    for descriptor in (reading, writing, file):
        os.close(descriptor)


def test_a_closed_one_becomes_dev_null() -> None:
    assert check(None) == "passes True"
