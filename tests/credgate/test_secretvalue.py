"""A canary: whatever is done to a Secret but reveal(), the value comes out nowhere."""

import copy
import io
import json
import logging
import pickle
import pprint
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.secretvalue import MAX_VALUE, Secret, SecretUnavailable, check_value

CANARY = "canary-7f3a9c"


@pytest.fixture
def secret() -> Secret:
    return Secret("github", CANARY)


def test_reveal_gives_the_value(secret: Secret):
    assert secret.reveal() == CANARY
    assert secret.name == "github"


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        lambda s: f"{s!r} {s!s}",
        lambda s: "%s %r" % (s, s),  # noqa: UP031 - a way to leak
        lambda s: repr([s, {"a": s}]),
        pprint.pformat,
        lambda s: json.dumps({"s": s}, default=str),
        lambda s: repr(TypeError(s, s)),
    ],
)
def test_no_way_of_printing_shows_the_value(secret: Secret, show):
    assert CANARY not in show(secret)
    assert "github" in show(secret)


@pytest.mark.parametrize(
    "leak",
    [
        format,
        "{}".format,
        lambda s: "Bearer " + s,
        lambda s: ",".join([s]),
        json.dumps,
        pickle.dumps,
        lambda s: pickle.dumps([s], protocol=0),
        copy.copy,
        copy.deepcopy,
        lambda s: copy.deepcopy({"a": [s]}),
        vars,
        bytes,
        len,
        iter,
    ],
)
def test_no_way_of_copying_takes_the_value(secret: Secret, leak):
    with pytest.raises(TypeError) as caught:
        leak(secret)
    assert CANARY not in str(caught.value)


def test_a_log_shows_the_name(secret: Secret):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("canary")
    logger.addHandler(handler)
    try:
        logger.warning("fetched %s %r", secret, secret)
    finally:
        logger.removeHandler(handler)
    assert "github" in stream.getvalue()
    assert CANARY not in stream.getvalue()


def test_a_traceback_with_locals_shows_the_name(secret: Secret):
    def fail(held: Secret) -> None:
        raise RuntimeError(held.name)

    with pytest.raises(RuntimeError) as caught:
        fail(secret)
    error = caught.value
    text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "held = <Secret github>" in text
    # the frame of this test holds the constant's name only
    assert CANARY not in text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        (f"{CANARY}\n", "LF"),
        (f"{CANARY}\r", "CR"),
        (f"{CANARY}\r\nx: y", "CR"),
        (f"a\0{CANARY}", "NUL"),
        (f"{CANARY}\udc80", "not UTF-8"),
        (CANARY + "a" * MAX_VALUE, "at most 65536"),
    ],
)
def test_a_value_that_cannot_be_injected_is_refused_without_showing_it(value: str, why: str):
    for make in (check_value, Secret):
        with pytest.raises(SecretUnavailable) as caught:
            make("github", value)
        error = caught.value
        assert why in error.detail
        assert error.code == "secret_invalid"
        assert CANARY not in f"{error} {error.detail} {error.hint} {error.args!r}"


@pytest.mark.parametrize("value", ["a", "a" * MAX_VALUE, "é ü", "a\tb", " ", '"{}%s'])
def test_a_value_that_can_be_injected_is_taken_as_it_is(value: str):
    assert Secret("x", value).reveal() == value


@given(st.text(min_size=4, max_size=40))
def test_no_error_shows_a_part_of_a_refused_value(text: str):
    value = f"\r{text}"
    with pytest.raises(SecretUnavailable) as caught:
        check_value("n", value)
    assert caught.value.detail == "secret 'n': value holds CR, which would split a header"


PEM = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize("value", [PEM, f"{PEM}\n{PEM}\n", '{\n "a": "b"\n}'])
def test_keys_that_are_signed_with_have_lines(value: str):
    assert Secret("x", value).reveal() == value


@pytest.mark.parametrize(
    "value", [f"x\n{PEM}", f"{PEM}\nx: y", PEM.replace("\n", "\r\n"), f"{PEM}\0-", "-----BEGIN\n-", '{\n"a"', "[\n]"]
)
def test_other_text_of_several_lines_is_refused(value: str):
    with pytest.raises(SecretUnavailable, match="value holds"):
        Secret("x", value)
