"""What a run may still do: ttl, uses and rates of its bindings, deadline and budget of its role. State in, state out.

Times are whole nanoseconds of one clock that never goes back. Nothing is spent by a request that is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from rules.policy import Binding, Rate, Role
from rules.reasons import Reason
from rules.verdict import Deny

__all__ = ["Spent", "Use", "refusal", "send", "spend"]

SECOND = 10**9

type Bucket = tuple[str, Rate]  # a binding's name and one of its rates: another rate is another bucket


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one run has used up. `full`: when a bucket will be full again, in nanoseconds times its rate's count."""

    started: int
    requests: int = 0
    bytes_out: int = 0
    uses: Mapping[str, int] = msgspec.field(default_factory=dict)
    full: Mapping[Bucket, int] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One request: the bindings it is allowed with, the bytes of its head, and the length that its body promises."""

    bindings: tuple[Binding, ...] = ()
    head: int = 0
    promised: int = 0


def refusal(spent: Spent, role: Role, use: Use, now: int) -> Deny | None:
    """Why this request may not go out, None where it may. On the path of every request."""
    age = now - spent.started
    if role.deadline is not None and age >= role.deadline * SECOND:
        return _late(role)
    budget = role.budget
    if budget.requests is not None and spent.requests >= budget.requests:
        return _requests_exhausted(role, budget.requests)
    if budget.bytes_out is not None and spent.bytes_out + use.head + use.promised > budget.bytes_out:
        return _bytes_exhausted(role, budget.bytes_out)
    for binding in use.bindings:
        refused = _unlent(spent, binding, age, now)
        if refused is not None:
            return refused
    return None


def spend(spent: Spent, role: Role, use: Use, now: int) -> Spent | Deny:
    """What is spent once this request goes out, or why it may not. Its body is counted by `send`, as it goes."""
    refused = refusal(spent, role, use, now)
    if refused is not None:
        return refused
    uses, full = spent.uses, spent.full
    if use.bindings:
        uses = {**uses, **{b.name: uses.get(b.name, 0) + 1 for b in use.bindings}}
        taken = {
            (b.name, rate): _taken(full.get((b.name, rate), 0), rate, now) for b in use.bindings for rate in b.rates
        }
        full = {**full, **taken} if taken else full
    return Spent(
        started=spent.started,
        requests=spent.requests + 1,
        bytes_out=spent.bytes_out + use.head,
        uses=uses,
        full=full,
    )


def send(spent: Spent, role: Role, size: int) -> Spent | Deny:
    """What is spent once `size` more bytes of a body have gone out, or why they may not."""
    limit = role.budget.bytes_out
    if limit is not None and spent.bytes_out + size > limit:
        return _bytes_exhausted(role, limit)
    return Spent(
        started=spent.started,
        requests=spent.requests,
        bytes_out=spent.bytes_out + size,
        uses=spent.uses,
        full=spent.full,
    )


def _unlent(spent: Spent, binding: Binding, age: int, now: int) -> Deny | None:
    if binding.ttl is not None and age >= binding.ttl * SECOND:
        return Deny(
            reason=Reason.EXPIRED,
            message="The credential for this request is no longer lent to this run.",
            hint=f"ttl of binding {binding.name!r}: {binding.ttl} s",
        )
    if binding.max_uses is not None and spent.uses.get(binding.name, 0) >= binding.max_uses:
        return Deny(
            reason=Reason.USES_EXHAUSTED,
            message="The uses of the credential for this request are used up in this run.",
            hint=f"max_uses of binding {binding.name!r}: {binding.max_uses}",
        )
    for rate in binding.rates:
        full = _taken(spent.full.get((binding.name, rate), 0), rate, now)
        if full - now * rate.count > rate.seconds * SECOND * rate.count:
            return _rate_exceeded(binding, rate)
    return None


def _taken(full: int, rate: Rate, now: int) -> int:
    """When the bucket is full again once a token is taken; later than a whole filling from now: there was none to take.

    The generic cell rate algorithm (ITU-T I.371, annex A): one whole number is the state. Times the count, since the
    time for one token, seconds / count, is no whole number of nanoseconds.
    """
    return max(full, now * rate.count) + rate.seconds * SECOND


def _late(role: Role) -> Deny:
    return Deny(
        reason=Reason.EXPIRED,
        message="The time of this run is over.",
        hint=f"deadline of role {role.name!r}: {role.deadline} s",
    )


def _requests_exhausted(role: Role, limit: int) -> Deny:
    return Deny(
        reason=Reason.BUDGET_EXHAUSTED,
        message="The requests that this run may send are used up.",
        hint=f"budget of role {role.name!r}: requests = {limit}",
    )


def _bytes_exhausted(role: Role, limit: int) -> Deny:
    return Deny(
        reason=Reason.BUDGET_EXHAUSTED,
        message="The bytes that this run may send are used up.",
        hint=f"budget of role {role.name!r}: bytes_out = {limit} bytes",
    )


def _rate_exceeded(binding: Binding, rate: Rate) -> Deny:
    return Deny(
        reason=Reason.RATE_EXCEEDED,
        message="The credential for this request is used too often. Wait before the next one.",
        hint=f"rate of binding {binding.name!r}: {rate.count} in {rate.seconds} s",
    )
