"""A certificate authority for the targets: what a company's own CA is to a client."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """Paths of a certificate (PEM, leaf alone) and its key (PEM, mode 0600)."""

    certificate: Path
    key: Path


class Authority:
    """Signs leaves for the names it is asked for; `ca` is the file a client has to trust."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._public = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        certificate = (
            _dated(self._subject, self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(self._public, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(Encoding.PEM))
        self.ca.chmod(0o644)

    def issue(
        self, host: str, purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH, more: Sequence[str] = ()
    ) -> KeyPair:
        """A leaf for `host`, and for loopback by name and address, so that no resolver is needed to try it.

        `more`: further names that it is for.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([*map(x509.DNSName, (host, *more, "localhost")), loopback])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = (
            _dated(subject, self._subject, key.public_key())
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = KeyPair(certificate=self._directory / f"{host}.pem", key=self._directory / f"{host}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair


def _dated(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
    )
