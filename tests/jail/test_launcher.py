"""The launcher's part where it can't join: it says so, and nothing is left."""

import os
import socket
from pathlib import Path

import pytest

from jail import fdpass, launcher
from jail.errors import JailError
from tests.jail.forked import attempt


def descriptors() -> tuple[list[int], socket.socket]:
    """Five of them of which none is a namespace, and the other end of the channel."""
    mine, theirs = fdpass.pair()
    null = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
    return [*null[:3], theirs.detach(), null[3]], mine


@pytest.mark.parametrize("count", [0, 4, 6])
def test_another_number_of_descriptors_is_no_answer(count: int) -> None:
    with pytest.raises(JailError, match="expected 5") as caught:
        launcher.Handles([0] * count)
    assert caught.value.code == "bad_answer"


def test_what_is_no_namespace_is_told_to_the_daemon_and_the_keeper_ends() -> None:
    def action() -> object:
        fds, channel = descriptors()
        started = launcher.start(launcher.Handles(fds), [])
        message = fdpass.recv(channel)
        started.wait()
        end = fdpass.recv(channel)
        assert message is not None
        return [message.body["ev"], message.body["code"], bool(message.body["hint"]), end is None]

    assert attempt(action).value == ["failed", "namespaces_refused", True, True]


def test_the_launchers_own_copies_are_closed() -> None:
    def action() -> object:
        fds, _channel = descriptors()
        started = launcher.start(launcher.Handles(fds), [])
        left = [fd for fd in fds if Path(f"/proc/self/fd/{fd}").exists()]
        started.wait()
        return left

    assert attempt(action).value == []
