"""The runner of attempts: what hangs, dies or says nothing is no answer. The attempts themselves: e2e/test_prove.py."""

import os
import signal
import time

import pytest

from jail.probes import DONE, attempts

pytestmark = pytest.mark.usefixtures("short")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SECONDS", 0.5)


def tried(monkeypatch: pytest.MonkeyPatch, *alone: str, **actions) -> dict[str, str]:
    monkeypatch.setattr(attempts, "ATTEMPTS", dict(actions))
    monkeypatch.setattr(attempts, "ALONE", frozenset(alone))
    return attempts.run(list(actions), {})


def refused(number: int):
    def attempt(_context) -> str:
        raise OSError(number, os.strerror(number))

    return attempt


def killed(number: int):
    return lambda _context: os.kill(os.getpid(), number)


def test_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_context) -> str:
        raise ValueError("no such\tthing\n")

    def full(_context) -> str:
        raise MemoryError

    got = tried(
        monkeypatch, a=lambda _context: DONE, b=refused(13), c=fault, d=full, e=lambda _: os.strerror(1) and DONE
    )
    assert got.pop("c").startswith("crashed: ValueError")
    assert got == {"a": DONE, "b": "EACCES", "d": "ENOMEM", "e": DONE}


def test_error_without_an_errno_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(_context) -> str:
        raise OSError("AF_UNIX path too long")

    assert tried(monkeypatch, a=bare)["a"].startswith("crashed")


def test_one_that_hangs_takes_no_other_for_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    got = tried(monkeypatch, a=refused(1), b=lambda _context: time.sleep(60), c=refused(1))
    assert time.monotonic() - began < 30
    assert got["a"] == "EPERM"
    assert got["b"].startswith("crashed: no answer")
    assert got["c"].startswith("crashed: no answer")


def test_filter_that_kills_is_a_refusal_of_the_one_it_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, "b", a=refused(1), b=killed(signal.SIGSYS))
    assert got == {"a": "EPERM", "b": "SIGSYS"}


CHAINED = ("memory", "core", "network_admin", "userns", "tiocsti", "foreign_arch")


def pid(_context) -> str:
    return str(os.getpid())


def test_refusals_of_a_chain_share_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempts.CHAIN == CHAINED
    got = tried(monkeypatch, *CHAINED, **dict.fromkeys(CHAINED, pid))
    assert len(set(got.values())) == 1 and set(got) == set(CHAINED)


def test_a_chain_follows_the_others_in_their_child(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, *CHAINED, **dict.fromkeys(["a", "b", *CHAINED], pid))
    assert len(set(got.values())) == 1 and set(got) == {"a", "b", *CHAINED}


def test_a_death_in_a_chain_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, "core", a=refused(1), core=killed(signal.SIGSYS))
    assert got == {"a": "EPERM", "core": "SIGSYS"}


def test_a_chain_is_tried_after_the_others_died(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = killed(signal.SIGSYS)
    got = tried(monkeypatch, "core", "userns", a=dies, b=refused(1), core=refused(1), userns=refused(13))
    assert got.pop("a").startswith("crashed") and got.pop("b").startswith("crashed")
    assert got == {"core": "EPERM", "userns": "EACCES"}


def test_a_success_or_a_death_begins_a_new_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing of it is there for the next one; each is judged by itself."""
    actions = {
        "memory": pid, "core": lambda _context: DONE, "network_admin": pid, "userns": killed(signal.SIGSYS),
        "tiocsti": pid, "foreign_arch": killed(signal.SIGKILL),
    }  # fmt: skip
    got = tried(monkeypatch, *CHAINED, **actions)
    assert (got["core"], got["userns"]) == (DONE, "SIGSYS")
    assert got["foreign_arch"].startswith("crashed")
    assert len({got["memory"], got["network_admin"], got["tiocsti"]}) == 3


def test_one_that_hangs_in_a_chain_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, "core", "userns", core=lambda _context: time.sleep(60), userns=refused(1))
    assert got["core"].startswith("crashed: no answer") and got["userns"] == "EPERM"


def test_what_shares_a_chain_not_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, "x32", "setns", x32=pid, setns=pid)
    assert got["x32"] != got["setns"]


def test_death_in_a_chain_is_the_answer_of_the_one_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, "core", "userns", core=refused(1), userns=killed(signal.SIGSYS))
    assert got == {"core": "EPERM", "userns": "SIGSYS"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_other_deaths_are_crashes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    assert tried(monkeypatch, "a", a=killed(number))["a"].startswith("crashed")


def test_death_of_a_shared_child_speaks_for_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    got = tried(monkeypatch, a=killed(signal.SIGSYS), b=refused(1))
    assert all(word.startswith("crashed") for word in got.values())


def test_child_left_behind_does_not_answer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(_context) -> str:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
        return DONE

    got = tried(monkeypatch, a=leaves)
    assert got["a"] == DONE  # it was said before the deadline, and the writer that is still open changes nothing


def test_every_id_has_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(tried(monkeypatch, a=lambda _context: os._exit(0), b=refused(1))) == {"a", "b"}
