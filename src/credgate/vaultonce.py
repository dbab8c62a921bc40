"""`credgate secret test`: ask a vault once, from the user's own command. It is no run's, so no ledger has it."""

import secrets
from collections.abc import Mapping
from typing import Any

from credgate import ownaddresses
from credgate.gateway.capture import Fingerprints
from credgate.gateway.dial import Dialler
from credgate.gateway.pins import Pins
from credgate.gateway.upstream import UpstreamTls
from credgate.known import KnownValues
from credgate.minting.calls import Calls
from credgate.vault import Vault
from credgate.vaultserver import VaultServers
from rules.sources import SecretRule

_TIMEOUT = 10.0  # seconds, of each look-up and connection


class _NoRun:
    """Stands for the ledger of runs."""

    def append(self, _ev: str, _numbered: object = None, /, **_fields: object) -> int:
        """Write nothing."""
        return 0

    async def durable(self, _seq: int) -> None:
        """Wait for nothing."""


async def ask_once(vault: Vault, rule: SecretRule, env: Mapping[str, str]) -> None:
    """See that a secret can be had; a lease is taken back at once. Raises CredgateError."""
    upstream = UpstreamTls()
    dialler = Dialler(
        pins=Pins(ownaddresses.resolve, 0.0),
        own_addresses=ownaddresses.own,
        listeners=frozenset,
        resolve_timeout=_TIMEOUT,
        connect_timeout=_TIMEOUT,
        bundle=str(upstream.bundle),
    )
    key = Fingerprints(key=secrets.token_bytes(32))
    nowhere: Any = _NoRun()  # takes lines as a ledger does, and keeps none
    calls = Calls(ledger=nowhere, dialler=dialler, upstream=upstream, fingerprints=key)
    servers = VaultServers(calls, vault.fetch, KnownValues())
    try:
        await servers.read(rule, env)
    finally:
        await servers.close()
