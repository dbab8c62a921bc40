"""Which records are to be joined with which: the requests that a source's target would see, and those of its records
that are about a credential of ours, in the time that both sides cover.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from credgate.reconcile.model import ReconcileError
from credgate.reconcile.store import Store
from credgate.reconcile.targets import Target

# Outcomes by which the gateway itself says that the target never had the request, or need not have: one that came as a
# kept connection was closed.
NOT_REACHED = ("resolve_failed", "upstream_unreachable", "upstream_tls", "address_blocked", "upstream_resent")


def hosts_of(store: Store, targets: Sequence[Target]) -> list[Target]:
    """Give each source without hosts the ones of the ledger that no other claims. Raises ReconcileError if unclear."""
    known = [str(host) for (host,) in store.rows("SELECT DISTINCT host FROM gw WHERE host <> '' ORDER BY host")]
    free = tuple(host for host in known if not any(target.serves(host) for target in targets))
    out = []
    for target in targets:
        if target.hosts:
            out.append(target)
        elif len(free) <= 1 or target.names_host:
            out.append(_with_hosts(target, free))
        else:
            detail = f"source {target.name}: which hosts does this log belong to? the ledger has {', '.join(free[:5])}"
            raise ReconcileError("source_hosts", detail, f"--source {target.name}@{free[0]}=PATH", 2)
    return out


def _with_hosts(target: Target, hosts: tuple[str, ...]) -> Target:
    return replace(target, hosts=hosts)


def assign(store: Store, targets: Sequence[Target]) -> None:
    """Fill `gs`: (src, g, service, absent), each request with each source that would see it."""
    hosts = [str(host) for (host,) in store.rows("SELECT DISTINCT host FROM gw WHERE host <> '' ORDER BY host")]
    rows = []
    for src, target in enumerate(targets):
        for host in hosts:
            service = target.service_of(host)
            if target.serves(host) and target.only_service in ("", service):
                rows.append((src, host, service))
    store.fill("served", {"src": "SMALLINT", "host": "VARCHAR", "service": "VARCHAR"}, rows)
    store.run(
        "CREATE TABLE gs AS SELECT s.src, g.g, s.service, CAST(-1 AS SMALLINT) AS absent "
        "FROM gw g JOIN served s ON s.host = g.host"
    )
    for src, target in enumerate(targets):
        _mark_absent(store, src, target)


def _mark_absent(store: Store, src: int, target: Target) -> None:
    """Note by which rule a request is not in the export, for those that such a rule takes."""
    rules = [
        (at, rule) for at, rule in enumerate(target.absent) if not _contradicted(store, src, rule.unless, rule.services)
    ]
    if not rules:
        return
    by_path = any(rule.paths for _, rule in rules)
    path = "g.path" if by_path else "''"
    rows = []
    for method, host, path_, service in store.rows(
        f"SELECT DISTINCT g.method, g.host, {path}, s.service FROM gs s JOIN gw g ON g.g = s.g WHERE s.src = ?",
        src,
    ):
        texts = (str(method), str(host), str(path_), str(service))
        if (hit := next((at for at, rule in rules if rule.takes(*texts)), None)) is not None:
            rows.append((*texts[:3], hit))
    columns = {"method": "VARCHAR", "host": "VARCHAR", "path": "VARCHAR", "hit": "SMALLINT"}
    store.fill("hits", columns, rows)
    store.run(
        f"UPDATE gs SET absent = h.hit FROM hits h, gw g WHERE g.g = gs.g AND gs.src = ? AND h.method = g.method "
        f"AND h.host = g.host AND h.path = {path}",
        src,
    )
    store.run("DROP TABLE hits")


def _contradicted(store: Store, src: int, category: str, services: tuple[str, ...]) -> bool:
    """Whether the export does hold records of the kind that a rule says are absent."""
    if not category:
        return False
    sql = "SELECT count(*) FROM tg WHERE src = ? AND category = ?"
    if services:
        sql += " AND service IN (SELECT unnest(?))"
        return store.number(sql, src, category, list(services)) > 0
    return store.number(sql, src, category) > 0


def first_look(store: Store, targets: Sequence[Target], since: int, until: int | None) -> None:
    """Fill `out`: (r, class) of the records that no join may touch: doubled, the target's own, outside the time."""
    store.run("CREATE TABLE out (r BIGINT, class VARCHAR, other BIGINT)")
    store.run("INSERT INTO out SELECT r, 'duplicate', 0 FROM tg WHERE file IN (SELECT file FROM twice)")
    store.run(
        "INSERT INTO out SELECT r, 'duplicate', f FROM (SELECT r, first_value(r) OVER w AS f FROM tg "
        "WHERE prim <> '' AND r NOT IN (SELECT r FROM out) WINDOW w AS (PARTITION BY src, prim ORDER BY r)) "
        "WHERE r <> f"
    )
    for src, target in enumerate(targets):
        slack = (target.resolution_ms + 2000) * 1000
        store.run(
            "INSERT INTO out SELECT r, CASE WHEN kind = 'service' THEN 'service' ELSE 'outside' END, 0 FROM tg "
            "WHERE src = ? AND r NOT IN (SELECT r FROM out) AND (kind = 'service' OR "
            "greatest(tt, te) < ? OR tt > ?)",
            src,
            since - slack,
            2**62 if until is None else until + slack,
        )
    store.run("CREATE TABLE live AS SELECT * FROM tg WHERE r NOT IN (SELECT r FROM out)")


