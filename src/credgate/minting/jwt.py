"""JSON Web Tokens signed by RS256 (RFC 7519, RFC 7518 3.3), as GitHub and Google take them from a key's owner."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from credgate.secretvalue import Secret, SecretUnavailable

LIFETIME = 540  # seconds; GitHub takes ten minutes at most
BEFORE = 60  # seconds that the other clock may be behind ours
_PEM_HINT = "credgate secret set NAME < key.pem, as it was downloaded"
_JSON_HINT = "credgate secret set NAME < key.json, as it was downloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """What a key file of Google holds of what is used here."""

    email: str
    key_id: str
    key: rsa.RSAPrivateKey = field(repr=False)


def read_key(secret: Secret) -> rsa.RSAPrivateKey:
    """Read a private key in PEM. Raises SecretUnavailable, without any of it."""
    return _key(secret, secret.reveal(), _PEM_HINT)


def read_account(secret: Secret) -> ServiceAccount:
    """Read a service account's key file. Raises SecretUnavailable, without any of it.

    Its `token_uri` is not followed: where the key's signature goes is the policy's to say.
    """
    try:
        document = json.loads(secret.reveal())
        values = [document[name] for name in ("client_email", "private_key_id", "private_key")]
    except (ValueError, TypeError, KeyError, RecursionError):
        values = []
    if len(values) != 3 or not all(isinstance(value, str) for value in values):
        raise SecretUnavailable("secret_invalid", f"secret {secret.name!r}: not a service account's key", _JSON_HINT)
    email, key_id, pem = values
    return ServiceAccount(email=email, key_id=key_id, key=_key(secret, pem, _JSON_HINT))


def _key(secret: Secret, pem: str, hint: str) -> rsa.RSAPrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        # outside the handler: the error's text may quote the key
        raise SecretUnavailable("secret_invalid", f"secret {secret.name!r}: not an RSA key in PEM", hint)
    return key


def signed(key: rsa.RSAPrivateKey, claims: Mapping[str, object], key_id: str = "") -> str:
    """The compact form of a token with these claims."""
    head = {"alg": "RS256", "typ": "JWT"} | ({"kid": key_id} if key_id else {})
    text = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in (head, claims))
    return f"{text}.{_encoded(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
