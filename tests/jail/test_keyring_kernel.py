"""A key that the host put into its session keyring: read from a child without the guard, not with it."""

import ctypes
import errno

import pytest

from jail.errors import JailError
from jail.keyring_kernel import join_anonymous_session
from jail.syscalls import syscall
from tests.jail.forked import USERS, attempt

SEARCH, READ = 10, 11
SESSION = -3  # KEY_SPEC_SESSION_KEYRING
NAME, VALUE = b"credgate-test\0", b"canary-of-the-host"


def add_key() -> None:
    """The host: a session keyring of its own with a key in it, so that the tester's own is left alone."""
    join_anonymous_session()
    syscall("add_key", b"user\0", NAME, VALUE, len(VALUE), SESSION)


def found() -> str:
    serial = syscall("keyctl", SEARCH, SESSION, b"user\0", NAME, 0)
    buffer = ctypes.create_string_buffer(64)
    size = syscall("keyctl", READ, serial, buffer, len(buffer))
    return buffer.raw[:size].decode()


@pytest.mark.parametrize("uid", USERS)
def test_key_of_the_host(uid: int) -> None:
    def inherited() -> object:
        add_key()
        return attempt(found).value

    def left() -> object:
        add_key()
        return attempt(found, guards=join_anonymous_session).errno

    assert attempt(inherited, uid=uid).value == VALUE.decode()
    assert attempt(left, uid=uid).value == errno.ENOKEY


def test_each_call_gives_another_keyring() -> None:
    serials = attempt(lambda: [join_anonymous_session(), join_anonymous_session()]).value
    assert isinstance(serials, list)
    assert serials[0] != serials[1]
    assert all(serial > 0 for serial in serials)


def test_a_refusal_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("jail.keyring_kernel.syscall", refuse)
    with pytest.raises(JailError, match="keyring_join") as caught:
        join_anonymous_session()
    assert caught.value.errno == errno.EDQUOT
