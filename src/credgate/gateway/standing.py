"""What a run and the runs above it may do at this moment: revocation, pause, and the bounds of rules.grants.

Counters are kept in the Run alone. Nothing has to be rebuilt from the ledger after a crash of the daemon: the jail
dies with it, and the next run has counters of its own.
"""

from credgate.gateway.refusal import deny
from credgate.runs import Run, now
from rules.grants import Spent, Use, send, spend
from rules.reasons import Reason
from rules.request import Request
from rules.verdict import Allow, Deny


def closed(run: Run, allow: Allow | None = None) -> Deny | None:
    """Whether everything of the run is refused, or what `allow` needs."""
    if not run.proof:
        return deny(Reason.PROOF_MISSING)
    names = frozenset() if allow is None else frozenset(binding.name for binding in allow.bindings)
    for level in run.levels():
        if level.revoked or not names.isdisjoint(level.revoked_bindings):
            return deny(Reason.REVOKED)
        if level.paused:
            return deny(Reason.PAUSED)
    return None


def may(run: Run, allow: Allow, request: Request) -> Deny | None:
    """Whether a request that the rules allow is within every bound now. Nothing is spent."""
    refused = closed(run, allow)
    if refused is not None:
        return refused
    spent = _spend(run, allow, request)
    return spent if isinstance(spent, Deny) else None


def charge(run: Run, allow: Allow, request: Request) -> Deny | None:
    """Spend what the request costs, at each level, or at none where one of them refuses."""
    spent = _spend(run, allow, request)
    if isinstance(spent, Deny):
        return spent
    _keep(run, spent)
    return None


def sent(run: Run, size: int) -> Deny | None:
    """Spend `size` bytes of a body at each level; Deny where they may not go out."""
    found: list[Spent] = []
    for level in run.levels():
        spent = send(level.spent, level.role_rule, size)
        if isinstance(spent, Deny):
            return spent
        found.append(spent)
    _keep(run, found)
    return None


def _spend(run: Run, allow: Allow, request: Request) -> list[Spent] | Deny:
    use = Use(bindings=allow.bindings, head=_head(request), promised=_promised(request))
    found: list[Spent] = []
    at = now()
    for level in run.levels():
        spent = spend(level.spent, level.role_rule, use, at)
        if isinstance(spent, Deny):
            return spent
        found.append(spent)
    return found


def _keep(run: Run, found: list[Spent]) -> None:
    for level, spent in zip(run.levels(), found, strict=True):
        level.spent = spent


def _head(request: Request) -> int:
    """Bytes of the head as the client wrote it: path and headers carry data out as a body does."""
    return len(request.method) + len(request.target) + sum(len(n) + len(v) + 4 for n, v in request.headers)


def _promised(request: Request) -> int:
    lengths = [value for name, value in request.headers if name.lower() == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else 0
