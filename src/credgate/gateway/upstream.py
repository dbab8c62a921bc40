"""TLS towards the targets: the system's roots and an endpoint's own, never our CA; verification is never off."""

import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL
from OpenSSL.crypto import X509

from credgate.errors import CredgateError
from credgate.gateway.clientcert import Identity
from credgate.gateway.targettls import CA_HINT, Stamp, TargetTls, stamp
from credgate.trust import BUNDLES
from rules.policy import Endpoint

_MAX_CONTEXTS = 256


type _Key = tuple[Stamp, Stamp, bytes, bool, Identity | None]


class UpstreamTls:
    """Keeps one context for each extra CA file and protocol. Not thread-safe: it lives on the daemon's loop."""

    def __init__(self, bundle: Path | None = None) -> None:
        """Take the system's bundle. Raises CredgateError where there is none: nothing could be verified then."""
        found = bundle or next((Path(name) for name in BUNDLES if Path(name).is_file()), None)
        if found is None:
            raise CredgateError(
                "no_trust_store", f"no CA bundle at any of {', '.join(BUNDLES)}", "install the ca-certificates package"
            )
        self._bundle = found
        self.targets = TargetTls(found)  # the same for the strict lane
        self._contexts: OrderedDict[_Key, SSL.Context] = OrderedDict()

    @property
    def bundle(self) -> Path:
        """The system's bundle."""
        return self._bundle

    def connection(self, endpoint: Endpoint, host: str, alpn: bytes, client: Identity | None = None) -> SSL.Connection:
        """Start a client side that asks for `host` and takes a certificate for `host` only. Raises CredgateError."""
        connection = SSL.Connection(self._context(endpoint.ca, alpn, bool(endpoint.spki), client))
        connection.set_app_data(_Keys(endpoint.spki))
        name = host.encode("ascii")
        connection.set_tlsext_host_name(name)
        # pyOpenSSL has no public call for host names
        lib: Any = vars(SSL)["_lib"]
        param = lib.SSL_get0_param(vars(connection)["_ssl"])
        # RFC 9525: the subject's common name is no identity, and a wildcard is a whole label
        flags = lib.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | lib.X509_CHECK_FLAG_NEVER_CHECK_SUBJECT
        lib.X509_VERIFY_PARAM_set_hostflags(param, flags)
        if lib.X509_VERIFY_PARAM_set1_host(param, name, len(name)) != 1:
            raise CredgateError("tls_setup", "OpenSSL refused the name to verify")
        connection.set_connect_state()
        return connection

    def _context(self, ca: str, alpn: bytes, keys: bool, client: Identity | None) -> SSL.Context:
        key = (stamp(str(self._bundle)), stamp(ca), alpn, keys, client)
        context = self._contexts.get(key)
        if context is None:
            context = self._build(ca, alpn, keys)
            if client is not None:
                client.put_into(context)
            self._contexts[key] = context
            if len(self._contexts) > _MAX_CONTEXTS:
                self._contexts.popitem(last=False)
        return context

    def _build(self, ca: str, alpn: bytes, keys: bool) -> SSL.Context:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_options(SSL.OP_NO_COMPRESSION)
        context.set_verify(SSL.VERIFY_PEER, _check_keys if keys else None)
        for file in (str(self._bundle), ca):
            if file:
                _load(context, file)
        context.set_alpn_protos([alpn])
        return context


class _Keys:
    """Which keys one connection asks for, and whether one of them was seen."""

    __slots__ = ("seen", "wanted")

    def __init__(self, wanted: frozenset[bytes]) -> None:
        self.wanted = wanted
        self.seen = False


def _check_keys(connection: SSL.Connection, certificate: X509, _error: int, depth: int, good: int) -> bool:
    """OpenSSL asks for each certificate of the verified chain, from the root down, and says whether it was good.

    The leaf comes last: then one of the pinned keys must have been there. False ends the handshake.
    """
    keys: _Keys = connection.get_app_data()
    public = certificate.to_cryptography().public_key()
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    keys.seen = keys.seen or hashlib.sha256(spki).digest() in keys.wanted
    return bool(good) and (depth > 0 or keys.seen)


def _load(context: SSL.Context, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except SSL.Error as error:
        raise CredgateError("ca_unusable", f"CA file {file}: not a readable PEM bundle", CA_HINT) from error
