"""After the join: each request and each record gets its class.

`gres`: (src, g, class, how, r, note, dt); `tres`: (r, class, how, g, note). `note` is a list of fixed words, with
semicolons, which `words.py` turns into sentences.
"""

from collections.abc import Sequence

from credgate.reconcile.buckets import count
from credgate.reconcile.gateway import Seen
from credgate.reconcile.join import OFF, Skew
from credgate.reconcile.model import SECOND
from credgate.reconcile.scope import NOT_REACHED, fits
from credgate.reconcile.store import Store
from credgate.reconcile.targets import Target

GAP = 300 * SECOND  # a target's silence of this length, with requests of ours within, is a gap of the export
_GAP_LEAST = 3
_FLOOD = 10 * SECOND  # a line with a count stands for refusals of this long before it (gateway/floods.py)


def classify(store: Store, targets: Sequence[Target], skews: Sequence[Skew], seen: Seen, until: int | None) -> None:
    """Fill both result tables."""
    store.run(
        "CREATE TABLE gres (src SMALLINT, g BIGINT, class VARCHAR, how VARCHAR, r BIGINT, note VARCHAR, dt BIGINT)"
    )
    store.run("CREATE TABLE tres (r BIGINT, class VARCHAR, how VARCHAR, g BIGINT, note VARCHAR)")
    store.run("CREATE TABLE gaps (src SMALLINT, a BIGINT, b BIGINT, n BIGINT)")
    store.run("INSERT INTO tres SELECT r, class, '', other, '' FROM out")
    for src, (target, skew) in enumerate(zip(targets, skews, strict=True)):
        if target.counts:
            count(store, src, target, seen, until)
            continue
        _paired(store, src, target, skew)
        _refused(store, src, target, skew)
        _left(store, src, target, skew, seen, until)
        _gaps(store, src, skew, seen)
    store.run("INSERT INTO gres SELECT -1, g, 'unchecked', '', 0, '', 0 FROM gw WHERE g NOT IN (SELECT g FROM gs) ")


