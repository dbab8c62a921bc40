"""The certificate authority of one installation, and the leaves the gateway shows to the jail.

The CA's key signs and does nothing else: leaves have one key of their own, which lives in memory alone, so that what
terminates TLS can't sign (mitmproxy gives every leaf the CA's own key). The CA is never trusted for upstreams.
"""

import datetime
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from credgate.errors import CredgateError
from credgate.memoryfile import in_memory
from credgate.paths import private_dir, read_private, write_private

CA_DAYS = 3650
LEAF_DAYS = 397  # the most that Apple's and Chromium's verifiers take
BACKDATE_DAYS = 2  # clocks of containers lag: CERT_NOT_YET_VALID was reported by users of such tools
CACHE_SIZE = 1024
_MAX_CN = 64  # ub-common-name of RFC 5280, appendix A.1
_MAX_FILE = 64 * 1024

type _Key = ec.EllipticCurvePrivateKey
type _Kept = tuple[ssl.SSLContext, datetime.datetime]  # with when its leaf is signed anew
type Clock = Callable[[], datetime.datetime]


class AuthorityError(CredgateError):
    """The CA's files are missing a half, unreadable, expired, or don't fit each other."""


def _utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Authority:
    """Signs leaves and keeps a bounded number of TLS contexts. Not thread-safe: it lives on the daemon's loop."""

    def __init__(self, *, key: _Key, certificate: x509.Certificate, clock: Clock = _utc) -> None:
        self._key = key
        self._certificate = certificate
        self._clock = clock
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[tuple[str, tuple[str, ...]], _Kept] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Authority {self._certificate.serial_number:x}>"

    @classmethod
    def load_or_create(cls, directory: Path, *, clock: Clock = _utc) -> "Authority":
        """Read `ca.key` (0600) and `ca.pem` of a private directory, or make both. Raise AuthorityError, PlaceError."""
        private_dir(directory)
        key_file, cert_file = directory / "ca.key", directory / "ca.pem"
        try:
            key = _load_key(key_file)
        except FileNotFoundError:
            if os.path.lexists(cert_file):
                raise _broken(cert_file, "the certificate is there and its key is not") from None
            return cls._create(key_file, cert_file, clock)
        try:
            certificate = _load_certificate(cert_file)
        except FileNotFoundError:
            raise _broken(key_file, "the key is there and its certificate is not") from None
        _check_pair(key, certificate, cert_file, clock())
        return cls(key=key, certificate=certificate, clock=clock)

    @classmethod
    def _create(cls, key_file: Path, cert_file: Path, clock: Clock) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _self_signed(key, clock())
        write_private(cert_file, certificate.public_bytes(serialization.Encoding.PEM))
        write_private(key_file, _key_pem(key))
        return cls(key=key, certificate=certificate, clock=clock)

    def to_pem(self) -> tuple[bytes, bytes]:
        """Key and certificate, for another process of the gateway's."""
        return _key_pem(self._key), self.ca_pem

    @classmethod
    def from_pem(cls, key: bytes, certificate: bytes) -> "Authority":
        """As to_pem gave it. The leaves of each process have a key of their own."""
        loaded = serialization.load_pem_private_key(key, password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise TypeError("got another kind of key, expected an EC key")
        return cls(key=loaded, certificate=x509.load_pem_x509_certificate(certificate))

    @property
    def ca_pem(self) -> bytes:
        """The CA's certificate, PEM: what goes into the trust stores of the jail."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def leaf_for(self, host: str) -> x509.Certificate:
        """Sign a leaf for a host name or an address literal. Raise ValueError where it can't stand in a SAN."""
        now, name = self._clock(), _general_name(host)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(host))
            .issuer_name(self._certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=BACKDATE_DAYS))
            .not_valid_after(min(now + datetime.timedelta(days=LEAF_DAYS - BACKDATE_DAYS - 1), self._end()))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            # RFC 5280 4.2.1.6: critical where the subject is empty
            .add_extension(x509.SubjectAlternativeName([name]), critical=len(host) > _MAX_CN)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False)
            .add_extension(self._authority_key_id(), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())

    def context_for(self, host: str, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
        """Return the server-side TLS context for `host`, kept while it is used. Raise ValueError as leaf_for does.

        One context a host and list of protocols. What a handshake may be resumed from is the caller's context: see
        gateway.front.
        """
        now = self._clock()
        key = (host, alpn)
        kept = self._contexts.get(key)
        if kept is not None and now < kept[1]:
            self._contexts.move_to_end(key)
            return kept[0]
        leaf = self.leaf_for(host)
        context = _server_context(leaf, self._leaf_key, alpn)
        # A leaf is renewed well before its end, whatever the client's clock says.
        self._contexts[key] = (context, leaf.not_valid_after_utc - datetime.timedelta(days=BACKDATE_DAYS))
        while len(self._contexts) > CACHE_SIZE:
            self._contexts.popitem(last=False)
        return context

    def _end(self) -> datetime.datetime:
        return self._certificate.not_valid_after_utc

    def _authority_key_id(self) -> x509.AuthorityKeyIdentifier:
        ski = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski.value)


def _server_context(leaf: x509.Certificate, key: _Key, alpn: tuple[str, ...]) -> ssl.SSLContext:
    context = server_context()
    with in_memory(_key_pem(key) + leaf.public_bytes(serialization.Encoding.PEM)) as path:
        context.load_cert_chain(path)
    context.set_alpn_protocols(list(alpn))  # in our order, as RFC 7301 3.2 has it: the server's preference decides
    return context


def server_context() -> ssl.SSLContext:
    """What TLS towards the jail is at least."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def _self_signed(key: _Key, now: datetime.datetime) -> x509.Certificate:
    serial = x509.random_serial_number()
    # The serial in the name: two installations' CAs in one trust store are told apart by more than the key id.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Credgate"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Credgate CA {serial:x}"[:_MAX_CN]),
        ]
    )
    ski = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(days=BACKDATE_DAYS))
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(ski, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski), critical=False)
        .sign(key, hashes.SHA256())
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(host: str) -> x509.Name:
    if len(host) > _MAX_CN:
        return x509.Name([])
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not host or len(host) > 253 or not host.isascii() or not host.isprintable() or " " in host:
        raise ValueError("not a name that a certificate can hold")
    return x509.DNSName(host)


def _key_pem(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_key(path: Path) -> _Key:
    data = read_private(path, _MAX_FILE)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise _broken(path, "not a private key in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _broken(path, "got another kind of key, expected an EC key")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    data = read_private(path, _MAX_FILE)
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise _broken(path, "not a certificate in PEM form") from error


def _check_pair(key: _Key, certificate: x509.Certificate, path: Path, now: datetime.datetime) -> None:
    if certificate.public_key() != key.public_key():
        raise _broken(path, "the certificate belongs to another key")
    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise _broken(path, "the certificate is not signed by its own key") from error
    if now >= certificate.not_valid_after_utc:
        raise _broken(path, f"the certificate ended on {certificate.not_valid_after_utc:%Y-%m-%d}")


def _broken(path: Path, why: str) -> AuthorityError:
    return AuthorityError(
        "ca_unusable",
        f"certificate authority {path}: {why}",
        f"stop the gateway and move {path.parent} away: a new authority is made at the next start",
    )
