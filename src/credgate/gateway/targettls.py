"""TLS towards the targets of the strict lane, by the rules of `upstream`, which is pyOpenSSL's for mitmproxy's layers:
the system's roots and an endpoint's own, never our CA; verification is never off.
"""

import asyncio
import hashlib
import os
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from credgate.errors import CredgateError
from credgate.gateway.clientcert import Identity
from credgate.memoryfile import in_memory
from rules.policy import Endpoint

_MAX_CONTEXTS = 256
_MAX_WARM = 8  # contexts that are made ahead of a run's requests
CA_HINT = "see `ca` of the endpoint in the policy"

type Stamp = tuple[str, int, int, int]
type _Key = tuple[Stamp, Stamp, Identity | None]


def stamp(file: str) -> Stamp:
    """What changes when a file of certificates does: a renewed CA counts from the next connection on.

    Raises CredgateError where it can't be found. "" stands for no file.
    """
    if not file:
        return ("", 0, 0, 0)
    try:
        found = os.stat(file)  # noqa: PTH116 - for each connection: no object for it
    except OSError as error:
        raise CredgateError("ca_unusable", f"CA file {file}: {error.strerror}", CA_HINT) from error
    return (file, found.st_ino, found.st_mtime_ns, found.st_size)


class TargetTls:
    """Keeps one context for each extra CA file and client certificate. Not thread-safe: lives on the daemon's loop."""

    def __init__(self, bundle: Path) -> None:
        """`bundle` is the system's."""
        self._bundle = str(bundle)
        self._contexts: OrderedDict[_Key, ssl.SSLContext] = OrderedDict()
        self._making: dict[_Key, asyncio.Task[ssl.SSLContext]] = {}

    async def context(self, endpoint: Endpoint, client: Identity | None = None) -> ssl.SSLContext:
        """What a connection to a target of this endpoint is made with. Raises CredgateError.

        A new one reads the system's roots, which takes OpenSSL a tenth of a second: others go on meanwhile.
        """
        key = (stamp(self._bundle), stamp(endpoint.ca), client)
        context = self._contexts.get(key)
        if context is not None:
            return context
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.get_running_loop().create_task(self._make(key, endpoint.ca, client))
        return await asyncio.shield(making)  # others may wait for it who are still there

    async def _make(self, key: _Key, ca: str, client: Identity | None) -> ssl.SSLContext:
        try:
            context = self._contexts[key] = await asyncio.to_thread(self._build, ca, client)
        finally:
            del self._making[key]
        if len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.popitem(last=False)
        return context

    async def warm(self, endpoints: Iterable[Endpoint]) -> None:
        """Have the contexts ready that first requests would wait for, one after the other.

        A CA file that is no good is told to the request that needs it. Who shows a client certificate waits for it.
        """
        by_file = {endpoint.ca: endpoint for endpoint in endpoints if endpoint.tls}
        for endpoint in islice(by_file.values(), _MAX_WARM):
            with suppress(CredgateError):
                await self.context(endpoint)

    def _build(self, ca: str, client: Identity | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chain and name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION
        # RFC 9525: the subject's common name is no identity; that a wildcard is a whole label is ssl's default
        context.hostname_checks_common_name = False
        context.set_alpn_protocols(["http/1.1"])
        for file in (self._bundle, ca):
            if file:
                _load(context, file)
        if client is not None:
            _show(context, client)
        return context


def pinned(tls: ssl.SSLObject | None, wanted: frozenset[bytes]) -> bool:
    """Whether one of the wanted keys is in the verified chain, or none is wanted. Asked before a byte is sent."""
    if not wanted:
        return True
    if tls is None:
        return False
    return any(_key_of(certificate) in wanted for certificate in _verified(tls))


def _verified(tls: ssl.SSLObject) -> list[bytes]:
    """The chain, DER. Public from Python 3.13 on; before, the object beneath has it."""
    if hasattr(tls, "get_verified_chain"):
        return list(tls.get_verified_chain())
    return [one.public_bytes(2) for one in vars(tls)["_sslobj"].get_verified_chain()]  # 2: DER


def _key_of(certificate: bytes) -> bytes:
    public = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def _load(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise CredgateError("ca_unusable", f"CA file {file}: not a readable PEM bundle", CA_HINT) from error


def _show(context: ssl.SSLContext, client: Identity) -> None:
    """Have connections show a certificate where the target asks. Its key is sealed while it stands in a file."""
    word = secrets.token_bytes(32).hex()
    with in_memory(client.sealed(word.encode())) as path:
        context.load_cert_chain(path, password=word)