def _paired(store: Store, src: int, target: Target, skew: Skew) -> None:
    """Pairs: equal, or in what they differ."""
    _wanted_credentials(store, src, target)
    bad_routes = _bad_routes(store, src)
    store.fill("bad_route", {"path": "VARCHAR", "route": "VARCHAR"}, bad_routes)
    off = max(OFF, 10 * skew.mad)
    size = _size_differs(target.size)
    ip = "len($3::VARCHAR[]) > 0 AND l.ip <> '' AND NOT list_contains($3, l.ip)"
    store.run(
        "CREATE OR REPLACE TABLE seen AS SELECT p.g, p.r, p.how, p.grp, p.dt, l.kind, "
        "g.status > 0 AND l.status > 0 AS has_status, g.status = l.status AS same_status, "
        "g.ok >= 0 AND l.ok >= 0 AS has_ok, g.ok = l.ok AS same_ok, concat_ws(';', "
        "CASE WHEN l.method <> '' AND l.method <> g.method THEN 'method' END, "
        "CASE WHEN l.path <> '' AND (CASE WHEN l.template = 1 THEN EXISTS (SELECT 1 FROM bad_route b "
        "WHERE b.path = g.path AND b.route = l.path) ELSE l.path <> g.path END) THEN 'path' END, "
        f"CASE WHEN {size} THEN 'bytes' END, CASE WHEN {ip} THEN 'address' END, "
        "CASE WHEN l.cred <> '' AND EXISTS (SELECT 1 FROM want w WHERE w.g = g.g) AND NOT EXISTS "
        "(SELECT 1 FROM want w WHERE w.g = g.g AND w.cred = l.cred) THEN 'credential' END, "
        "CASE WHEN p.how <> 'window' AND p.how <> 'session' AND abs(p.dt - $2) > $4 + (g.t1 - g.t0) "
        "THEN 'time' END) AS differs "
        "FROM pair p JOIN gw g ON g.g = p.g JOIN live l ON l.r = p.r WHERE p.src = $1 "
        "AND l.kind = 'request'",
        src,
        skew.median,
        list(target.egress),
        off,
    )
    # of several events of one request any may carry its status
    store.run(
        "CREATE OR REPLACE TABLE judged AS SELECT *, concat_ws(';', CASE WHEN bool_or(has_status) OVER w "
        "AND NOT bool_or(has_status AND same_status) OVER w THEN 'status' WHEN NOT bool_or(has_status) OVER w "
        "AND bool_or(has_ok) OVER w AND NOT bool_or(has_ok AND same_ok) OVER w THEN 'success' END, "
        "nullif(differs, '')) AS note FROM seen WINDOW w AS (PARTITION BY g)"
    )
    kind = (
        "CASE WHEN note = 'time' THEN 'out-of-window' WHEN note <> '' THEN 'field-mismatch' "
        "WHEN grp = 1 THEN 'matched-group' ELSE 'matched' END"
    )
    store.run(f"INSERT INTO tres SELECT r, {kind}, how, g, note FROM judged")
    store.run(
        f"INSERT INTO gres SELECT ?, g, {kind}, how, r, note, dt FROM (SELECT *, row_number() OVER "
        "(PARTITION BY g ORDER BY note = '', r) AS k FROM judged) WHERE k = 1",
        src,
    )
    store.run(
        "INSERT INTO gres SELECT p.src, p.g, 'matched-group', p.how, p.r, '', 0 FROM pair p JOIN live l ON l.r = p.r "
        "WHERE p.src = ? AND l.kind = 'session'",
        src,
    )
    store.run(
        "INSERT INTO tres SELECT DISTINCT p.r, 'matched-group', p.how, min(p.g) OVER (PARTITION BY p.r), '' "
        "FROM pair p JOIN live l ON l.r = p.r WHERE p.src = ? AND l.kind = 'session'",
        src,
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


def _wanted_credentials(store: Store, src: int, target: Target) -> None:
    """Fill `want`: (g, cred) as this target would name the credential of a request, where that is known."""
    store.fill("alias", {"a": "VARCHAR", "b": "VARCHAR"}, sorted(target.credentials.items()))
    store.run(
        "CREATE OR REPLACE TABLE want AS SELECT c.g, a.b AS cred FROM gcred c JOIN alias a ON a.a = c.cred "
        "JOIN gs s ON s.g = c.g WHERE s.src = $1 UNION SELECT c.g, c.cred FROM gcred c JOIN gs s ON s.g = c.g "
        "WHERE s.src = $1 AND c.cred IN (SELECT cred FROM tg WHERE src = $1)",
        src,
    )
    store.run("DROP TABLE alias")


def _bad_routes(store: Store, src: int) -> list[tuple[str, str]]:
    """Pairs of a path of ours and a route of theirs that don't fit each other."""
    store.run("DROP TABLE IF EXISTS bad_route")
    return [
        (str(path), str(route))
        for path, route in store.rows(
            "SELECT DISTINCT g.path, l.path FROM pair p JOIN gw g ON g.g = p.g JOIN live l ON l.r = p.r "
            "WHERE p.src = ? AND l.template = 1",
            src,
        )
        if not fits(str(path).split("/"), str(route).split("/"))
    ]


def _refused(store: Store, src: int, target: Target, skew: Skew) -> None:
    """Records that nothing explains but a refusal of ours."""
    same = (
        "g.method = l.method AND (CASE WHEN l.template = 1 THEN l.path = coalesce(t.route, '') ELSE l.path = "
        "g.path END)"
        if target.strong
        else "(l.method = '' OR l.method = g.method)"
    )
    store.run(
        "CREATE OR REPLACE TABLE hit AS SELECT * FROM (SELECT l.r, g.g, row_number() OVER "
        "(PARTITION BY l.r ORDER BY abs(l.tt - $2 - g.t0), g.g) AS k FROM live l JOIN gs s ON s.src = l.src "
        "AND (s.service = l.service OR l.service IN ('http', '')) JOIN gw g ON g.g = s.g AND g.ev = 'deny' "
        "LEFT JOIN route t ON t.src = s.src AND t.path = g.path "
        "WHERE l.src = $1 AND l.kind = 'request' AND l.r NOT IN (SELECT r FROM pair) "
        f"AND (l.host = '' OR l.host = g.host OR NOT $5) AND {same} "
        "AND l.tt - $2 BETWEEN g.t0 - $3 - (CASE WHEN g.n > 1 THEN $4 ELSE 0 END) AND g.t1 + $3) WHERE k = 1",
        src,
        skew.median,
        skew.window,
        _FLOOD,
        "host" in target.key or not target.strong,
    )
    store.run("INSERT INTO tres SELECT r, 'deny-but-seen', 'window', g, '' FROM hit")
    store.run("INSERT INTO gres SELECT ?, g, 'deny-but-seen', 'window', min(r), '', 0 FROM hit GROUP BY g", src)
    store.run(
        "INSERT INTO gres SELECT s.src, s.g, 'denied', '', 0, '', 0 FROM gs s JOIN gw g ON g.g = s.g "
        "WHERE s.src = ? AND g.ev = 'deny' AND s.g NOT IN (SELECT g FROM hit)",
        src,
    )


def _left(store: Store, src: int, target: Target, skew: Skew, seen: Seen, until: int | None) -> None:
    """What has no counterpart."""
    newest = store.number("SELECT max(tt) FROM tg WHERE src = ?", src)
    # an export is taken to reach as far as the ledger does, unless --to says less: one that was cut would look like
    # one that isn't complete yet
    end = (until if until is not None else max(newest - skew.median, seen.last)) - target.delay_s * SECOND
    rules = [rule.id for rule in target.absent]
    store.run(
        "INSERT INTO gres SELECT s.src, s.g, CASE WHEN s.absent >= 0 THEN 'expected-absent' "
        "WHEN g.status = 0 AND list_contains($2, g.reason) THEN 'expected-absent' "
        "WHEN $3 IS NOT NULL AND g.t0 > $3 THEN 'outside' WHEN g.t1 > $4 THEN 'pending' "
        "WHEN g.status = 0 THEN 'unknown-outcome' "
        "WHEN u.id IS NOT NULL THEN 'ambiguous' WHEN $5 THEN 'not-logged' ELSE 'gateway-only' END, '', 0, "
        "CASE WHEN s.absent >= 0 THEN 'rule:' || list_extract($6::VARCHAR[], s.absent + 1) "
        "WHEN g.status = 0 AND list_contains($2, g.reason) THEN 'not-reached:' || g.reason "
        "WHEN u.id IS NOT NULL THEN 'group:' || u.n || ':' || u.m ELSE '' END, 0 "
        "FROM gs s JOIN gw g ON g.g = s.g LEFT JOIN (SELECT id, max(n) AS n, max(m) AS m FROM surplus "
        "WHERE src = $1 AND side = 'g' GROUP BY id) u ON u.id = s.g WHERE s.src = $1 AND g.ev <> 'deny' "
        "AND s.g NOT IN (SELECT g FROM pair WHERE src = $1)",
        src,
        list(NOT_REACHED),
        until,
        end,
        target.best_effort,
        rules,
    )
    weak = not target.strong
    store.run(
        "INSERT INTO tres SELECT l.r, CASE WHEN u.id IS NOT NULL AND $2 THEN 'ambiguous' ELSE 'target-only' END, '', "
        "0, concat_ws(';', CASE WHEN u.id IS NOT NULL THEN 'group:' || u.n || ':' || u.m END, "
        "CASE WHEN l.tt - $3 > $4 + $5 THEN 'after-ledger' END, "
        "CASE WHEN EXISTS (SELECT 1 FROM tid i JOIN tid j ON j.id = i.id AND j.r <> i.r AND j.src = i.src "
        "JOIN pair p ON p.r = j.r WHERE i.r = l.r) OR (l.tag <> '' AND EXISTS (SELECT 1 FROM gw g "
        "WHERE g.tag = l.tag)) THEN 'replayed' END, "
        "CASE WHEN len($6::VARCHAR[]) > 0 AND l.ip <> '' THEN (CASE WHEN list_contains($6, l.ip) THEN 'our-address' "
        "ELSE 'other-address' END) END) "
        "FROM live l LEFT JOIN (SELECT id, max(n) AS n, max(m) AS m FROM surplus WHERE src = $1 AND side = 'r' "
        "GROUP BY id) u ON u.id = l.r WHERE l.src = $1 AND l.kind IN ('request', 'session') "
        "AND l.r NOT IN (SELECT r FROM tres) AND l.r NOT IN (SELECT r FROM pair)",
        src,
        weak,
        skew.median,
        seen.last,
        skew.window,
        list(target.egress),
    )


def _gaps(store: Store, src: int, skew: Skew, seen: Seen) -> None:
    """Stretches without any record of the target's, within which requests of ours have no counterpart."""
    store.run(
        "CREATE OR REPLACE TABLE quiet AS SELECT a, b FROM (SELECT moment AS b, lag(moment) OVER (ORDER BY "
        "moment) AS a FROM ("
        "SELECT DISTINCT tt - $2 AS moment FROM tg WHERE src = $1 UNION SELECT $3 UNION SELECT $4)) WHERE b - a > $5",
        src,
        skew.median,
        seen.first,
        seen.last,
        GAP,
    )
    store.run(
        "CREATE OR REPLACE TABLE within AS SELECT x.g, min(q.a) AS a, arg_min(q.b, q.a) AS b FROM quiet q "
        "JOIN gw g ON g.t1 > q.a AND g.t0 < q.b JOIN gres x ON x.g = g.g AND x.src = ? "
        "AND x.class IN ('gateway-only', 'ambiguous') GROUP BY x.g",
        src,
    )
    store.run(
        "INSERT INTO gaps SELECT ?, a, b, count(*) FROM within GROUP BY a, b HAVING count(*) >= ?", src, _GAP_LEAST
    )
    store.run(
        "UPDATE gres SET class = 'coverage-gap', note = 'gap:' || w.a || ':' || w.b FROM within w, gaps p "
        "WHERE gres.src = $1 AND gres.g = w.g AND gres.class IN ('gateway-only', 'ambiguous') "
        "AND p.src = $1 AND p.a = w.a AND p.b = w.b",
        src,
    )
