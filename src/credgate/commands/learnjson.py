"""`policy learn --json`."""

from collections.abc import Sequence

from credgate.policyfile import Effective
from credgate.refusals import Refusals
from rules.asked import Asked, Learned, Proposal, Told
from rules.learn_toml import header, snippet


def to_json(
    refusals: Refusals, here: Effective, learned: Learned, taken: Sequence[int], written: str
) -> dict[str, object]:
    """The document. `taken`: numbers of the proposals, from 1; `written`: the file, "" for none."""
    start = refusals.start or {}
    numbered = enumerate(learned.proposals, start=1)
    return {
        "run": refusals.run,
        "role": here.role,
        "program": start.get("program"),
        "policy": str(here.path),
        "policy_sha256": here.policy.sha256,
        "policy_of_run": start.get("policy_sha256"),
        "refused": refusals.count,
        "beyond": refusals.beyond,
        "damaged": refusals.damaged,
        "proposals": [_proposal_json(n, p, taken=n in taken) for n, p in numbered],
        "not_proposed": [_told_json(each) for each in learned.told],
        "allowed_now": [_asked_json(each) for each in learned.passing],
        "looked_up": [{"host": each.host, "count": each.count} for each in refusals.names],
        "written": written or None,
    }


def _proposal_json(number: int, proposal: Proposal, *, taken: bool) -> dict[str, object]:
    return {
        "number": number,
        "taken": taken,
        "endpoint": proposal.endpoint,
        "new": proposal.new,
        "id": proposal.id,
        "methods": list(proposal.methods),
        "paths": [proposal.path],
        "query": list(proposal.query),
        "encoded_slash": proposal.encoded_slash,
        "count": proposal.count,
        "asked": [_asked_json(each) for each in proposal.asked],
        "notes": list(proposal.notes),
        "toml": "\n".join([*(header(proposal) if proposal.new else []), *snippet(proposal)]),
    }


def _told_json(told: Told) -> dict[str, object]:
    return {"path": told.path, "why": told.why, "count": told.count, "asked": [_asked_json(a) for a in told.asked]}


def _asked_json(asked: Asked) -> dict[str, object]:
    return {
        "reason": asked.reason,
        "method": asked.method,
        "scheme": asked.scheme,
        "host": asked.host,
        "port": asked.port,
        "path": asked.path,
        "query_names": sorted(asked.query),
        "count": asked.count,
        "first": asked.first,
        "last": asked.last,
        "rule": asked.rule or None,
    }
