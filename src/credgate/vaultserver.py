"""HashiCorp Vault and OpenBao: KV (both versions) and leased secrets, by their HTTP API, through the pinned dialler.

Facts: openbao.org/api-docs (secret/kv/kv-v2, auth/approle, system/leases); HashiCorp Vault has the same paths.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from credgate.commandsource import MAX_LIFETIME, usable
from credgate.errors import CredgateError
from credgate.kept import Kept, boottime
from credgate.known import KnownValues
from credgate.minting.calls import CallFailed, Calls, Purpose
from credgate.minting.forms import Answered, Asked
from credgate.secretvalue import Secret, SecretUnavailable
from rules.sources import SecretRule, SourceKind, VaultPlace, VaultServer

log = logging.getLogger(__name__)

REVOKE = 8.0  # seconds that the end of the daemon waits for leases to be taken back
_JSON = (b"content-type", b"application/json")
_CODES = {
    400: ("vault_refused", "see the path: of KV version 2 it has data/ behind the mount, as in secret/data/github"),
    403: ("vault_denied", "see the token's policies, and whether it has ended"),
    404: ("vault_not_found", "see the path: of KV version 2 it has data/ behind the mount, as in secret/data/github"),
    429: ("vault_busy", "it limits how often it is asked: keep = ... asks less often"),
    472: ("vault_standby", "name the active server"),
    473: ("vault_standby", "name the active server"),
    503: ("vault_sealed", "unseal it"),
}

type Fetch = Callable[[SecretRule, Mapping[str, str]], Awaitable[Secret]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a path answered: its fields, and the lease that they end with, "" for none."""

    server: VaultServer
    token: str = field(repr=False)
    data: Mapping[str, object] = field(repr=False)
    lease: str = ""


