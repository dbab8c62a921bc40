"""The stand's key, by a user who has as many keys as the kernel gives one (kernel.keys.maxkeys) when it begins."""

import errno
import os
import tempfile
import time

import pytest

from jail.probes.stand import Stand
from jail.syscalls import syscall
from tests.jail.forked import attempt

UID = 54321  # nobody's: its keys are counted for it alone
JOIN, CLEAR, SESSION = 1, 7, -3
MOST, GIVEN_BACK = 20000, 60.0  # keys, and seconds until the kernel's collector has gone round


def fill() -> int:
    """Add keys to a session keyring of the caller's own until the kernel refuses; how many."""
    syscall("keyctl", JOIN, None)
    for number in range(MOST):
        try:
            syscall("add_key", b"user", b"filler-%d" % number, b"x", 1, SESSION)
        except OSError as error:
            if error.errno != errno.EDQUOT:
                raise
            return number
    raise AssertionError("no quota")


def control(stand: Stand) -> object:
    words = stand.answer({"op": "control", "host": ["keyring"], "lab": [], "limits": {}})["words"]
    assert isinstance(words, dict)
    return words["keyring"]


def stand_of(directory: str) -> Stand:
    stand = Stand()
    more = {"full": False, "small_size": 0, "limits": {}, "burst": 1, "own": []}
    stand.answer({"op": "open", "dir": f"{directory}/stand", "canary": "0123456789abcdef", **more})
    return stand


def as_a_user_with_too_many_keys(directory: str) -> list[object]:
    """The control's word then, and once the keys are gone."""
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    assert fill() > 0
    stand = stand_of(directory)
    try:
        words = [control(stand)]
        syscall("keyctl", CLEAR, SESSION)
        end = time.monotonic() + GIVEN_BACK
        while (word := control(stand)) != "done" and time.monotonic() < end:
            time.sleep(0.1)
        return [*words, word]
    finally:
        stand.clear()


@pytest.mark.needs("root")
def test_a_key_that_could_not_be_made_at_first_is_made_for_the_control() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, UID, UID)
        told = attempt(lambda: as_a_user_with_too_many_keys(directory))
    assert isinstance(told.value, list), told
    assert told.value[0] != "done"
    assert told.value[1] == "done"
