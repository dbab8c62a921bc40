"""After the join: each request and each record gets its class.

`gres`: (src, g, class, how, r, note, dt); `tres`: (r, class, how, g, note). `note` is a list of fixed words, with
semicolons, which `words.py` turns into sentences.
"""

from collections.abc import Sequence

from credgate.reconcile import pairs
from credgate.reconcile.buckets import count
from credgate.reconcile.gateway import Seen
from credgate.reconcile.join import Skew
from credgate.reconcile.model import SECOND
from credgate.reconcile.scope import NOT_REACHED
from credgate.reconcile.tables import RESULTS, Tables
from credgate.reconcile.targets import Target

GAP = 300 * SECOND  # a target's silence of this length, with requests of ours within, is a gap of the export
_GAP_LEAST = 3
# what makes two lines of a log the same one
_SAME = ("tt", "t", "te", "host", "method", "path", "action", "status", "size", "ip", "tag", "cred")
_FLOOD = 10 * SECOND  # a line with a count stands for refusals of this long before it (gateway/floods.py)


def classify(tables: Tables, targets: Sequence[Target], skews: Sequence[Skew], seen: Seen, until: int | None) -> None:
    """Fill both result tables."""
    for table, columns in RESULTS.items():
        tables.empty(table, columns)
    tables.add("tres", "SELECT r, class, '', other, '' FROM aside")
    for src, (target, skew) in enumerate(zip(targets, skews, strict=True)):
        if target.counts:
            count(tables, src, target, seen, until)
            continue
        pairs.judge(tables, src, target, skew)
        _refused(tables, src, target, skew)
        _unanswered(tables, src, target, skew, seen, until)
        _gaps(tables, src, skew, seen)
        _unexplained(tables, src, target, skew, seen)
    tables.add("gres", "SELECT -1, g, 'unchecked', '', 0, '', 0 FROM gw WHERE g NOT IN (SELECT g FROM gs)")


def _refused(tables: Tables, src: int, target: Target, skew: Skew) -> None:
    """Records that nothing explains but a refusal of ours."""
    same = (
        "g.method = l.method AND l.path = "
        "(CASE WHEN l.template = 1 OR g.path LIKE '%{%' THEN coalesce(t.route, '') ELSE g.path END)"
        if target.strong
        else "(l.method = '' OR l.method = g.method)"
    )
    # few are left, and the join below has no equality to go by but what both sides may lack
    tables.make("rest", "SELECT * FROM live WHERE src = $1 AND kind = 'request' AND r NOT IN (SELECT r FROM pair)", src)
    same_host = "AND (l.host = '' OR l.host = g.host)" if "host" in target.key or not target.strong else ""
    tables.make(
        "hit",
        "SELECT n.r, n.g FROM (SELECT l.r, g.g, row_number() OVER "
        "(PARTITION BY l.r ORDER BY abs(l.tt - $1 - g.t0), g.g) AS k FROM rest l JOIN gs s ON s.src = l.src "
        "AND (s.service = l.service OR l.service IN ('http', '')) JOIN gw g ON g.g = s.g AND g.ev = 'deny' "
        "LEFT JOIN route t ON t.src = s.src AND t.path = g.path "
        f"WHERE {same} {same_host} "
        "AND l.tt - $1 BETWEEN g.t0 - $2 - (CASE WHEN g.n > 1 THEN $3 ELSE 0 END) AND g.t1 + $2) n WHERE n.k = 1",
        skew.median,
        skew.window,
        _FLOOD,
    )
    tables.add("tres", "SELECT r, 'deny-but-seen', 'window', g, '' FROM hit")
    tables.add("gres", "SELECT $1, g, 'deny-but-seen', 'window', min(r), '', 0 FROM hit GROUP BY g", src)
    tables.add(
        "gres",
        "SELECT s.src, s.g, 'denied', '', 0, '', 0 FROM gs s JOIN gw g ON g.g = s.g "
        "WHERE s.src = $1 AND g.ev = 'deny' AND s.g NOT IN (SELECT g FROM hit)",
        src,
    )


def _unanswered(tables: Tables, src: int, target: Target, skew: Skew, seen: Seen, until: int | None) -> None:
    """Fill `alone`: (g, class, note) of requests without a record."""
    newest = tables.number("SELECT max(tt) FROM tg WHERE src = $1", src)
    # an export is taken to reach as far as the ledger does, unless --to says less: one that was cut would look like
    # one that isn't complete yet
    end = (until if until is not None else max(newest - skew.median, seen.last)) - target.delay_s * SECOND
    not_reached = f"g.status = 0 AND g.reason IN ({', '.join(f"'{reason}'" for reason in NOT_REACHED)})"
    _surplus(tables, src, "g")
    tables.make(  # a proxy's line of a tunnel comes when it ends
        "own_tunnel",
        "SELECT DISTINCT d.g FROM gdial d WHERE EXISTS (SELECT 1 FROM tg l WHERE l.src = $1 AND l.kind = 'session')",
        src,
    )
    tables.make(
        "alone",
        f"SELECT s.g, CASE WHEN s.absent <> '' THEN 'expected-absent' WHEN {not_reached} THEN 'expected-absent' "
        "WHEN g.t0 > $2 THEN 'outside' WHEN g.t1 > $3 THEN 'pending' WHEN g.status = 0 THEN 'unknown-outcome' "
        f"WHEN u.id IS NOT NULL THEN 'ambiguous' ELSE '{'not-logged' if target.best_effort else 'gateway-only'}' END "
        f"AS class, CASE WHEN s.absent <> '' THEN 'rule:' || s.absent WHEN {not_reached} THEN 'not-reached:' || "
        "g.reason WHEN u.id IS NOT NULL THEN 'group:' || u.n || ':' || u.m "
        "WHEN o.g IS NOT NULL THEN 'own-tunnel' ELSE '' END AS note "
        "FROM gs s JOIN gw g ON g.g = s.g LEFT JOIN spare u ON u.id = s.g LEFT JOIN own_tunnel o ON o.g = s.g "
        "WHERE s.src = $1 AND g.ev <> 'deny' "
        "AND s.g NOT IN (SELECT g FROM pair WHERE src = $1)",
        src,
        2**62 if until is None else until,
        end,
    )


