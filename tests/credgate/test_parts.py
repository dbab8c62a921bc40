"""The pure parts of a session: what a jail says went wrong, as a refusal; the runs themselves are in tests/e2e."""

import pytest

from credgate.parts import REFUSED, Refusal, failure, refused
from jail.errors import JailError


def test_what_the_jail_says_is_kept() -> None:
    said = {"ev": "failed", "code": "mount_failed", "detail": "bind at x", "hint": "look", "status": 126}
    refusal = failure(said)
    assert (refusal.code, refusal.detail, refusal.hint) == ("mount_failed", "bind at x", "look")
    assert refusal.exit_status == 126


@pytest.mark.parametrize("status", [None, "0", 1.0])
def test_a_failure_without_a_status_is_a_refusal(status: object) -> None:
    assert failure({"ev": "failed", "code": "x", "detail": "y", "status": status}).exit_status == REFUSED


@pytest.mark.parametrize("body", [{}, {"ev": "exec"}, {"ev": "armed", "x": "y" * 10_000}])
def test_what_was_not_expected_is_a_refusal_of_bounded_length(body: dict[str, object]) -> None:
    refusal = failure(body)
    assert (refusal.code, refusal.exit_status) == ("jail_protocol", REFUSED)
    assert len(refusal.detail) < 300


def test_an_error_crosses_with_its_words_and_status() -> None:
    assert refused(Refusal("a", "b", "c", 127)) == {
        "ev": "refused",
        "code": "a",
        "detail": "b",
        "hint": "c",
        "exit": 127,
    }
    assert refused(JailError("a", "b", "c"))["exit"] == REFUSED
