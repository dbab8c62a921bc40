"""Tokens by mint: one call for all who wait, a new one before the old ends, taken back when their run is over."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from credgate.errors import CredgateError
from credgate.known import KnownValues
from credgate.ledger.record import LedgerError
from credgate.minting import forms
from credgate.minting.calls import CallFailed, Calls, Purpose
from credgate.minting.chain import Chain
from credgate.minting.forms import Answered, Asked, Grant, Unusable
from credgate.runs import Run
from credgate.secretvalue import Secret, SecretUnavailable
from rules.mint_refs import endpoint_of, mint_of
from rules.mints import GcpJwt, GcpServiceAccount, GithubApp, Mint, OAuthRefresh
from rules.policy import Endpoint
from rules.sources import SecretRule

if TYPE_CHECKING:
    from credgate.vault import Vault

log = logging.getLogger(__name__)

DOUBT = (
    300.0  # seconds that a token is old before a 401 counts against it: a jail can have as many of those as it likes
)
MARGIN = 60.0  # seconds before its end in which a token counts as over; a tenth of its life where that is less
PAUSE = 1.0  # seconds in which a failure is the answer, and nothing is asked again
REVOKE = 8.0  # seconds that the end of a run waits for its tokens to be taken back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Whose token it is: `run` is "" for one that all runs share. Equal secrets and endpoints, equal tokens."""

    run: str
    mint: Mint
    endpoint: Endpoint | None
    secrets: tuple[SecretRule, ...]


@dataclass(slots=True, kw_only=True)
class _Held:
    """A token, or why there is none; `until` by the minter's clock."""

    run: Run
    until: float
    since: float = 0.0
    token: Secret | None = field(default=None, repr=False)
    failure: CredgateError | None = None


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps, as tokens do


