"""The gateway's own certificate towards a target: `place = "certificate"`. Its key comes from the vault and stays here.

TLS shows a certificate for a whole connection, so a connection with one is another than one without: `Target.key`.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from OpenSSL import SSL

from credgate.secretvalue import Secret, SecretUnavailable
from rules.policy import Binding, PlaceKind
from rules.verdict import Allow

_MAX_KNOWN = 32
_HINT = (
    "cat certificate.pem key.pem | credgate secret set NAME: the chain from the leaf up, and a key without passphrase"
)

type PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A chain from the leaf up, and the leaf's key; two are the same if their leaves are. `sha256` in hex."""

    sha256: str
    chain: tuple[x509.Certificate, ...] = field(compare=False, repr=False)
    key: PrivateKey = field(compare=False, repr=False)

    def put_into(self, context: SSL.Context) -> None:
        """Have connections of `context` show it where the target asks."""
        leaf, *others = self.chain
        context.use_certificate(leaf)
        for other in others:
            context.add_extra_chain_cert(other)
        context.use_privatekey(self.key)
        context.check_privatekey()

    def sealed(self, word: bytes) -> bytes:
        """Key and chain as PEM, the key encrypted."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(word))
        return key + b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.chain)


class Identities:
    """Parses each value once: reading a key costs more than the rest of a request. Not thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Identity] = OrderedDict()

    def of(self, secret: Secret) -> Identity:
        """As parse_identity."""
        digest = hashlib.sha256(secret.reveal().encode()).digest()
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = parse_identity(secret)
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found


def certificate_of(allow: Allow) -> Binding | None:
    """The binding by which a request goes over a connection with a certificate."""
    return next((binding for binding in allow.bindings if binding.place is PlaceKind.CERTIFICATE), None)


def parse_identity(secret: Secret) -> Identity:
    """Read PEM: one key, and the certificates, the key's own first. Raises SecretUnavailable, without any of it."""
    text = secret.reveal().encode()
    try:
        chain = tuple(x509.load_pem_x509_certificates(text))
        key = load_pem_private_key(text[_key_at(text) :], None)
        mine = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        theirs = chain[0].public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if not isinstance(key, PrivateKey.__value__):
            raise ValueError("a kind of key that signs no handshake")
    except (ValueError, TypeError):  # TypeError: a key with a passphrase
        # not from it: its text may quote the key
        raise SecretUnavailable(
            "secret_invalid", f"secret {secret.name!r}: not a certificate with its key", _HINT
        ) from None
    if mine != theirs:
        detail = f"secret {secret.name!r}: the first certificate is not that of the key"
        raise SecretUnavailable("secret_invalid", detail, _HINT)
    return Identity(sha256=chain[0].fingerprint(hashes.SHA256()).hex(), chain=chain, key=key)


def _key_at(text: bytes) -> int:
    """Where the block of the private key begins. Raises ValueError where there is none."""
    return text.rindex(b"-----BEGIN", 0, text.index(b"PRIVATE KEY-----"))
