"""The launcher's own reading and writing of messages is that of `jail.fdpass`."""

import json
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jail import fdpass, thinpass
from jail.errors import JailError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
bodies = st.dictionaries(st.text(), values)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = fdpass.pair()
    for end in (ours, theirs):
        end.settimeout(5)
    with ours, theirs:
        yield ours, theirs


@given(body=bodies)
def test_what_one_writes_the_other_reads(body: dict[str, object]) -> None:
    assert thinpass.dumps(body) == json.dumps(body, separators=(",", ":")).encode()
    assert thinpass.loads(json.dumps(body, separators=(",", ":")).encode()) == body


@given(data=st.binary(max_size=60) | st.text(alphabet='{}[]":,0NaInfity -e.\\u', max_size=40).map(str.encode))
def test_any_bytes_are_an_object_or_malformed(data: bytes) -> None:
    try:
        expected: object = json.loads(data.decode(), parse_constant=_constant)
    except (ValueError, RecursionError):
        expected = None
    if not isinstance(expected, dict) or data.strip() != data:
        with pytest.raises(JailError, match="message_malformed"):
            thinpass.loads(data)
    else:
        assert thinpass.loads(data) == expected


def _constant(name: str) -> object:
    raise ValueError(name)


def test_depth_without_end_is_malformed() -> None:
    with pytest.raises(JailError, match="message_malformed"):
        thinpass.loads(b'{"a":' + b"[" * 60_000)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_what_json_lacks_is_not_written(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        thinpass.dumps({"a": value})


def test_descriptors_cross_both_ways(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    null = os.open(os.devnull, os.O_RDONLY)
    thinpass.send(ours, {"op": "one"}, [null, null])
    got = fdpass.recv(theirs)
    assert got is not None and got.body == {"op": "one"} and len(got.fds) == 2
    got.close()
    fdpass.send(theirs, {"ev": "two"}, [null])
    message = thinpass.recv(ours)
    assert message is not None and message.body == {"ev": "two"} and len(message.fds) == 1
    assert not os.get_inheritable(message.fds[0])
    message.close()
    os.close(null)


def test_the_end_is_none_and_what_is_cut_leaves_no_descriptor(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    null = os.open(os.devnull, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    theirs.sendmsg([b"{nothing"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, null.to_bytes(4, "little"))])
    with pytest.raises(JailError):
        thinpass.recv(ours)
    assert len(os.listdir("/proc/self/fd")) == before
    theirs.close()
    assert thinpass.recv(ours) is None
    os.close(null)


def test_too_big_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(JailError, match="message_too_big"):
        thinpass.send(ends[0], {"a": "x" * thinpass.MAX_BYTES})
    assert (thinpass.MAX_BYTES, thinpass.MAX_FDS) == (fdpass.MAX_BYTES, fdpass.MAX_FDS)