def other_credentials(store: Store, src: int, target: Target) -> list[str]:
    """Take the records out that are about credentials which are not ours; returns the ones that are, as logged.

    Ours are those of the ledger and those that the mapping names; where no record has one of these, those of records
    that an id or tag has paired.
    """
    store.run(
        "CREATE OR REPLACE TABLE ours AS SELECT DISTINCT cred FROM ("
        "SELECT c.cred FROM gcred c JOIN gs s ON s.g = c.g WHERE s.src = $1 "
        "UNION ALL SELECT unnest($2::VARCHAR[])) WHERE cred <> ''",
        src,
        sorted(target.credentials.values()),
    )
    held = _held(store, src)
    if not held:  # the ledger may name them in a form that this target doesn't: what an id has paired is ours too
        store.run(
            "INSERT INTO ours SELECT DISTINCT l.cred FROM pair p JOIN live l ON l.r = p.r "
            "WHERE p.src = ? AND l.cred <> ''",
            src,
        )
        held = _held(store, src)
    named = bool(target.credentials) or store.number(
        "SELECT count(*) FROM gcred c JOIN gs s ON s.g = c.g WHERE s.src = ? AND c.fp = 1", src
    )
    if target.credential == "logged":
        foreign = "cred NOT IN (SELECT cred FROM ours)" if held or named else "false"
    else:
        user = "cred <> '' AND cred NOT IN (SELECT cred FROM ours)" if held else "false"
        ours = "cred <> '' AND cred IN (SELECT cred FROM ours)" if held else "false"
        address = "ip NOT IN (SELECT unnest($2::VARCHAR[]))" if target.egress else "false"
        foreign = f"({user}) OR (NOT ({ours}) AND {address})"
    extra = (list(target.egress),) if "$2" in foreign else ()
    store.run(
        "CREATE OR REPLACE TABLE gone AS SELECT r FROM live WHERE src = $1 AND r NOT IN (SELECT r FROM pair) "
        f"AND kind <> 'bucket' AND ({foreign})",
        src,
        *extra,
    )
    store.run("INSERT INTO out SELECT r, 'other-credential', 0 FROM gone")
    store.run("DELETE FROM live WHERE r IN (SELECT r FROM gone)")
    return held


def _held(store: Store, src: int) -> list[str]:
    sql = "SELECT cred FROM ours WHERE cred IN (SELECT cred FROM live WHERE src = ?) ORDER BY cred"
    return [str(cred) for (cred,) in store.rows(sql, src)]


def routes(store: Store, src: int) -> None:
    """Fill `route`: (src, path, route): which route template of the target's a path of ours belongs to."""
    store.run("CREATE TABLE IF NOT EXISTS route (src SMALLINT, path VARCHAR, route VARCHAR)")
    templates = [str(t) for (t,) in store.rows("SELECT DISTINCT path FROM live WHERE src = ? AND template = 1", src)]
    if not templates:
        return
    table = _by_length(templates)
    rows = []
    for (path,) in store.rows("SELECT DISTINCT g.path FROM gs s JOIN gw g ON g.g = s.g WHERE s.src = ?", src):
        if found := _route(str(path), table):
            rows.append((src, path, found))
    store.fill("route_new", {"src": "SMALLINT", "path": "VARCHAR", "route": "VARCHAR"}, rows)
    store.run("INSERT INTO route SELECT * FROM route_new")
    store.run("DROP TABLE route_new")


type _Table = Mapping[int, list[tuple[str, list[str]]]]


def _by_length(templates: list[str]) -> _Table:
    table: dict[int, list[tuple[str, list[str]]]] = {}
    # the one with most literal segments first: of two that fit, the router took it
    order = sorted(templates, key=lambda t: (sum(_variable(s) for s in t.split("/")), t))
    for template in order:
        segments = template.split("/")
        table.setdefault(len(segments), []).append((template, segments))
    return table


def _route(path: str, table: _Table) -> str:
    segments = path.split("/")
    for template, wanted in table.get(len(segments), ()):
        if fits(segments, wanted):
            return template
    return ""


def fits(segments: list[str], wanted: list[str]) -> bool:
    """Whether a path's segments are those of a template."""
    return len(segments) == len(wanted) and all(
        _variable(want) or want == have for want, have in zip(wanted, segments, strict=True)
    )


_VARIABLE = re.compile(r":\w+|\{[^}]*\}|\*\w*|<[^>]*>")


def _variable(segment: str) -> bool:
    return bool(_VARIABLE.fullmatch(segment))
