"""Which records are to be joined with which: the requests that a source's target would see, and those of its records
that are about a credential of ours, in the time that both sides cover.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from credgate.reconcile.model import ReconcileError
from credgate.reconcile.tables import Tables
from credgate.reconcile.targets import Absent, Target

# Outcomes by which the gateway itself says that the target never had the request, or need not have: one that came as a
# kept connection was closed.
NOT_REACHED = ("resolve_failed", "upstream_unreachable", "upstream_tls", "address_blocked", "upstream_resent")


def hosts_of(tables: Tables, targets: Sequence[Target]) -> list[Target]:
    """Give each source without hosts the ones of the ledger that no other claims. Raises ReconcileError if unclear."""
    known = [str(host) for (host,) in tables.rows("SELECT DISTINCT host FROM gw WHERE host <> '' ORDER BY host")]
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


def assign(tables: Tables, targets: Sequence[Target]) -> None:
    """Fill `gs`: (src, g, service, absent), each request with each source that would see it, and the rule by which that
    source has no record of it ("" for none).
    """
    hosts = [str(host) for (host,) in tables.rows("SELECT DISTINCT host FROM gw WHERE host <> '' ORDER BY host")]
    served: list[tuple[object, ...]] = []
    hits: list[tuple[object, ...]] = []
    for src, target in enumerate(targets):
        rules = [rule for rule in target.absent if not _contradicted(tables, src, rule.unless, rule.services)]
        by_path = any(rule.paths for rule in rules)
        mine = {host: target.service_of(host) for host in hosts if target.serves(host)}
        mine = {host: service for host, service in mine.items() if target.only_service in ("", service)}
        served += [(src, host, service, int(by_path)) for host, service in mine.items()]
        if rules and mine:
            hits += _hits(tables, src, rules, mine, by_path=by_path)
    tables.fill("served", _SERVED, served)
    tables.fill("hits", _HITS, hits)
    tables.make(
        "gs",
        "SELECT s.src, g.g, s.service, coalesce(h.rule, '') AS absent FROM gw g JOIN served s ON s.host = g.host "
        "LEFT JOIN hits h ON h.src = s.src AND h.method = g.method AND h.host = g.host "
        "AND h.path = (CASE WHEN s.by_path = 1 THEN g.path ELSE '' END)",
    )


_SERVED = {"src": "SMALLINT", "host": "VARCHAR", "service": "VARCHAR", "by_path": "TINYINT"}
_HITS = {"src": "SMALLINT", "method": "VARCHAR", "host": "VARCHAR", "path": "VARCHAR", "rule": "VARCHAR"}


def _hits(
    tables: Tables, src: int, rules: Sequence[Absent], mine: Mapping[str, str], *, by_path: bool
) -> Iterator[tuple[object, ...]]:
    """The kinds of requests that a rule takes: (src, method, host, path, rule)."""
    path = "path" if by_path else "''"
    for values in tables.rows(f"SELECT DISTINCT method, host, {path} AS path FROM gw WHERE host <> ''"):
        method, host, path_ = (str(value) for value in values)
        if host in mine and (rule := next((r for r in rules if r.takes(method, host, path_, mine[host])), None)):
            yield src, method, host, path_, rule.id


def _contradicted(tables: Tables, src: int, category: str, services: tuple[str, ...]) -> bool:
    """Whether the export does hold records of the kind that a rule says are absent."""
    if not category:
        return False
    sql = "SELECT count(*) FROM tg WHERE src = $1 AND category = $2"
    if services:
        return tables.number(f"{sql} AND list_contains($3::VARCHAR[], service)", src, category, list(services)) > 0
    return tables.number(sql, src, category) > 0


def first_look(tables: Tables, targets: Sequence[Target], since: int, until: int | None) -> None:
    """Fill `aside`: (r, class) of the records that no join may touch: doubled, the target's own, outside the time."""
    tables.empty("aside", {"r": "BIGINT", "class": "VARCHAR", "other": "BIGINT"})
    tables.add("aside", "SELECT r, 'duplicate', 0 FROM tg WHERE file IN (SELECT file FROM twice)")
    tables.add(
        "aside",
        "SELECT r, 'duplicate', f FROM (SELECT r, min(r) OVER (PARTITION BY src, prim) AS f FROM tg "
        "WHERE prim <> '' AND r NOT IN (SELECT r FROM aside)) WHERE r <> f",
    )
    # an id says more than a clock: a log whose zone was mistaken is not one that has nothing to do with the ledger
    tables.make(
        "named_by_id",
        "SELECT l.r FROM tg l JOIN gw g ON g.tag = l.tag WHERE l.tag <> '' AND g.t0 <= $1 UNION "
        "SELECT i.r FROM tid i JOIN gid d ON d.id = i.id JOIN gw g ON g.g = d.g WHERE g.t0 <= $1",
        2**62 if until is None else until,
    )
    for src, target in enumerate(targets):
        slack = (target.resolution_ms + 2000) * 1000
        tables.add(
            "aside",
            "SELECT r, CASE WHEN kind = 'service' THEN 'service' ELSE 'outside' END, 0 FROM tg "
            "WHERE src = $1 AND r NOT IN (SELECT r FROM aside) AND (kind = 'service' OR "
            "((greatest(tt, te) < $2 OR tt > $3) AND r NOT IN (SELECT r FROM named_by_id)))",
            src,
            since - slack,
            2**62 if until is None else until + slack,
        )
    tables.make("live", "SELECT * FROM tg WHERE r NOT IN (SELECT r FROM aside)")