def _surplus(tables: Tables, src: int, side: str) -> None:
    """Fill `spare`: (id, n, m) of one side's rows that a group of unequal sizes has left over."""
    tables.make(
        "spare",
        f"SELECT id, max(n) AS n, max(m) AS m FROM surplus WHERE src = $1 AND side = '{side}' GROUP BY id",
        src,
    )


def _gaps(tables: Tables, src: int, skew: Skew, seen: Seen) -> None:
    """Stretches without any record of the target's, within which requests of ours have no counterpart. Then the
    requests without a record get their classes.
    """
    tables.make(
        "quiet",
        "SELECT a, b FROM (SELECT moment AS b, lag(moment) OVER (ORDER BY moment) AS a FROM ("
        "SELECT tt - $2 AS moment FROM tg WHERE src = $1 UNION SELECT $3 AS moment UNION SELECT $4 AS moment) m) q "
        "WHERE b - a > $5",
        src,
        skew.median,
        seen.first,
        seen.last,
        GAP,
    )
    tables.make(
        "inside_gap",
        "SELECT x.g, min(q.a) AS a, min(q.b) AS b FROM quiet q JOIN gw g ON g.t1 > q.a AND g.t0 < q.b "
        "JOIN alone x ON x.g = g.g WHERE x.class IN ('gateway-only', 'ambiguous') GROUP BY x.g",
    )
    tables.add("gaps", f"SELECT $1, a, b, count(*) FROM inside_gap GROUP BY a, b HAVING count(*) >= {_GAP_LEAST}", src)
    tables.add(
        "gres",
        "SELECT $1, x.g, CASE WHEN p.a IS NULL THEN x.class ELSE 'coverage-gap' END, '', 0, "
        "CASE WHEN p.a IS NULL THEN x.note ELSE 'gap:' || p.a || ':' || p.b END, 0 FROM alone x "
        "LEFT JOIN inside_gap w ON w.g = x.g LEFT JOIN gaps p ON p.src = $1 AND p.a = w.a AND p.b = w.b",
        src,
    )


def _unexplained(tables: Tables, src: int, target: Target, skew: Skew, seen: Seen) -> None:
    """Records without a request."""
    _surplus(tables, src, "r")
    tables.make(
        "stray",
        "SELECT * FROM live WHERE src = $1 AND kind IN ('request', 'session') "
        "AND r NOT IN (SELECT r FROM tres) AND r NOT IN (SELECT r FROM pair)",
        src,
    )
    tables.make(  # which of them carry an id or tag that has its record already
        "again",
        "SELECT i.r FROM tid i JOIN stray l ON l.r = i.r JOIN tid j ON j.id = i.id AND j.src = i.src "
        "JOIN pair p ON p.r = j.r WHERE j.r <> i.r "
        "UNION SELECT l.r FROM stray l JOIN gw g ON g.tag = l.tag AND l.tag <> '' WHERE g.ev <> 'deny'",
    )
    _twins(tables, src)
    ambiguous = "false" if target.strong else "u.id IS NOT NULL"
    address = (
        "CASE WHEN l.ip = '' THEN '' WHEN list_contains($4::VARCHAR[], l.ip) THEN ';our-address' "
        "ELSE ';other-address' END"
        if target.egress
        else "''"
    )
    tables.add(
        "tres",
        f"SELECT l.r, CASE WHEN {ambiguous} THEN 'ambiguous' ELSE 'target-only' END, '', 0, substr("
        "CASE WHEN u.id IS NULL THEN '' ELSE ';group:' || u.n || ':' || u.m END "
        "|| CASE WHEN l.tt - $1 > $2 + $3 THEN ';after-ledger' ELSE '' END "
        f"|| CASE WHEN a.r IS NULL THEN '' ELSE ';replayed' END "
        f"|| CASE WHEN w.r IS NULL THEN '' ELSE ';twin' END || {address}, 2) "
        "FROM stray l LEFT JOIN spare u ON u.id = l.r LEFT JOIN again a ON a.r = l.r LEFT JOIN twin w ON w.r = l.r",
        skew.median,
        seen.last,
        skew.window,
        *([list(target.egress)] if target.egress else []),
    )


def _twins(tables: Tables, src: int) -> None:
    """Fill `twin`: (r) of strays that the export holds elsewhere too."""
    same = ", ".join(f"x.{name}" for name in _SAME)
    tables.make(
        "twin",
        f"SELECT n.r FROM (SELECT x.r, count(*) OVER (PARTITION BY {same}) AS n FROM tg x WHERE x.src = $1) n "
        "JOIN stray l ON l.r = n.r WHERE n.n > 1",
        src,
    )
