"""Targets that give no records of calls, only counts in buckets of time: OpenAI's requests, Anthropic's tokens.

A bucket is compared as a whole, over all models, as the ledger doesn't know the model. Requests that were answered
with success are counted; a call that failed may be billed or not.
"""

from credgate.reconcile.gateway import Seen
from credgate.reconcile.model import SECOND
from credgate.reconcile.store import Store
from credgate.reconcile.targets import Target


def count(store: Store, src: int, target: Target, seen: Seen, until: int | None) -> None:
    """Fill both result tables for such a source."""
    _assign(store, src, target)
    newest = store.number("SELECT max(te) FROM live WHERE src = ?", src)
    end = (until if until is not None else max(newest, seen.last)) - target.delay_s * SECOND
    presence = target.counts == "presence"
    equal = "(coalesce(m, 0) > 0) = (coalesce(n, 0) > 0)" if presence else "coalesce(m, 0) = coalesce(n, 0)"
    store.run(
        "CREATE OR REPLACE TABLE sums AS SELECT *, CASE "
        f"WHEN {equal} THEN 'matched-group' WHEN coalesce(te, 0) > $1 THEN 'pending' "
        "WHEN coalesce(m, 0) > coalesce(n, 0) THEN 'target-only' ELSE 'gateway-only' END AS class "
        "FROM (SELECT t, te, cred, sum(n) AS m FROM bucket GROUP BY ALL) b FULL JOIN "
        "(SELECT t, te, cred, count(*) AS n FROM inside GROUP BY ALL) i USING (t, te, cred)",
        end,
    )
    note = (
        "CASE WHEN s.class = 'matched-group' THEN 'counted' "
        "ELSE 'count:' || coalesce(s.n, 0) || ':' || coalesce(s.m, 0) END"
    )
    if presence:
        note = "CASE WHEN s.class = 'matched-group' THEN 'presence' ELSE 'presence:' || coalesce(s.n, 0) END"
    _results(store, src, target, note, end)


def _assign(store: Store, src: int, target: Target) -> None:
    """Fill `bucket` and `inside`: requests by the bucket in which they began.

    A credential counts by itself where both sides name it; else all of them together.
    """
    common = store.number(
        "SELECT count(*) FROM live l WHERE l.src = ? AND l.cred IN (SELECT cred FROM gcred)", src
    ) + len(target.credentials)
    store.fill("alias", {"a": "VARCHAR", "b": "VARCHAR"}, sorted(target.credentials.items()))
    store.run(
        "CREATE OR REPLACE TABLE named AS SELECT c.g, min(coalesce(a.b, c.cred)) AS cred FROM gcred c "
        "LEFT JOIN alias a ON a.a = c.cred WHERE a.b IS NOT NULL OR c.cred IN (SELECT cred FROM live WHERE src = ?) "
        "GROUP BY c.g",
        src,
    )
    store.run("DROP TABLE alias")
    cred = "l.cred" if common else "''"
    ours = "n.cred IS NOT NULL AND n.cred = b.cred" if common else "true"
    scope = "l.cred IN (SELECT cred FROM named)" if common else "true"
    store.run(
        f"CREATE OR REPLACE TABLE bucket AS SELECT l.r, l.t, l.te, {cred} AS cred, l.n FROM live l "
        f"WHERE l.src = ? AND l.kind = 'bucket' AND {scope}",
        src,
    )
    store.run(
        "CREATE OR REPLACE TABLE inside AS SELECT s.g, b.t, b.te, b.cred FROM gs s JOIN gw g ON g.g = s.g "
        "LEFT JOIN named n ON n.g = g.g JOIN (SELECT DISTINCT t, te, cred FROM bucket) b "
        f"ON g.t0 >= b.t AND g.t0 < b.te AND {ours} WHERE s.src = $1 AND g.ok = 1 AND g.ev <> 'deny' "
        "AND list_contains($3::VARCHAR[], g.method) AND list_contains($2::VARCHAR[], g.path)",
        src,
        list(target.counted_paths),
        list(target.counted),
    )


def _results(store: Store, src: int, target: Target, note: str, end: int) -> None:
    store.run(
        f"INSERT INTO tres SELECT b.r, s.class, 'count', 0, {note} FROM bucket b "
        "JOIN sums s ON s.t = b.t AND s.te = b.te AND s.cred = b.cred"
    )
    store.run(
        "INSERT INTO tres SELECT r, 'other-credential', '', 0, '' FROM live WHERE src = ? AND kind = 'bucket' "
        "AND r NOT IN (SELECT r FROM bucket)",
        src,
    )
    # the requests of a bucket that the target counts higher are all there: what is too many is the target's
    store.run(
        "INSERT INTO gres SELECT ?, i.g, CASE WHEN s.class = 'target-only' THEN 'matched-group' ELSE s.class END, "
        f"'count', 0, {note}, 0 FROM inside i JOIN sums s ON s.t = i.t AND s.te = i.te AND s.cred = i.cred",
        src,
    )
    counted = "g.ok = 1 AND list_contains($3::VARCHAR[], g.method) AND list_contains($4::VARCHAR[], g.path)"
    store.run(
        "INSERT INTO gres SELECT s.src, s.g, CASE WHEN g.ev = 'deny' THEN 'denied' "
        f"WHEN NOT ({counted}) THEN 'expected-absent' WHEN g.t1 > $2 THEN 'pending' ELSE 'gateway-only' END, '', 0, "
        f"CASE WHEN g.ev = 'deny' THEN '' WHEN NOT ({counted}) THEN 'not-billed' ELSE 'no-bucket' END, 0 "
        "FROM gs s JOIN gw g ON g.g = s.g WHERE s.src = $1 AND s.g NOT IN (SELECT g FROM inside)",
        src,
        end,
        list(target.counted),
        list(target.counted_paths),
    )