def other_credentials(tables: Tables, src: int, target: Target) -> list[str]:
    """Take the records out that are about credentials which are not ours; returns the ones that are, as logged.

    Ours are those of the ledger and those that the mapping names; where no record has one of these, those of records
    that an id or tag has paired.
    """
    tables.fill("named", {"cred": "VARCHAR"}, [(cred,) for cred in sorted(set(target.credentials.values())) if cred])
    tables.make(
        "ours",
        "SELECT DISTINCT cred FROM (SELECT c.cred FROM gcred c JOIN gs s ON s.g = c.g WHERE c.cred <> '' "
        "AND s.src = $1 UNION ALL SELECT cred FROM named) n",
        src,
    )
    held = _held(tables, src)
    if not held:  # the ledger may name them in a form that this target doesn't: what an id has paired is ours too
        tables.add(
            "ours",
            "SELECT DISTINCT l.cred FROM pair p JOIN live l ON l.r = p.r WHERE l.cred <> '' AND p.src = $1",
            src,
        )
        held = _held(tables, src)
    named = bool(target.credentials) or tables.number(
        "SELECT count(*) FROM gcred c JOIN gs s ON s.g = c.g WHERE s.src = $1 AND c.fp = 1", src
    )
    foreign = _foreign(target, held, bool(named))
    tables.make(
        "gone",
        "SELECT l.r FROM live l LEFT JOIN ours o ON o.cred = l.cred WHERE l.src = $1 "
        f"AND l.r NOT IN (SELECT r FROM pair) AND l.kind <> 'bucket' AND ({foreign})",
        src,
        *([list(target.egress)] if "$2" in foreign else []),
    )
    tables.add("aside", "SELECT r, 'other-credential', 0 FROM gone")
    tables.remove("live", "r IN (SELECT r FROM gone)")
    return held


def _foreign(target: Target, held: list[str], named: bool) -> str:
    """The condition on a record `l`, with `o` for its credential if it is ours, by which it is not about ours."""
    if target.credential == "logged":
        return "o.cred IS NULL" if held or named else "false"
    user = "(l.cred <> '' AND o.cred IS NULL)" if held else "false"
    ours = "o.cred IS NOT NULL" if held else "false"
    address = "NOT list_contains($2::VARCHAR[], l.ip)" if target.egress else "false"
    return f"{user} OR (NOT ({ours}) AND {address})"


def _held(tables: Tables, src: int) -> list[str]:
    sql = "SELECT cred FROM ours WHERE cred IN (SELECT cred FROM live WHERE src = $1) ORDER BY cred"
    return [str(cred) for (cred,) in tables.rows(sql, src)]


ROUTE = {"src": "SMALLINT", "path": "VARCHAR", "route": "VARCHAR"}


def routes(tables: Tables, src: int) -> None:
    """Fill `route`: (src, path, route): what the target's records have for a path of ours that they spell otherwise.

    That is a route template, or a path in which we wrote a secret: its hole stands for what the target logged there.
    """
    ours = [
        str(p) for (p,) in tables.rows("SELECT DISTINCT g.path FROM gs s JOIN gw g ON g.g = s.g WHERE s.src = $1", src)
    ]
    found = [*_templates(tables, src, ours), *_filled(tables, src, [path for path in ours if "{" in path])]
    if found:
        tables.fill("route_new", ROUTE, [(src, path, route) for path, route in found])
        tables.add("route", "SELECT src, path, route FROM route_new")


def _templates(tables: Tables, src: int, ours: list[str]) -> list[tuple[str, str]]:
    templates = [str(t) for (t,) in tables.rows("SELECT DISTINCT path FROM live WHERE src = $1 AND template = 1", src)]
    table = _by_length(templates)
    return [(path, route) for path in ours if (route := _route(path, table))] if templates else []


def _filled(tables: Tables, src: int, holed: list[str]) -> list[tuple[str, str]]:
    """The one path of the target's that each of ours with a hole stands for; of several none is taken for it."""
    if not holed:
        return []
    plain = [str(p) for (p,) in tables.rows("SELECT DISTINCT path FROM live WHERE src = $1 AND template = 0", src)]
    fitting = {path: [p for p in plain if fits(path.split("/"), p.split("/"))] for path in holed}
    return [(path, found[0]) for path, found in sorted(fitting.items()) if len(found) == 1]


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
    """Whether a path's segments are those of a template. A hole in the path itself is where we wrote a secret."""
    return len(segments) == len(wanted) and all(
        _variable(want) or want == have or _WRITTEN.fullmatch(have) for want, have in zip(wanted, segments, strict=True)
    )


_WRITTEN = re.compile(r"\{[^{}]*\}")  # no client can send a brace bare: it is no character of a path (RFC 3986 3.3)
_VARIABLE = re.compile(r":\w+|\{[^}]*\}|\*\w*|<[^>]*>")


def _variable(segment: str) -> bool:
    return bool(_VARIABLE.fullmatch(segment))
