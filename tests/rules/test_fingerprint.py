"""Fingerprints join with what the targets log, and give no value away."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.fingerprint import Fingerprint, fingerprint, form_of

KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("api.github.com", Fingerprint.SHA256),
        ("github.com", Fingerprint.SHA256),
        ("acme.ghe.com", Fingerprint.SHA256),
        ("notgithub.com", Fingerprint.HMAC),
        ("sts.eu-west-1.amazonaws.com", Fingerprint.AWS_KEY_ID),
        ("s3.amazonaws.com.evil.test", Fingerprint.HMAC),
        ("api.openai.com", Fingerprint.HMAC),
    ],
)
def test_the_form_is_that_of_the_hosts_log(host: str, form: Fingerprint) -> None:
    assert form_of(None, host) is form
    assert form_of(Fingerprint.HMAC, host) is Fingerprint.HMAC


def test_github() -> None:
    """docs.github.com: base64 of SHA-256 of the token, as `echo -n TOKEN | openssl dgst -sha256 -binary | base64`."""
    want = base64.b64encode(hashlib.sha256(b"ghp_token").digest()).decode()
    assert fingerprint(Fingerprint.SHA256, "ghp_token", KEY) == want
    assert len(want) == 44


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AKIAIOSFODNN7EXAMPLE"),
        ('{"access_key_id": "ASIAIOSFODNN7EXAMPLE", "secret_access_key": "x"}', "ASIAIOSFODNN7EXAMPLE"),
    ],
)
def test_aws_shows_the_key_id_and_not_the_key(value: str, shown: str) -> None:
    assert fingerprint(Fingerprint.AWS_KEY_ID, value, KEY) == shown


def test_aws_without_an_id_is_an_hmac_and_says_so() -> None:
    for value in ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "xAKIAIOSFODNN7EXAMPLE", "akiaiosfodnn7example"):
        assert fingerprint(Fingerprint.AWS_KEY_ID, value, KEY).startswith("hmac:")


def test_everything_else_is_an_hmac_by_the_installs_key() -> None:
    found = fingerprint(Fingerprint.HMAC, "secret", KEY)
    assert found == "hmac:" + hmac.new(KEY, b"secret", hashlib.sha256).hexdigest()[:32]
    assert found != fingerprint(Fingerprint.HMAC, "secret", bytes(32))
    with pytest.raises(ValueError, match="31 bytes"):
        fingerprint(Fingerprint.HMAC, "secret", KEY[1:])


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=8), st.sampled_from(Fingerprint))
def test_no_value_is_in_it(value: str, form: Fingerprint) -> None:
    found = fingerprint(form, value, KEY)
    assert value not in found
    assert found.isascii()
    assert "," not in found
