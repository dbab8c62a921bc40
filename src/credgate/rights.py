"""Rights of live runs taken back, given back after a pause, and read anew from their policy files."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from credgate.children import rights_of
from credgate.errors import CredgateError
from credgate.policyfile import CEILING, Effective, asked_by, check_tree, effective, inside, open_policy
from credgate.policytrust import check_trusted
from credgate.roleneeds import extra_ports, refresh_placeholders
from credgate.session import Session
from jail import fdpass
from resolver.errors import ResolverError
from rules.names import table_for
from rules.policy import Policy

UNKNOWN = 1  # exit status: nothing of that name lives
# What a jail was built with: a reload keeps it as it is and says so.
SHAPE = (
    *("workdir", "tools", "read", "readonly", "hide", "show", "env"),
    *("allow_debug", "allow_userns", "deadline", "limits"),
)


async def revoke(sessions: Mapping[str, Session], name: str, only: str = "") -> fdpass.Json:
    """Take back all rights of the run called `name`, or the binding of that name from every run, or from `only`.

    Raises CredgateError where no live run is called so or has such a binding.
    """
    if name in sessions:
        revoked = [await _revoke_run(session) for session in sessions[name].live()]
    else:
        having = [s for s in sessions.values() if name in s.run.role_rule.bindings and only in ("", *s.lineage())]
        revoked = [await _revoke_binding(session, name) for session in having]
    if not revoked:
        raise CredgateError(
            "unknown", f"no live run is called {name!r} or has a binding of that name", "see `credgate ps`", UNKNOWN
        )
    return {"ok": True, "revoked": revoked}


async def _revoke_run(session: Session) -> fdpass.Json:
    run, parts = session.run, session.parts
    run.revoked = True
    closed = await parts.gateway.cut_all(run, "the run was revoked")  # first: the record can wait, the rights can't
    seq = parts.ledger.append("revoke", run=run.id, role=run.role, count=closed)
    await parts.ledger.durable(seq)
    try:
        await parts.resolver.revoke(run.id)
    except ResolverError as error:
        if error.code != "run_unknown":  # it has only begun, or is at its end: no name is answered then
            raise
    await parts.gateway.take_back(run.id)
    return {"run": run.id, "binding": "", "closed": closed}


async def _revoke_binding(session: Session, name: str) -> fdpass.Json:
    run, parts = session.run, session.parts
    run.revoked_bindings.add(name)
    closed = await parts.gateway.cut_all(run, "the binding was revoked", name)
    seq = parts.ledger.append("revoke", run=run.id, role=run.role, binding=name, count=closed)
    await parts.ledger.durable(seq)
    return {"run": run.id, "binding": name, "closed": closed}


async def resume(sessions: Mapping[str, Session], name: str) -> fdpass.Json:
    """End the pause of a run. Raises CredgateError where there is none."""
    session = sessions.get(name)
    if session is None or not session.run.paused:
        what = "no run" if session is None else "no pause of run"
        raise CredgateError("not_paused", f"{what} {name!r}", "see `credgate ps`", UNKNOWN)
    parts = session.parts
    # First: a run whose resumption the ledger doesn't hold stays paused.
    seq = parts.ledger.append("grant", run=name, role=session.run.role, reason="resumed")
    await parts.ledger.durable(seq)
    session.run.paused = False
    await parts.gateway.told(session.run)
    return {"ok": True, "run": name}


async def reload(sessions: Mapping[str, Session], ceiling: Path = CEILING) -> fdpass.Json:
    """Read the policy of every live run anew, parents before their children. A run whose policy can't be had keeps
    the one it has, and an alarm says why.
    """
    rows = [await _reload(session, ceiling) for session in sorted(sessions.values(), key=lambda s: s.depth)]
    return {"ok": True, "runs": rows}


async def _reload(session: Session, ceiling: Path) -> fdpass.Json:
    run = session.run
    try:
        chosen = await _anew(session, ceiling)
        if run.revoked or _same(chosen.policy, run.policy):  # revoked: it has no rights, or it ended meanwhile
            return {"run": run.id, "changed": False}
        later = tuple(_later(session, chosen.policy))
        await _swap(session, chosen)
    except (CredgateError, ResolverError) as error:
        session.alarms.notify("reload_failed", error.detail)
        if session.above is not None:  # it has rights that its parent may no longer have
            await _revoke_run(session)
        return {"run": run.id, "changed": False, "code": error.code, "error": error.detail, "hint": error.hint}
    return {"run": run.id, "changed": True, "policy_sha256": run.policy.sha256, "later": list(later)}


async def _anew(session: Session, ceiling: Path) -> Effective:
    above, role = session.above, session.run.role
    if above is None:
        return await asyncio.to_thread(read_again, session, ceiling)
    if role not in above.run.policy.roles or role not in above.run.role_rule.children:
        raise CredgateError("role_unknown", f"role {above.run.role!r} no longer lists the child role {role!r}")
    return rights_of(above, role, asyncio.get_running_loop().time())


def read_again(session: Session, ceiling: Path = CEILING) -> Effective:
    """The policy of the same file as it is now. Raises CredgateError as policyfile.effective does."""
    before, spec, state = session.chosen, session.spec, session.parts.places.state
    workdir = Path(spec.workdir)
    found = open_policy(before.path, before.origin)
    found = asked_by(found, session.run.caller_env, session.parts.places, spec.workdir)
    chosen = effective(
        found,
        role=before.role,
        workdir=workdir,
        state_dir=state,
        read_only=not spec.workdir_write,
        ceiling=ceiling,
    )
    if spec.host_written and inside(found.path, workdir):  # this jail can write it, whatever the role says by now
        check_trusted(found.path, found.data, state)
        check_tree(found, chosen.policy)
    return chosen


def _same(one: Policy, other: Policy) -> bool:
    """The same files, and the clients of host_from configured as they were."""
    mine, theirs = ((p.sha256, p.ceiling_sha256, p.registries()) for p in (one, other))
    return mine == theirs


def _later(session: Session, policy: Policy) -> Iterator[str]:
    """What of the new policy this jail can't be given: it counts from the next run on."""
    run = session.run
    old, new = run.role_rule, policy.roles[run.role]
    given = ("env", "deadline") if session.above is not None else ()  # narrowed when the child was opened
    yield from (key for key in SHAPE if key not in given and getattr(old, key) != getattr(new, key))
    if set(extra_ports(policy, run.role)) - session.berth.tcp.keys():
        yield "port"
    if new.children and session.listener is None:
        yield "children"
    for name in new.bindings:
        placeholder = policy.bindings[name].placeholder
        before = run.policy.bindings.get(name)
        if placeholder is not None and (before is None or before.placeholder != placeholder):
            yield f"placeholder of {name}"
    yield from (f"placeholder of {key}" for key in refresh_placeholders(policy, run.role) - run.decoys.keys())


async def _swap(session: Session, chosen: Effective) -> None:
    """The new policy, but for the jail's own shape: on disk in the ledger, then in force, then all connections end."""
    run, parts = session.run, session.parts
    old, new = run.role_rule, chosen.policy.roles[run.role]
    role = replace(new, **{key: getattr(old, key) for key in SHAPE})
    policy = replace(chosen.policy, roles={**chosen.policy.roles, run.role: role})
    detail = f"in place of {run.policy.sha256}"
    seq = parts.ledger.append(
        "grant", run=run.id, role=run.role, reason="reloaded", policy_sha256=policy.sha256, detail=detail
    )
    await parts.ledger.durable(seq)
    session.chosen, run.policy = replace(chosen, policy=policy), policy
    run.generation += 1
    await parts.gateway.swapped(run, "the policy was reloaded")
    await parts.resolver.replace(run.id, table_for(policy, run.role, session.berth.gateway))
