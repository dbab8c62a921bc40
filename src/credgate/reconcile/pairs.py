"""Pairs of a request and a record: whether they agree, and in what they differ."""

from credgate.reconcile.join import OFF, Skew
from credgate.reconcile.scope import fits
from credgate.reconcile.tables import Tables
from credgate.reconcile.targets import Target


def judge(tables: Tables, src: int, target: Target, skew: Skew) -> None:
    """Give both sides of each pair of this source their class."""
    _wanted_credentials(tables, src, target)
    tables.fill("bad_route", {"path": "VARCHAR", "route": "VARCHAR"}, _bad_routes(tables, src))
    _differences(tables, src, target, skew)
    # of several events of one request any may carry its status
    tables.make(
        "judged",
        "SELECT g, r, how, grp, dt, substr((CASE WHEN any_status AND NOT one_status THEN ';status' "
        "WHEN NOT any_status AND any_ok AND NOT one_ok THEN ';success' ELSE '' END) || differs, 2) AS note "
        "FROM (SELECT *, bool_or(has_status) OVER (PARTITION BY g) AS any_status, "
        "bool_or(has_status AND same_status) OVER (PARTITION BY g) AS one_status, "
        "bool_or(has_ok) OVER (PARTITION BY g) AS any_ok, "
        "bool_or(has_ok AND same_ok) OVER (PARTITION BY g) AS one_ok FROM seen) n",
    )
    kind = (
        "CASE WHEN note = 'time' THEN 'out-of-window' WHEN note <> '' THEN 'field-mismatch' "
        "WHEN grp = 1 THEN 'matched-group' ELSE 'matched' END"
    )
    tables.add("tres", f"SELECT r, {kind}, how, g, note FROM judged")
    tables.add(
        "gres",
        f"SELECT $1, g, {kind}, how, r, note, dt FROM (SELECT *, row_number() OVER "
        "(PARTITION BY g ORDER BY CASE WHEN note = '' THEN 1 ELSE 0 END, r) AS k FROM judged) n WHERE k = 1",
        src,
    )
    _sessions(tables, src)


def _sessions(tables: Tables, src: int) -> None:
    """One record for many requests: a group each. `g` and `dt` of a record are those of the request that opened it."""
    tables.make(
        "held",
        "SELECT p.g, p.r, p.how, p.grp, p.dt, CASE WHEN p.grp = 0 THEN 'matched-group' ELSE 'ambiguous' END AS class, "
        "CASE WHEN p.grp = 1 THEN 'begins:' || p.dt WHEN p.grp = 2 THEN 'unsettled' ELSE '' END AS note, "
        "row_number() OVER (PARTITION BY p.g ORDER BY p.grp DESC, p.r) AS k, "
        "row_number() OVER (PARTITION BY p.r ORDER BY p.grp DESC, p.g) AS j "
        "FROM pair p JOIN live l ON l.r = p.r WHERE p.src = $1 AND l.kind = 'session'",
        src,
    )
    tables.add("gres", "SELECT $1, g, class, how, r, note, dt FROM held WHERE k = 1", src)
    tables.add("tres", "SELECT r, class, how, g, note FROM held WHERE j = 1")


# Either side may be one: their route's template, or our path with a hole where a secret was written.
_PATTERN = "l.template = 1 OR g.path LIKE '%{%'"


def _differences(tables: Tables, src: int, target: Target, skew: Skew) -> None:
    """Fill `seen`: each pair with what can be compared, and the words of what differs, each behind a semicolon."""
    address = "l.ip <> '' AND NOT list_contains($4::VARCHAR[], l.ip)" if target.egress else "false"
    words = {
        "method": "l.method <> '' AND l.method <> g.method",
        "path": f"l.path <> '' AND (CASE WHEN {_PATTERN} THEN b.path IS NOT NULL ELSE l.path <> g.path END)",
        "bytes": _size_differs(target.size),
        "address": address,
        "credential": "l.cred <> '' AND v.g IS NOT NULL AND w.g IS NULL",
        "time": "p.how <> 'window' AND abs(p.dt - $2) > $3 + (g.t1 - g.t0)",
    }
    differs = " || ".join(f"CASE WHEN {differ} THEN ';{word}' ELSE '' END" for word, differ in words.items())
    tables.make(
        "seen",
        "SELECT p.g, p.r, p.how, p.grp, p.dt, g.status > 0 AND l.status > 0 AS has_status, "
        "g.status = l.status AS same_status, g.ok >= 0 AND l.ok >= 0 AS has_ok, g.ok = l.ok AS same_ok, "
        f"{differs} AS differs FROM pair p JOIN gw g ON g.g = p.g JOIN live l ON l.r = p.r "
        "LEFT JOIN bad_route b ON b.path = g.path AND b.route = l.path "
        "LEFT JOIN (SELECT DISTINCT g FROM want) v ON v.g = p.g LEFT JOIN want w ON w.g = p.g AND w.cred = l.cred "
        "WHERE p.src = $1 AND l.kind = 'request'",
        src,
        skew.median,
        max(OFF, 10 * skew.mad),
        *([list(target.egress)] if target.egress else []),
    )


def _size_differs(kind: str) -> str:
    """Whether the sizes of an answer contradict each other; a broken-off one, or one without a body, can't."""
    comparable = "l.size >= 0 AND g.size >= 0 AND g.reason = '' AND g.method <> 'HEAD' AND g.status NOT IN (204, 304)"
    match kind:
        case "body":
            return f"{comparable} AND l.size <> g.size"
        case "chunked":
            return f"{comparable} AND (l.size < g.size OR l.size > g.size + g.size // 2 + 512)"
        case "wire":
            return f"{comparable} AND (l.size < g.size OR l.size > g.size + g.size // 2 + 16896)"
        case _:
            return "false"


def _wanted_credentials(tables: Tables, src: int, target: Target) -> None:
    """Fill `want`: (g, cred) as this target would name the credential of a request, where that is known."""
    tables.fill("alias", {"a": "VARCHAR", "b": "VARCHAR"}, sorted(target.credentials.items()))
    tables.make(
        "want",
        "SELECT c.g, a.b AS cred FROM gcred c JOIN alias a ON a.a = c.cred "
        "JOIN gs s ON s.g = c.g WHERE s.src = $1 UNION SELECT c.g, c.cred FROM gcred c JOIN gs s ON s.g = c.g "
        "WHERE s.src = $1 AND c.cred IN (SELECT cred FROM tg WHERE src = $1)",
        src,
    )


def _bad_routes(tables: Tables, src: int) -> list[tuple[str, str]]:
    """Pairs of a path of ours and a route of theirs that don't fit each other."""
    return [
        (str(path), str(route))
        for path, route in tables.rows(
            "SELECT DISTINCT g.path, l.path AS route FROM pair p JOIN gw g ON g.g = p.g JOIN live l ON l.r = p.r "
            f"WHERE p.src = $1 AND ({_PATTERN})",
            src,
        )
        if not fits(str(path).split("/"), str(route).split("/"))
    ]
