"""What the daemon knows of secrets, in memory."""

import base64
import threading

import pytest

from credgate.known import KnownValues, is_searchable


def test_a_value_is_found_from_when_it_was_added() -> None:
    known = KnownValues()
    before = known.table()
    known.add("token", "value-of-a-token")
    assert before.found(b"value-of-a-token") == frozenset()
    assert known.table().found(b"<value-of-a-token>") == {"token"}
    assert known.table() is known.table()


def test_a_basic_credential_is_known_whole() -> None:
    known = KnownValues()
    known.add("token", "value-of-a-token", basic="user:value-of-a-token")
    text = base64.b64encode(b"user:value-of-a-token")
    assert known.table().clean(text)[0].rstrip(b"=") == b"*" * len(text.rstrip(b"="))


def test_a_short_value_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownValues()
    known.add("pin", "1234567", basic="user-of-a-name:1234567")
    known.add("pin", "7654321")
    assert [record.getMessage() for record in caplog.records] == [
        "secret 'pin' has fewer than 8 characters: nothing is searched for it"
    ]
    assert not is_searchable("1234567")
    assert known.table().found(b"1234567" + base64.b64encode(b"user-of-a-name:1234567")) == frozenset()


def test_the_newest_values_of_a_name_are_kept() -> None:
    known = KnownValues()
    for number in range(30):
        known.add("token", f"value-{number:06}")
        known.add("token", "value-used-again")
    found = known.table()
    assert found.found(b"value-000029") and found.found(b"value-used-again")
    assert not found.found(b"value-000001")


def test_from_many_threads() -> None:
    known = KnownValues()

    def work(name: str) -> None:
        for number in range(10):
            known.add(name, f"{name}-value-{number}")
            assert known.table().found(f"{name}-value-{number}".encode()) == {name}

    threads = [threading.Thread(target=work, args=(f"name{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(known.table().found(f"name{n}-value-9".encode()) for n in range(8))


def test_it_does_not_show_its_values() -> None:
    known = KnownValues()
    known.add("token", "value-of-a-token")
    assert "value-of" not in repr(known) + str(known) + f"{known}"
