"""What a run and the runs above it may do at this moment: revocation, pause, and the bounds of rules.grants.

Counters are kept in the Run alone. Nothing has to be rebuilt from the ledger after a crash of the daemon: the jail
dies with it, and the next run has counters of its own.
"""

from itertools import chain

from credgate.gateway.refusal import deny
from credgate.runs import Run, now
from rules.grants import Spent, Use, refusal, send, spend
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Allow, Deny


def use_of(allow: Allow, request: Request) -> Use:
    """What a request costs. Its head as the client wrote it: path and headers carry data out as a body does."""
    headers = request.headers
    head = len(request.method) + len(request.target) + 4 * len(headers)
    return Use(
        bindings=allow.bindings,
        head=head + sum(map(len, chain.from_iterable(headers))),
        promised=_promised(request),
    )


def closed(run: Run, use: Use | None = None) -> Deny | None:
    """Whether everything of the run is refused, or what `use` needs."""
    if not run.proof:
        return deny(Reason.PROOF_MISSING)
    if run.above is None and not (run.revoked or run.paused or run.revoked_bindings):
        return None  # as nearly always, and this is asked four times a request
    bindings = () if use is None else use.bindings
    for level in run.levels():
        gone = level.revoked_bindings
        if level.revoked or (gone and any(binding.name in gone for binding in bindings)):
            return deny(Reason.REVOKED)
        if level.paused:
            return deny(Reason.PAUSED)
    return None


def may(run: Run, use: Use) -> Deny | None:
    """Whether a request that the rules allow is within every bound now. Nothing is spent."""
    refused = closed(run, use)
    if refused is not None:
        return refused
    at = now()
    for level in run.levels():
        refused = refusal(level.spent, level.role_rule, use, at)
        if refused is not None:
            return refused
    return None


def charge(run: Run, use: Use) -> Deny | None:
    """Spend what the request costs, at each level, or at none where one of them refuses."""
    at = now()
    if run.above is None:
        spent = spend(run.spent, run.role_rule, use, at)
        if isinstance(spent, Deny):
            return spent
        run.spent = spent
        return None
    return _keep(run, [spend(level.spent, level.role_rule, use, at) for level in run.levels()])


def charge_all(run: Run, use: Use, count: int) -> tuple[int, Deny | None]:
    """As charge, of requests that are alike, in one moment: how many of them may go, and why the next one may not."""
    if run.above is not None:
        return _charged_above(run, use, count)
    at, role, spent = now(), run.role_rule, run.spent
    for done in range(count):
        more = spend(spent, role, use, at)
        if isinstance(more, Deny):
            run.spent = spent
            return done, more
        spent = more
    run.spent = spent
    return count, None


def _charged_above(run: Run, use: Use, count: int) -> tuple[int, Deny | None]:
    for done in range(count):
        refused = charge(run, use)
        if refused is not None:
            return done, refused
    return count, None


def sent(run: Run, size: int) -> Deny | None:
    """Spend `size` bytes of a body at each level; Deny where they may not go out."""
    if not size:
        return None
    return _keep(run, [send(level.spent, level.role_rule, size) for level in run.levels()])


def _keep(run: Run, found: list[Spent | Deny]) -> Deny | None:
    for each in found:
        if isinstance(each, Deny):
            return each
    for level, each in zip(run.levels(), found, strict=True):
        if isinstance(each, Spent):
            level.spent = each
    return None


def _promised(request: Request) -> int:
    lengths = [value for name, value in request.headers if len(name) == 14 and name.lower() == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else 0