class Minter:
    """Not thread-safe: it lives on the daemon's loop. `clock` measures lifetimes, `wall` dates what is signed."""

    def __init__(
        self,
        *,
        calls: Calls,
        vault: "Vault",
        known: KnownValues,
        clock: Callable[[], float] = _boottime,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._calls, self._vault, self._known = calls, vault, known
        self._clock, self._wall = clock, wall
        self._held: dict[_Place, _Held] = {}
        self._flights: dict[_Place, asyncio.Task[_Held]] = {}
        self._chains: dict[str, Chain] = {}

    async def token(self, run: Run, rule: SecretRule) -> Secret:
        """The token that a minted secret stands for now. Raises SecretUnavailable, LedgerError."""
        mint = mint_of(run.policy, rule)
        if mint is None:
            raise RuntimeError("not a minted secret")
        place = _place(run, mint)
        held = self._held.get(place)
        if held is None or held.until <= self._clock():
            held = await self._flight(place, run)
        if held.token is None:
            raise held.failure or RuntimeError("neither a token nor a failure")
        return Secret(rule.name, held.token.reveal())

    def kept(self, run: Run, rule: SecretRule) -> Secret | None:
        """The token where it is held by now; None where `token` has to be asked."""
        mint = mint_of(run.policy, rule)
        held = None if mint is None else self._held.get(_place(run, mint))
        if held is None or held.token is None or held.until <= self._clock():
            return None
        return Secret(rule.name, held.token.reveal())

    async def _flight(self, place: _Place, run: Run) -> _Held:
        """Join the call that is on its way, or start one. A client that leaves must not break it off half-way."""
        task = self._flights.get(place)
        if task is None:
            # no TaskGroup: it outlives the request that began it, and what it raises is in what it returns
            task = asyncio.get_running_loop().create_task(self._fly(place, run))
            self._flights[place] = task
        return await asyncio.shield(task)

    async def _fly(self, place: _Place, run: Run) -> _Held:
        try:
            held = await self._outcome(place, run)
            if place.run and run.revoked:  # it ended, or was revoked, while the call was on its way
                await self._revoke(place, held)
                return held
            now = self._clock()
            self._held = {known: other for known, other in self._held.items() if other.until > now or known.run}
            self._held[place] = held
            return held
        finally:
            self._flights.pop(place, None)

    async def _outcome(self, place: _Place, run: Run) -> _Held:
        try:
            grant = await self._grant(place, run)
            token = Secret(place.mint.name, grant.token)
        except (CredgateError, CallFailed, Unusable) as error:
            return _Held(run=run, until=self._clock() + PAUSE, failure=_failure(place.mint, error))
        self._known.add(place.mint.name, grant.token)
        margin = min(MARGIN, grant.lifetime / 10)
        now = self._clock()
        return _Held(run=run, until=now + grant.lifetime - margin, since=now, token=token)

    async def _grant(self, place: _Place, run: Run) -> Grant:
        mint = place.mint
        secret = await self._vault.fetch(run.policy.secrets[mint.secret], run.caller_env)
        match mint:
            case GcpJwt():
                return forms.google_token(mint, secret, int(self._wall()))
            case GcpServiceAccount():
                url = f"https://{_host(place.endpoint)}{mint.path}"
                return forms.granted(
                    await self._call(place, run, forms.google_request(mint, secret, url, int(self._wall())))
                )
            case GithubApp():
                return await self._github(place, run, mint, secret)
            case OAuthRefresh():
                return await self._refresh(place, run, mint)
        assert_never(mint)

    async def _github(self, place: _Place, run: Run, mint: GithubApp, secret: Secret) -> Grant:
        now = self._wall()
        answer = await self._call(place, run, forms.github_request(mint, secret, int(now)))
        try:
            return forms.github_granted(mint, answer, now)
        except Unusable:
            if wider := forms.token_in(answer):
                await self._call(place, run, forms.github_revocation(mint, wider), "revoke")
            raise

    async def _refresh(self, place: _Place, run: Run, mint: OAuthRefresh) -> Grant:
        rule = run.policy.secrets[mint.secret]
        client = ""
        if mint.client_secret:
            client = (await self._vault.fetch(run.policy.secrets[mint.client_secret], run.caller_env)).reveal()
        chain = self._chains.setdefault(rule.ref, Chain(vault=self._vault, ref=rule.ref))

        async def ask(refresh: str) -> Answered:
            self._known.add(mint.secret, refresh)
            return await self._call(place, run, forms.refresh_request(mint, refresh, client))

        grant = await chain.refresh(rule, run.caller_env, ask, rotates=mint.rotates)
        if grant.refresh:
            self._known.add(mint.secret, grant.refresh)
        return grant

    async def _call(self, place: _Place, run: Run, asked: Asked, what: str = "mint") -> Answered:
        mint, endpoint = place.mint, place.endpoint
        if endpoint is None:
            raise RuntimeError("a mint without an endpoint makes no calls")
        proxy = None
        if endpoint.proxy is not None and endpoint.proxy.secret:
            proxy = await self._vault.fetch(run.policy.secrets[endpoint.proxy.secret], run.caller_env)
        purpose = Purpose(run=run, mint=mint.name, secret=mint.secret, what=what)
        return await self._calls.call(purpose, endpoint, asked, proxy)

    def doubt(self, run: Run, sent: Mapping[str, Secret]) -> None:
        """The target refused a request with these secrets (401): a token of OAuth among them may have been taken back
        before its time, as by a new sign-in. It is not used again; the next request has another made.
        """
        for name, secret in sent.items():
            mint = mint_of(run.policy, run.policy.secrets[name])
            if not isinstance(mint, OAuthRefresh):
                continue
            place = _place(run, mint)
            held = self._held.get(place)
            old = held is not None and held.since + DOUBT <= self._clock()
            if held is not None and old and held.token is not None and held.token.reveal() == secret.reveal():
                del self._held[place]

    async def end(self, run_id: str) -> None:
        """Forget the tokens of a run, and take those back whose target can. Never raises for a target's fault."""
        flights = [task for place, task in self._flights.items() if place.run == run_id]
        if flights:
            await asyncio.wait(flights, timeout=REVOKE)
        mine = {place: held for place, held in self._held.items() if place.run == run_id}
        for place in mine:
            del self._held[place]
        try:
            async with asyncio.timeout(REVOKE), asyncio.TaskGroup() as tasks:
                for place, held in mine.items():
                    tasks.create_task(self._revoke(place, held))
        except TimeoutError:
            log.error("run %s: tokens were not taken back within %.0f s; they end by themselves", run_id, REVOKE)

    async def drain(self) -> None:
        """Let calls that are on their way come to their end: a refresh token that is replaced has to be kept."""
        if self._flights:
            await asyncio.wait(tuple(self._flights.values()), timeout=self._calls.timeout)

    async def _revoke(self, place: _Place, held: _Held) -> None:
        """Where it fails the ledger says so, and the token ends by itself."""
        asked = None if held.token is None else _revocation(place.mint, held.token.reveal())
        if asked is None or held.until <= self._clock():
            return
        try:
            answer = await self._call(place, held.run, asked, "revoke")
        except (CallFailed, CredgateError) as error:
            log.error("mint %s: a token was not taken back: %s", place.mint.name, error)
        else:
            if answer.status >= 300:
                log.error("mint %s: a token was not taken back: status %d", place.mint.name, answer.status)


def _place(run: Run, mint: Mint) -> _Place:
    secrets = tuple(run.policy.secrets[name] for name in dict.fromkeys((mint.secret,)))
    shared = isinstance(mint, OAuthRefresh | GcpJwt)
    return _Place(run="" if shared else run.id, mint=mint, endpoint=endpoint_of(run.policy, mint), secrets=secrets)


def _revocation(mint: Mint, token: str) -> Asked | None:
    """How to take a token back, None where its target can't."""
    match mint:
        case GithubApp():
            return forms.github_revocation(mint, token)
        case GcpServiceAccount(revoke=path) if path:
            return forms.revocation(path, token)
        case _:
            return None


def _host(endpoint: Endpoint | None) -> str:
    if endpoint is None:
        return ""
    return endpoint.host.text if endpoint.port == 443 else f"{endpoint.host.text}:{endpoint.port}"


def _failure(mint: Mint, error: Exception) -> CredgateError:
    match error:
        case LedgerError() | SecretUnavailable():
            return error
        case CredgateError():
            return SecretUnavailable(error.code, f"mint {mint.name!r}: {error.detail}", error.hint)
        case _:
            return forms.refused(mint.name, str(error))
