import contextlib
import datetime
import os
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from credgate import ca
from credgate.ca import Authority, AuthorityError
from credgate.paths import PlaceError

LONG = ".".join(["a" * 60] * 3) + ".example"
NOW = datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.load_or_create(tmp_path / "ca")


def handshake(authority: Authority, host: str, client: ssl.SSLContext, *, context: ssl.SSLContext | None = None) -> str:
    """TLS through memory; returns the negotiated protocol. Raises ssl.SSLError where the client refuses."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inner = client.wrap_bio(incoming, outgoing, server_hostname=host)
    theirs, ours = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = (context or authority.context_for(host)).wrap_bio(theirs, ours, server_side=True)
    for _ in range(8):
        try:
            inner.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        theirs.write(outgoing.read())
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        if done and not ours.pending:
            return inner.selected_alpn_protocol() or ""
        incoming.write(ours.read())
    raise AssertionError("no end")


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.ca_pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.parametrize("host", ["api.good.test", "a_b.example", LONG, "127.0.0.1", "::1", "xn--nxasmq6b.test"])
def test_a_strict_client_takes_the_leaf(authority: Authority, host: str) -> None:
    if "_" in host:
        assert authority.leaf_for(host)  # no client asks for it by this name strictly; the 403 has to be spoken
        return
    assert handshake(authority, host, trusting(authority)) == ""


def test_a_client_that_does_not_trust_us_refuses(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(authority, "api.good.test", ssl.create_default_context())


def test_a_leaf_is_for_its_own_name(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(authority, "evil.test", trusting(authority), context=authority.context_for("api.good.test"))


def test_openssl_verifies_strictly(authority: Authority, tmp_path: Path) -> None:
    """Another implementation, with all checks on."""
    from cryptography.hazmat.primitives.serialization import Encoding

    (tmp_path / "root.pem").write_bytes(authority.ca_pem)
    for host in ("api.good.test", LONG):
        (tmp_path / "leaf.pem").write_bytes(authority.leaf_for(host).public_bytes(Encoding.PEM))
        command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", host]
        done = subprocess.run(
            [*command, "-CAfile", tmp_path / "root.pem", tmp_path / "leaf.pem"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_ca(tmp_path: Path) -> None:
    authority = Authority.load_or_create(tmp_path / "ca", clock=lambda: NOW)
    certificate = x509.load_pem_x509_certificate(authority.ca_pem)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert certificate.public_key().curve.name == "secp256r1"
    assert isinstance(certificate.signature_hash_algorithm, hashes.SHA256)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    for oid in (ExtensionOID.SUBJECT_KEY_IDENTIFIER, ExtensionOID.AUTHORITY_KEY_IDENTIFIER):
        assert not certificate.extensions.get_extension_for_oid(oid).critical
    assert certificate.not_valid_before_utc == NOW - datetime.timedelta(days=2)
    assert certificate.not_valid_after_utc == NOW + datetime.timedelta(days=3650)


def test_a_leaf(tmp_path: Path) -> None:
    authority = Authority.load_or_create(tmp_path / "ca", clock=lambda: NOW)
    root = x509.load_pem_x509_certificate(authority.ca_pem)
    leaf = authority.leaf_for("api.good.test")
    leaf.verify_directly_issued_by(root)
    assert leaf.public_key() != root.public_key()
    assert leaf.public_key() == authority.leaf_for("other.test").public_key()
    assert leaf.serial_number != authority.leaf_for("api.good.test").serial_number
    span = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    assert span <= datetime.timedelta(days=397)
    assert leaf.not_valid_before_utc <= NOW - datetime.timedelta(days=2)
    assert leaf.not_valid_after_utc <= root.not_valid_after_utc
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert leaf.extensions.get_extension_for_class(x509.KeyUsage).critical
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["api.good.test"]


def test_a_long_name_stands_in_the_san_alone(authority: Authority) -> None:
    leaf = authority.leaf_for(LONG)
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME) == []
    san = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert san.critical  # RFC 5280 4.2.1.6, the subject being empty
    assert san.value.get_values_for_type(x509.DNSName) == [LONG]


@pytest.mark.parametrize("host", ["", "a" * 254, "a b", "fu\u00df.example", "a\x00b"])
def test_what_no_certificate_can_hold(authority: Authority, host: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        authority.leaf_for(host)


def test_alpn_is_chosen_in_our_order(authority: Authority) -> None:
    client = trusting(authority)
    client.set_alpn_protocols(["http/1.1", "h2"])
    both = authority.context_for("api.good.test", ("h2", "http/1.1"))
    assert handshake(authority, "api.good.test", client, context=both) == "h2"
    assert handshake(authority, "api.good.test", client) == "http/1.1"
    client.set_alpn_protocols(["spdy/1"])
    assert handshake(authority, "api.good.test", client) == ""


def test_contexts_are_kept_and_bounded(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ca, "CACHE_SIZE", 4)
    first = authority.context_for("host0.test")
    assert authority.context_for("host0.test") is first
    for n in range(10):
        authority.context_for(f"host{n}.test")
        authority.context_for("host0.test")
    assert len(authority._contexts) == 4
    assert authority.context_for("host0.test") is first  # the one in use stays


def test_an_old_leaf_is_signed_anew(tmp_path: Path) -> None:
    now = [NOW]
    authority = Authority.load_or_create(tmp_path / "ca", clock=lambda: now[0])
    first = authority.context_for("api.good.test")
    now[0] += datetime.timedelta(days=300)
    assert authority.context_for("api.good.test") is first
    now[0] += datetime.timedelta(days=95)
    assert authority.context_for("api.good.test") is not first


def test_the_key_is_private_and_stays(tmp_path: Path) -> None:
    first = Authority.load_or_create(tmp_path / "ca")
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca").stat().st_mode & 0o777 == 0o700
    again = Authority.load_or_create(tmp_path / "ca")
    assert again.ca_pem == first.ca_pem
    assert again.leaf_for("a.test").public_key() != first.leaf_for("a.test").public_key()  # the leaf key is not stored
    assert "PRIVATE" not in repr(first)


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
def test_a_file_that_others_may_read(tmp_path: Path, name: str) -> None:
    Authority.load_or_create(tmp_path / "ca")
    (tmp_path / "ca" / name).chmod(0o644)
    with pytest.raises(PlaceError, match="wrong_mode"):
        Authority.load_or_create(tmp_path / "ca")


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
def test_a_missing_half(tmp_path: Path, name: str) -> None:
    Authority.load_or_create(tmp_path / "ca")
    (tmp_path / "ca" / name).unlink()
    with pytest.raises(AuthorityError, match="ca_unusable") as caught:
        Authority.load_or_create(tmp_path / "ca")
    assert "move" in caught.value.hint


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
def test_a_damaged_file(tmp_path: Path, name: str) -> None:
    Authority.load_or_create(tmp_path / "ca")
    (tmp_path / "ca" / name).write_bytes(b"nothing")
    with pytest.raises(AuthorityError, match="PEM"):
        Authority.load_or_create(tmp_path / "ca")


def test_halves_of_two_authorities(tmp_path: Path) -> None:
    Authority.load_or_create(tmp_path / "a")
    Authority.load_or_create(tmp_path / "b")
    os.replace(tmp_path / "b" / "ca.pem", tmp_path / "a" / "ca.pem")
    with pytest.raises(AuthorityError, match="another key"):
        Authority.load_or_create(tmp_path / "a")


def test_an_authority_that_has_ended(tmp_path: Path) -> None:
    Authority.load_or_create(tmp_path / "ca", clock=lambda: NOW)
    later = NOW + datetime.timedelta(days=3651)
    with pytest.raises(AuthorityError, match="ended on"):
        Authority.load_or_create(tmp_path / "ca", clock=lambda: later)


def test_a_leaf_never_outlives_its_authority(tmp_path: Path) -> None:
    now = [NOW]
    authority = Authority.load_or_create(tmp_path / "ca", clock=lambda: now[0])
    now[0] += datetime.timedelta(days=3600)
    root = x509.load_pem_x509_certificate(authority.ca_pem)
    assert authority.leaf_for("a.test").not_valid_after_utc == root.not_valid_after_utc
