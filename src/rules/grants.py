"""What a run may still do: ttl, uses and rates of its bindings, deadline and budget of its role. State in, state out.

Times are whole nanoseconds of one clock that never goes back. Nothing is spent by a request that is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rules.policy import Binding, Rate, Role
from rules.reasons import Reason
from rules.verdict import Deny

__all__ = ["Spent", "Use", "send", "spend"]

SECOND = 10**9

type Bucket = tuple[str, Rate]  # a binding's name and one of its rates: another rate is another bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one run has used up. `full`: when a bucket will be full again, in nanoseconds times its rate's count."""

    started: int
    requests: int = 0
    bytes_out: int = 0
    uses: Mapping[str, int] = field(default_factory=dict)
    full: Mapping[Bucket, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One request: the bindings it is allowed with, the bytes of its head, and the length that its body promises."""

    bindings: tuple[Binding, ...] = ()
    head: int = 0
    promised: int = 0


def spend(spent: Spent, role: Role, use: Use, now: int) -> Spent | Deny:
    """What is spent once this request goes out, or why it may not. Its body is counted by `send`, as it goes."""
    checks = (_expired(spent, role, use, now), _over_budget(spent, role, use), _used_up(spent, use))
    refused = next((found for found in checks if found is not None), None)
    if refused is not None:
        return refused
    full = dict(spent.full)
    for binding in use.bindings:
        for rate in binding.rates:
            when = _take(full.get((binding.name, rate), 0), rate, now)
            if when is None:
                return _rate_exceeded(binding, rate)
            full[binding.name, rate] = when
    return replace(
        spent,
        requests=spent.requests + 1,
        bytes_out=spent.bytes_out + use.head,
        uses={**spent.uses, **{b.name: spent.uses.get(b.name, 0) + 1 for b in use.bindings}},
        full=full,
    )


def send(spent: Spent, role: Role, size: int) -> Spent | Deny:
    """What is spent once `size` more bytes of a body have gone out, or why they may not."""
    limit = role.budget.bytes_out
    if limit is not None and spent.bytes_out + size > limit:
        return _bytes_exhausted(role, limit)
    return replace(spent, bytes_out=spent.bytes_out + size)


def _expired(spent: Spent, role: Role, use: Use, now: int) -> Deny | None:
    age = now - spent.started
    if role.deadline is not None and age >= role.deadline * SECOND:
        return Deny(
            reason=Reason.EXPIRED,
            message="The time of this run is over.",
            hint=f"deadline of role {role.name!r}: {role.deadline} s",
        )
    for binding in use.bindings:
        if binding.ttl is not None and age >= binding.ttl * SECOND:
            return Deny(
                reason=Reason.EXPIRED,
                message="The credential for this request is no longer lent to this run.",
                hint=f"ttl of binding {binding.name!r}: {binding.ttl} s",
            )
    return None


def _over_budget(spent: Spent, role: Role, use: Use) -> Deny | None:
    requests, size = role.budget.requests, role.budget.bytes_out
    if requests is not None and spent.requests >= requests:
        return Deny(
            reason=Reason.BUDGET_EXHAUSTED,
            message="The requests that this run may send are used up.",
            hint=f"budget of role {role.name!r}: requests = {requests}",
        )
    if size is not None and spent.bytes_out + use.head + use.promised > size:
        return _bytes_exhausted(role, size)
    return None


def _bytes_exhausted(role: Role, limit: int) -> Deny:
    return Deny(
        reason=Reason.BUDGET_EXHAUSTED,
        message="The bytes that this run may send are used up.",
        hint=f"budget of role {role.name!r}: bytes_out = {limit} bytes",
    )


def _used_up(spent: Spent, use: Use) -> Deny | None:
    for binding in use.bindings:
        if binding.max_uses is not None and spent.uses.get(binding.name, 0) >= binding.max_uses:
            return Deny(
                reason=Reason.USES_EXHAUSTED,
                message="The uses of the credential for this request are used up in this run.",
                hint=f"max_uses of binding {binding.name!r}: {binding.max_uses}",
            )
    return None


def _take(full: int, rate: Rate, now: int) -> int | None:
    """Take one token: when the bucket is full again then; None where there is none to take.

    The generic cell rate algorithm (ITU-T I.371, annex A): one whole number is the state. Times the count, since the
    time for one token, seconds / count, is no whole number of nanoseconds.
    """
    one = rate.seconds * SECOND
    when = max(full, now * rate.count) + one
    return when if when - now * rate.count <= one * rate.count else None


def _rate_exceeded(binding: Binding, rate: Rate) -> Deny:
    return Deny(
        reason=Reason.RATE_EXCEEDED,
        message="The credential for this request is used too often. Wait before the next one.",
        hint=f"rate of binding {binding.name!r}: {rate.count} in {rate.seconds} s",
    )