class VaultServers:
    """Not thread-safe: it lives on the daemon's loop. `fetch` gets the token's own value; `known` hears of tokens."""

    def __init__(self, calls: Calls, fetch: Fetch, known: KnownValues, clock: Callable[[], float] = boottime) -> None:
        self._calls, self._fetch, self._known = calls, fetch, known
        self._reads: Kept[_Read] = Kept(clock)
        self._logins: Kept[str] = Kept(clock)

    async def read(self, rule: SecretRule, env: Mapping[str, str]) -> Secret:
        """Return the value of a secret with source = "vault:...". Raises SecretUnavailable, LedgerError.

        Several fields of one leased path come from one lease: a user name goes with its password.
        """
        place = rule.terms
        if not isinstance(place, VaultPlace) or place.server is None:
            raise TypeError(f"secret {rule.name!r}: not of a vault")
        server, ask = place.server, _Ask(rule=rule, env=env)
        token = await self._token(server, ask)
        try:
            read = await self._read(server, place.path, token, ask)
        except SecretUnavailable as error:
            if error.code != "vault_denied" or server.role_id == "":
                raise
            self._logins.drop(_login_key(server, env))  # revoked before its end, perhaps
            token = await self._token(server, ask)
            read = await self._read(server, place.path, token, ask)
        value = read.data.get(place.field)
        if not isinstance(value, str):
            detail = f"{place.path} has no text field {place.field!r}"
            raise _unavailable(rule, "vault_field", detail, f"its fields: {', '.join(sorted(read.data)[:16])}")
        return Secret(rule.name, value)

    async def _token(self, server: VaultServer, ask: "_Ask") -> str:
        if server.token is not None:
            token = (await self._fetch(server.token, ask.env)).reveal()
        else:
            token = await self._logins.get(_login_key(server, ask.env), lambda: self._login(server, ask))
        self._known.add(f"vault.{server.name}", token)
        return token

    async def _login(self, server: VaultServer, ask: "_Ask") -> tuple[str, float]:
        if server.secret_id is None:
            raise TypeError(f"vault {server.name!r}: no credential")
        secret = await self._fetch(server.secret_id, ask.env)
        self._known.add(f"vault.{server.name}", secret.reveal())
        body = json.dumps({"role_id": server.role_id, "secret_id": secret.reveal()}).encode()
        answer = await self._call(server, f"auth/{server.mount}/login", ask, body=body)
        auth = answer.get("auth")
        token = auth.get("client_token") if isinstance(auth, dict) else None
        if not isinstance(auth, dict) or not isinstance(token, str) or not token:
            raise _unavailable(ask.rule, "vault_invalid", "the login gave no token", "is it an AppRole's mount?")
        return token, usable(_seconds(auth.get("lease_duration")))

    async def _read(self, server: VaultServer, path: str, token: str, ask: "_Ask") -> _Read:
        # by `keep` too: a secret that is to be asked for each time is not answered from another one's keeping
        key = (server, path, hashlib.sha256(token.encode()).digest(), ask.rule.keep)

        async def fetch() -> tuple[_Read, float]:
            answer = await self._call(server, path, ask, token=token)
            data, lease = _data(ask.rule, answer), answer.get("lease_id")
            seconds = _seconds(answer.get("lease_duration"))
            if isinstance(lease, str) and lease and seconds:
                return _Read(server=server, token=token, data=data, lease=lease), usable(seconds)
            return _Read(server=server, token=token, data=data), ask.rule.keep

        return await self._reads.get(key, fetch)

    async def _call(
        self, server: VaultServer, path: str, ask: "_Ask", *, token: str = "", body: bytes = b""
    ) -> dict[str, object]:
        fields = [(b"x-vault-request", b"true"), (b"accept", b"application/json")]
        fields += [(b"x-vault-token", token.encode())] if token else []
        fields += [(b"x-vault-namespace", server.namespace.encode())] if server.namespace else []
        fields += [_JSON] if body else []
        asked = Asked(method="POST" if body else "GET", path=f"/v1/{path}", fields=tuple(fields), body=body)
        purpose = Purpose(run=None, mint=server.name, secret=ask.rule.name, what="vault")
        proxy = None if server.proxy_secret is None else await self._fetch(server.proxy_secret, ask.env)
        try:
            answer = await self._calls.call(purpose, server.endpoint, asked, proxy)
        except CallFailed as error:
            raise _unavailable(
                ask.rule, "vault_unreachable", str(error), f"see endpoint {server.endpoint.name}"
            ) from error
        return _document(ask.rule, answer)

    async def close(self) -> None:
        """Take back what is leased. Never raises for a server's fault: a lease ends by itself."""
        leased = [read for read in self._reads.values() if read.lease]
        with suppress(TimeoutError):
            async with asyncio.timeout(REVOKE), asyncio.TaskGroup() as tasks:
                for read in leased:
                    tasks.create_task(self._revoke(read))

    async def _revoke(self, read: _Read) -> None:
        ask = _Ask(rule=SecretRule(name=f"vault.{read.server.name}", kind=SourceKind.VAULT, ref=""), env={})
        body = json.dumps({"lease_id": read.lease}).encode()
        try:
            await self._call(read.server, "sys/leases/revoke", ask, token=read.token, body=body)
        except CredgateError as error:
            log.error("vault %s: a lease was not taken back: %s", read.server.name, error.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """For which secret, and in whose environment."""

    rule: SecretRule
    env: Mapping[str, str] = field(repr=False)


def _login_key(server: VaultServer, env: Mapping[str, str]) -> tuple[VaultServer, str]:
    rule = server.secret_id
    return server, env.get(rule.ref, "") if rule is not None and rule.kind is SourceKind.ENV else ""


def _data(rule: SecretRule, answer: Mapping[str, object]) -> Mapping[str, object]:
    """The fields. KV version 2 has them one level deeper, beside the version's metadata."""
    data = answer.get("data")
    if not isinstance(data, dict):
        raise _unavailable(rule, "vault_invalid", "an answer without data", "is the path one that can be read?")
    inner = data.get("data")
    if isinstance(data.get("metadata"), dict) and (isinstance(inner, dict) or inner is None):
        if inner is None:
            raise _unavailable(rule, "vault_not_found", "the newest version was deleted", "write a new one")
        return inner
    return data


def _document(rule: SecretRule, answer: Answered) -> dict[str, object]:
    if answer.status == 204:
        return {}
    if not 200 <= answer.status < 300:
        code, hint = _CODES.get(answer.status, ("vault_failed", "see the server's own log"))
        raise _unavailable(rule, code, f"status {answer.status}", hint)
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _unavailable(rule, "vault_invalid", "an answer that is no JSON", "is it a Vault?") from None
    if not isinstance(document, dict):
        raise _unavailable(rule, "vault_invalid", "an answer that is no object", "is it a Vault?")
    return document


def _seconds(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return min(float(value), MAX_LIFETIME) if good and isinstance(value, int | float) else 0.0


def _unavailable(rule: SecretRule, code: str, why: str, hint: str) -> SecretUnavailable:
    return SecretUnavailable(code, f"secret {rule.name!r}: vault:{rule.ref}: {why}", hint)
