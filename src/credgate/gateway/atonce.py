"""The judgement of a request whose head, way and secrets are all known by now, without a coroutine: as nearly each is.

It says yes, or nothing. Whatever is not plainly allowed `Judge.judge` is asked anew, and finds why; until all has said
yes nothing is spent, written down, or changed in what that would look at.
"""

from credgate.gateway import standing
from credgate.gateway.digests import Digests
from credgate.gateway.exchange import ClientState, Exchange, Key, Target
from credgate.gateway.judge import Judge, at_hand
from credgate.gateway.leaving import Leaving
from credgate.gateway.prepared import Prepared
from credgate.gateway.quoted import Quoted
from credgate.gateway.refusal import deny
from credgate.ledger.record import LedgerError
from credgate.runs import Run
from rules.grants import Use
from rules.reasons import Reason
from rules.request import Wire
from rules.verdict import Deny


def at_once(
    judge: Judge, state: ClientState, exchange: Exchange, wire: Wire, connected: frozenset[Key]
) -> Use | Deny | None:
    """What the request costs, its intent written down: with a secret it may go once that is on the disk. None: nothing
    was done, ask `Judge.judge`.
    """
    run = state.run
    if not judge.is_here or state.closed or exchange.fault is not None:
        return None
    ready = judge.heads.find(run, judge.decoys.others(run), wire)
    if ready is None or ready.shows is not None or standing.closed(run, ready.use) is not None:
        return None
    target = at_hand(state, ready.allow, ready.request, connected, None)
    found = target or judge.dialler.at_once(ready.allow.endpoint, ready.request.host)
    if found is None or not _holds(judge, run, ready):
        return None
    if standing.charge(run, ready.use) is not None:
        return None
    if target is None:
        state.know(found, connected)
    return _entered(judge, state, exchange, wire, ready, found)


def _holds(judge: Judge, run: Run, ready: Prepared) -> bool:
    """Whether what was sent last is what would be sent now. The table of what is searched for is the one that the head
    was found clean by: so these values are in it, or it would be another.
    """
    sent = ready.sent
    if sent is None or ready.allow.body_max or ready.clean is not judge.known.table():
        return False
    for name, secret in sent.secrets.items():
        now = judge.kept(run, name)
        if now is None or (now is not secret and now.reveal() != secret.reveal()):
            return False
    return True


def _entered(
    judge: Judge, state: ClientState, exchange: Exchange, wire: Wire, ready: Prepared, target: Target
) -> Use | Deny:
    sent, table = ready.sent, ready.clean
    if sent is None or table is None:
        raise RuntimeError("sent again before it was sent")
    exchange.request, exchange.path, exchange.allow = ready.request, ready.path, ready.allow
    exchange.asked = ready.asked or exchange.asked
    state.bindings.update(ready.names)
    exchange.target, exchange.pin = target, state.pins.get(target.key, "") or target.first
    exchange.digests = Digests() if target.endpoint.digest else None
    exchange.cred_fp, exchange.query_names = sent.cred_fp, sent.query_names
    if exchange.has_body:
        exchange.leaving = Leaving(table, wire.headers)
        exchange.quoted = Quoted(state.run.decoys) if state.run.decoys else None
    exchange.sent = sent
    names = sent.names
    try:
        exchange.intent_seq = judge.records.intent(state, exchange, tuple(names), tuple(names.values()), sent.marks)
    except LedgerError:
        return deny(Reason.LEDGER_UNAVAILABLE)
    state.exchanges.add(exchange)
    return ready.use
