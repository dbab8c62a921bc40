"""Credentials among a command's arguments. Keys that were never kept: tests/e2e/test_agents.py."""

import pytest

from credgate.errors import CredgateError
from credgate.given import check_arguments

KEYS = (
    "sk-ant-api03-" + "aB3_" * 20,
    "sk-proj-" + "aB3-" * 30,
    "ghp_" + "aB3c" * 9,
    "npm_" + "aB3c" * 9,
    "AKIAIOSFODNN7EXAMPLE",
)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", ["{}", "--api-key={}", "use {} for it", "Authorization: Bearer {}"])
def test_a_key_is_found_in_any_argument_and_never_repeated(key: str, form: str) -> None:
    with pytest.raises(CredgateError) as error:
        check_arguments(("agent", "-p", form.format(key)))
    assert "argument 2" in error.value.detail
    assert key not in error.value.detail + error.value.hint


@pytest.mark.parametrize(
    "word",
    [
        "disk-usage-of-every-directory-below-HOME-in-2026",
        "task-RUNNER2-and-a-very-long-name-behind-it-for-good",
        "sk-learn-the-words-of-this-long-sentence-by-heart",
        "https://user:password@localhost/db",
        "https://github.com/acme/app/commit/0123456789abcdef0123456789abcdef01234567",
        "",
    ],
)
def test_prose_is_none(word: str) -> None:
    check_arguments(("agent", "-p", word))
