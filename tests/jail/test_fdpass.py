"""Invariant: a message arrives whole with its descriptors, or as one JailError that leaks none."""

import array
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jail import fdpass
from jail.errors import JailError

type Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    left, right = fdpass.pair()
    with left, right:
        yield left, right


def open_fds() -> set[str]:
    return {p.name for p in Path("/proc/self/fd").iterdir()}


def test_message_and_descriptors_arrive_in_order(ends: Pair) -> None:
    left, right = ends
    pipes = [os.pipe() for _ in range(3)]
    fdpass.send(left, {"a": [1, "ü"]}, [r for r, _ in pipes])
    got = fdpass.recv(right)
    assert got is not None
    assert got.body == {"a": [1, "ü"]}
    for (_, write), fd in zip(pipes, got.fds, strict=True):
        os.write(write, str(write).encode())
        assert os.read(fd, 9) == str(write).encode()
        assert not os.get_inheritable(fd)
    got.close()
    assert got.fds == []
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_borders_are_kept(ends: Pair) -> None:
    left, right = ends
    for n in range(5):
        fdpass.send(left, {"n": n})
    bodies = [got.body for _ in range(5) if (got := fdpass.recv(right))]
    assert bodies == [{"n": n} for n in range(5)]


def test_end_is_none(ends: Pair) -> None:
    left, right = ends
    left.close()
    assert fdpass.recv(right) is None


def test_largest_passes_and_one_more_byte_does_not(ends: Pair) -> None:
    left, right = ends
    room = fdpass.MAX_BYTES - len('{"a":""}')
    fdpass.send(left, {"a": "x" * room})
    assert fdpass.recv(right)
    with pytest.raises(JailError, match="message_too_big"):
        fdpass.send(left, {"a": "x" * (room + 1)})
    left.sendmsg([json.dumps({"a": "x" * fdpass.MAX_BYTES}).encode()])
    with pytest.raises(JailError, match="message cut"):
        fdpass.recv(right)


@pytest.mark.parametrize("credentials", [False, True])
def test_64_descriptors_pass_and_65_do_not(ends: Pair, credentials: bool) -> None:
    left, right = ends
    if credentials:
        fdpass.want_credentials(right)
    fdpass.send(left, {}, [0] * fdpass.MAX_FDS)
    got = fdpass.recv(right)
    assert got
    assert len(got.fds) == fdpass.MAX_FDS
    got.close()
    with pytest.raises(JailError, match="message_too_big"):
        fdpass.send(left, {}, [0] * (fdpass.MAX_FDS + 1))
    before = open_fds()
    for count in (fdpass.MAX_FDS + 1, 200):
        left.sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * count))])
        with pytest.raises(JailError, match="message cut"):
            fdpass.recv(right)
    assert open_fds() == before


def test_kernel_names_the_sender(ends: Pair) -> None:
    left, right = ends
    fdpass.send(left, {})
    got = fdpass.recv(right)
    assert got
    assert (got.pid, got.uid, got.gid) == (-1, -1, -1)
    fdpass.want_credentials(right)
    child = os.fork()
    if child == 0:
        fdpass.send(left, {"pid": 1})
        os._exit(0)
    got = fdpass.recv(right)
    os.waitpid(child, 0)
    assert got
    assert (got.pid, got.uid, got.gid) == (child, os.getuid(), os.getgid())
    assert fdpass.peer_credentials(left) == (os.getpid(), os.getuid(), os.getgid())


@pytest.mark.parametrize(
    "data", [b"[]", b"1", b"null", b"{", b"\xff", b'{"a":NaN}', b"[" * 60000, b'{"a":' + b"9" * 5000 + b"}", b" "]
)
def test_not_an_object_is_one_error_and_closes_what_came(ends: Pair, data: bytes) -> None:
    left, right = ends
    before = open_fds()
    left.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))])
    with pytest.raises(JailError, match="message_malformed"):
        fdpass.recv(right)
    assert open_fds() == before


def test_descriptors_without_a_body_are_no_end(ends: Pair) -> None:
    left, right = ends
    before = open_fds()
    left.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    with pytest.raises(JailError, match="message_malformed"):
        fdpass.recv(right)
    assert open_fds() == before


def test_stream_socket_is_refused() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        with pytest.raises(JailError, match="expected SOCK_SEQPACKET"):
            fdpass.send(left, {})
        with pytest.raises(JailError, match="expected SOCK_SEQPACKET"):
            fdpass.recv(right)


def outcome(sock: socket.socket) -> str:
    try:
        got = fdpass.recv(sock)
    except JailError as error:
        return error.code
    return "object" if got and isinstance(got.body, dict) else "nothing"


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=200) | st.text(alphabet='{}[]",:0eE-. \\u', min_size=1).map(str.encode))
def test_any_bytes_give_an_object_or_the_one_error(data: bytes) -> None:
    left, right = fdpass.pair()
    with left, right:
        left.sendmsg([data])
        assert outcome(right) in ("message_malformed", "object")


def test_import_stays_light() -> None:
    heavy = {"dataclasses", "typing", "ctypes", "subprocess", "asyncio", "pyroute2", "inspect"}
    code = "import sys, jail.fdpass; print(' '.join(sys.modules))"
    out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(out.stdout.split())
