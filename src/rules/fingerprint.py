"""A credential as its target's log names it: what the ledger holds instead of the value. Pure.

Where a target logs a digest or the public half of a credential, the ledger has the same text and the two join by
themselves. Where it logs a name of its own (a token's number, a key's id) nothing can be computed: the fingerprint is
an HMAC by a key of this install, equal for equal values, and a mapping file says which name belongs to it.
"""

import base64
import hashlib
import hmac
import re
from enum import StrEnum

__all__ = ["MIN_KEY", "Fingerprint", "fingerprint", "form_of"]

MIN_KEY = 32  # bytes of the HMAC's key
_SHOWN = 16  # bytes of an HMAC
# docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html: unique id prefixes of keys
_AWS_KEY_ID = re.compile(r"(?<![A-Za-z0-9])A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{12,124}(?![A-Za-z0-9])")


class Fingerprint(StrEnum):
    """In which form; the policy's `fingerprint` of an endpoint."""

    HMAC = "hmac-sha256"
    SHA256 = "sha256"  # base64 of SHA-256 of the token: `hashed_token` of GitHub's audit log
    AWS_KEY_ID = "aws-access-key-id"  # `userIdentity.accessKeyId` of CloudTrail


# Hosts whose log has a form of its own: docs.github.com/enterprise-cloud, "Identifying audit log events performed by an
# access token"; docs.aws.amazon.com/awscloudtrail, "userIdentity element".
_BY_HOST = (
    ("github.com", Fingerprint.SHA256),
    ("githubusercontent.com", Fingerprint.SHA256),
    ("ghe.com", Fingerprint.SHA256),
    ("amazonaws.com", Fingerprint.AWS_KEY_ID),
    ("amazonaws.com.cn", Fingerprint.AWS_KEY_ID),
    ("api.aws", Fingerprint.AWS_KEY_ID),
)


def form_of(chosen: Fingerprint | None, host: str) -> Fingerprint:
    """The policy's choice, else what is known of the host."""
    if chosen is not None:
        return chosen
    for domain, form in _BY_HOST:
        if host == domain or host.endswith("." + domain):
            return form
    return Fingerprint.HMAC


def fingerprint(form: Fingerprint, value: str, key: bytes) -> str:
    """The fingerprint of a secret's value. `key` is the install's own, at least MIN_KEY bytes; ValueError if shorter.

    A value without the key id that AWS_KEY_ID asks for has the HMAC, whose text says so.
    """
    if len(key) < MIN_KEY:
        raise ValueError(f"key has {len(key)} bytes, expected at least {MIN_KEY}")
    if form is Fingerprint.SHA256:
        return base64.b64encode(hashlib.sha256(value.encode()).digest()).decode()
    found = _AWS_KEY_ID.search(value) if form is Fingerprint.AWS_KEY_ID else None
    if found is not None:
        return found[0]
    return "hmac:" + hmac.digest(key, value.encode(), "sha256")[:_SHOWN].hex()
