"""Targets that give no records of calls, only counts in buckets of time: OpenAI's requests, Anthropic's tokens.

A bucket is compared as a whole, over all models, as the ledger doesn't know the model. Requests that were answered
with success are counted; a call that failed may be billed or not.
"""

from credgate.reconcile.gateway import Seen
from credgate.reconcile.model import SECOND
from credgate.reconcile.tables import Tables
from credgate.reconcile.targets import Target


def count(tables: Tables, src: int, target: Target, seen: Seen, until: int | None) -> None:
    """Fill both result tables for such a source."""
    _assign(tables, src, target)
    newest = tables.number("SELECT max(te) FROM live WHERE src = $1", src)
    end = (until if until is not None else max(newest, seen.last)) - target.delay_s * SECOND
    presence = target.counts == "presence"
    equal = "(m > 0) = (n > 0)" if presence else "m = n"
    tables.make(
        "sums",
        "SELECT t, te, cred, n, m, CASE "
        f"WHEN {equal} THEN 'matched-group' WHEN te > $1 THEN 'pending' "
        "WHEN m > n THEN 'target-only' ELSE 'gateway-only' END AS class "
        "FROM (SELECT t, te, cred, sum(n) AS n, sum(m) AS m FROM (SELECT t, te, cred, 0 AS n, n AS m FROM bucket "
        "UNION ALL SELECT t, te, cred, 1 AS n, 0 AS m FROM inside) b GROUP BY t, te, cred) s",
        end,
    )
    note = "CASE WHEN s.class = 'matched-group' THEN 'counted' ELSE 'count:' || s.n || ':' || s.m END"
    if presence:
        note = "CASE WHEN s.class = 'matched-group' THEN 'presence' ELSE 'presence:' || s.n END"
    _results(tables, src, target, note, end)


def _assign(tables: Tables, src: int, target: Target) -> None:
    """Fill `bucket` and `inside`: requests by the bucket in which they began.

    A credential counts by itself where both sides name it; else all of them together.
    """
    common = tables.number(
        "SELECT count(*) FROM live l WHERE l.src = $1 AND l.cred IN (SELECT cred FROM gcred)", src
    ) + len(target.credentials)
    tables.fill("alias", {"a": "VARCHAR", "b": "VARCHAR"}, sorted(target.credentials.items()))
    tables.make(
        "named",
        "SELECT n.g, min(n.cred) AS cred FROM (SELECT c.g, a.b AS cred FROM gcred c JOIN alias a ON a.a = c.cred "
        "UNION ALL SELECT g, cred FROM gcred WHERE cred IN (SELECT cred FROM live WHERE src = $1) "
        "AND cred NOT IN (SELECT a FROM alias)) n GROUP BY n.g",
        src,
    )
    cred = "l.cred" if common else "''"
    ours = "n.cred = b.cred" if common else "true"
    scope = "l.cred IN (SELECT cred FROM named)" if common else "true"
    tables.make(
        "bucket",
        f"SELECT l.r, l.t, l.te, {cred} AS cred, l.n FROM live l WHERE l.src = $1 AND l.kind = 'bucket' AND {scope}",
        src,
    )
    tables.make(
        "inside",
        "SELECT s.g, b.t, b.te, b.cred FROM gs s JOIN gw g ON g.g = s.g "
        "LEFT JOIN named n ON n.g = g.g JOIN (SELECT DISTINCT t, te, cred FROM bucket) b "
        f"ON g.t0 >= b.t AND g.t0 < b.te AND {ours} WHERE s.src = $1 AND g.ev <> 'deny' AND {_COUNTED}",
        src,
        list(target.counted),
        list(target.counted_paths),
    )


_COUNTED = "g.ok = 1 AND list_contains($2::VARCHAR[], g.method) AND list_contains($3::VARCHAR[], g.path)"


def _results(tables: Tables, src: int, target: Target, note: str, end: int) -> None:
    same = "s.t = x.t AND s.te = x.te AND s.cred = x.cred"
    tables.add("tres", f"SELECT x.r, s.class, 'count', 0, {note} FROM bucket x JOIN sums s ON {same}")
    tables.add(
        "tres",
        "SELECT r, 'other-credential', '', 0, '' FROM live WHERE src = $1 AND kind = 'bucket' "
        "AND r NOT IN (SELECT r FROM bucket)",
        src,
    )
    # the requests of a bucket that the target counts higher are all there: what is too many is the target's
    tables.add(
        "gres",
        "SELECT $1, x.g, CASE WHEN s.class = 'target-only' THEN 'matched-group' ELSE s.class END, "
        f"'count', 0, {note}, 0 FROM inside x JOIN sums s ON {same}",
        src,
    )
    tables.add(
        "gres",
        "SELECT s.src, s.g, CASE WHEN g.ev = 'deny' THEN 'denied' "
        f"WHEN NOT ({_COUNTED}) THEN 'expected-absent' WHEN g.t1 > $4 THEN 'pending' ELSE 'gateway-only' END, '', 0, "
        f"CASE WHEN g.ev = 'deny' THEN '' WHEN NOT ({_COUNTED}) THEN 'not-billed' ELSE 'no-bucket' END, 0 "
        "FROM gs s JOIN gw g ON g.g = s.g WHERE s.src = $1 AND s.g NOT IN (SELECT g FROM inside)",
        src,
        list(target.counted),
        list(target.counted_paths),
        end,
    )
