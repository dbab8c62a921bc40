"""One chain of refresh tokens: used one at a time, across mints and runs; the next one kept before anything else.

Order: note that the token goes out, send it, keep the one that came back, note that it is kept; then the access token
may be used. A crash in between leaves the note, and the next use stops and says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from credgate.minting import forms
from credgate.minting.calls import CallFailed
from credgate.minting.forms import Answered, Grant, Unusable
from credgate.minting.journal import Journal
from credgate.secretvalue import Secret, SecretUnavailable
from rules.sources import SecretRule

if TYPE_CHECKING:
    from credgate.vault import Vault

type Ask = Callable[[str], Awaitable[Answered]]


@dataclass(slots=True, kw_only=True)
class Chain:
    """`ref` is the place of the keyring, "SERVICE/NAME". Not thread-safe."""

    vault: "Vault"
    ref: str
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unkept: tuple[Secret, str] | None = field(default=None, repr=False)  # the token used, and the next one

    async def refresh(self, rule: SecretRule, env: Mapping[str, str], ask: Ask, *, rotates: bool) -> Grant:
        """Use the chain's token once. Raises SecretUnavailable, CallFailed, Unusable, PlaceError.

        Only an answer that came whole tells what the provider did: after any other end of a call that was sent, this
        and every later use is refused until a new token was set.
        """
        async with self._lock:
            await self._keep_what_is_unkept(rule)
            used = await self.vault.fetch(rule, env)
            if not rotates:
                return forms.granted(await ask(used.reveal()))
            journal = Journal(places=self.vault.places, ref=self.ref)
            if await asyncio.to_thread(journal.is_uncertain, used.reveal()):
                raise _uncertain(rule)
            await asyncio.to_thread(journal.begin, used.reveal())
            answer = await self._sent(journal, ask, used)
            try:
                grant = forms.granted(answer)
            except Unusable as error:
                if 200 <= answer.status < 300:  # it may hold the next token in a shape that is not understood
                    raise
                await asyncio.to_thread(journal.settle)
                raise _refused(rule, answer, error) from error
            if grant.refresh and grant.refresh != used.reveal():
                self._unkept = (used, grant.refresh)
                await self._keep_what_is_unkept(rule)
            await asyncio.to_thread(journal.settle)
            return grant

    async def _sent(self, journal: Journal, ask: Ask, used: Secret) -> Answered:
        try:
            return await ask(used.reveal())
        except CallFailed as error:
            if not error.sent:
                await asyncio.to_thread(journal.settle)
            raise

    async def _keep_what_is_unkept(self, rule: SecretRule) -> None:
        """Write the next token where the one before it is, unless another was set there meanwhile: that one counts.

        Where the write fails the token is still here, and the next use tries it again first.
        """
        if self._unkept is None:
            return
        used, following = self._unkept
        await self.vault.swap(rule, used, following)
        await asyncio.to_thread(Journal(places=self.vault.places, ref=self.ref).settle)
        self._unkept = None


def _uncertain(rule: SecretRule) -> SecretUnavailable:
    name = rule.ref.rpartition("/")[2]
    return SecretUnavailable(
        "refresh_uncertain",
        f"secret {rule.name!r}: its refresh token was sent, and whether the provider replaced it is not known",
        f"sign in anew, then: credgate secret set {name}; setting the same token again tries it once more",
    )


def _refused(rule: SecretRule, answer: Answered, error: Unusable) -> SecretUnavailable:
    hint = "try again later" if answer.status >= 500 or answer.status == 429 else "sign in anew, and set the new token"
    return SecretUnavailable("mint_refused", f"secret {rule.name!r}: the provider gave no token: {error}", hint)
