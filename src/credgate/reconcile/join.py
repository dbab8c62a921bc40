"""The join, from strong to weak; each stage takes its pairs away from the next. Deterministic: every choice is by
(distance in time, number of the record), and no float is involved.

`pair`: (src, g, r, how, grp, dt): request, record, the stage, whether only a group of equal ones could be paired, and
how much later than expected the record's time is.
`surplus`: (src, side, id, n, m): records left over from a group of n requests and m records that look alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from credgate.reconcile import scope
from credgate.reconcile.align import align
from credgate.reconcile.model import SECOND
from credgate.reconcile.tables import Tables
from credgate.reconcile.targets import Target
from credgate.reconcile.tunnels import Clock, Clocks, pair_tunnels

TIGHT = 100_000  # microseconds beside the resolution: the first round pairs what is nearly certain
LEAST_WINDOW = 2 * SECOND
OFF = 60 * SECOND  # from here on a clock is called wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """A target's clock against ours, microseconds: `median` of `samples` differences, `mad` their spread."""

    median: int = 0
    mad: int = 0
    samples: int = 0
    by: str = "not measured"
    window: int = LEAST_WINDOW
    beyond: Clock | None = None  # one by which clearly more tunnels would fit


_PAIR = {
    "src": "SMALLINT", "g": "BIGINT", "r": "BIGINT", "how": "VARCHAR", "grp": "TINYINT", "dt": "BIGINT",
}  # fmt: skip
_SURPLUS = {"src": "SMALLINT", "side": "VARCHAR", "id": "BIGINT", "n": "BIGINT", "m": "BIGINT"}


def join(tables: Tables, targets: Sequence[Target]) -> list[tuple[Skew, list[str]]]:
    """Run all stages; returns a clock and the credentials for each source."""
    tables.empty("pair", _PAIR)
    tables.empty("surplus", _SURPLUS)
    tables.empty("route", scope.ROUTE)
    found = []
    for src, target in enumerate(targets):
        _by_ids(tables, src, target)
        skew = measure(tables, src, target)
        held = scope.other_credentials(tables, src, target)
        scope.routes(tables, src)
        if not target.counts:
            _in_windows(tables, src, target, skew)
            if tables.number("SELECT count(*) FROM live WHERE src = $1 AND kind = 'session'", src):
                skew = _with_tunnels(skew, pair_tunnels(tables, src, skew.median, skew.window))
        found.append((skew, held))
    return found


def _with_tunnels(skew: Skew, clocks: Clocks) -> Skew:
    """A proxy's clock is its own: the `Date` of an answer is the target's."""
    skew = replace(skew, beyond=clocks.beyond)
    if not clocks.taken.fit or skew.by == "paired records":
        return skew
    return replace(skew, median=clocks.taken.shift, mad=0, samples=clocks.taken.fit, by="tunnels")


def _ours(target: Target) -> str:
    """Which of a request's times the target's stamp is to be held against."""
    return "g.t1" if target.stamp == "end" else "g.t0"


_STAGES = (
    (
        "request id",
        "JOIN tid i ON i.r = l.r AND i.kind = 'id' JOIN gid d ON d.id = i.id JOIN gw g ON g.g = d.g",
        "SELECT count(*) FROM tid WHERE src = $1 AND kind = 'id'",
    ),
    ("tag", "JOIN gw g ON g.tag = l.tag AND l.tag <> ''", "SELECT count(*) FROM live WHERE tag <> '' AND src = $1"),
    (
        "client id",
        "JOIN tid i ON i.r = l.r AND i.kind = 'client' JOIN gid d ON d.id = i.id JOIN gw g ON g.g = d.g",
        "SELECT count(*) FROM tid WHERE src = $1 AND kind = 'client'",
    ),
)


def _by_ids(tables: Tables, src: int, target: Target) -> None:
    for how, candidates, any_ in _STAGES:
        if tables.number(any_, src):
            _candidates(tables, src, target, candidates)
            _pair_candidates(tables, src, target, how)


def _candidates(tables: Tables, src: int, target: Target, candidates: str) -> None:
    """Fill `best`: each record with the nearest request of its id."""
    tables.make(
        "found",
        "SELECT DISTINCT g.g, l.r, l.action, l.method, l.path, l.category, "
        f"l.prim, l.tt, l.ok, l.status, l.ip, l.tt - {_ours(target)} AS dt FROM live l {candidates} "
        "JOIN gs s ON s.g = g.g AND s.src = l.src WHERE l.src = $1 AND g.ev <> 'deny' AND l.kind = 'request' "
        "AND l.r NOT IN (SELECT r FROM pair WHERE src = $1) AND g.g NOT IN (SELECT g FROM pair WHERE src = $1)",
        src,
    )
    tables.make(
        "best",
        "SELECT g, r, dt, row_number() OVER (PARTITION BY g ORDER BY abs(dt), r) AS place, "
        "row_number() OVER (PARTITION BY g, action, method, path, category ORDER BY abs(dt), r) AS sort, "
        "row_number() OVER (PARTITION BY g, action, method, path, category, prim, tt, ok, status, ip "
        "ORDER BY r) AS twin "
        "FROM (SELECT *, row_number() OVER (PARTITION BY r ORDER BY abs(dt), g) AS k FROM found) n WHERE n.k = 1",
    )


def _pair_candidates(tables: Tables, src: int, target: Target, how: str) -> None:
    """A request may be several events: all that carry the target's own id, and one of each kind by an id that the
    client chose, which another client may have copied.
    """
    by_target = how == "request id"
    several = "twin = 1" if by_target else "sort = 1"
    tables.add(
        "pair",
        f"SELECT $1, g, r, '{how}', 0, dt FROM best WHERE {'place = 1' if target.one else several}",
        src,
    )
    if by_target:  # equal in everything: the export holds it twice
        tables.add("aside", "SELECT r, 'duplicate', 0 FROM best WHERE twin > 1")
        tables.remove("live", "r IN (SELECT r FROM best WHERE twin > 1)")


def measure(tables: Tables, src: int, target: Target) -> Skew:
    """How far the target's clock is off: from paired records, else from the Date headers of its answers."""
    resolution = target.resolution_ms * 1000
    for by, sql in (
        ("paired records", "SELECT dt FROM pair WHERE src = $1"),
        ("Date headers", "SELECT g.skew AS dt FROM gw g JOIN gs s ON s.g = g.g WHERE s.src = $1 AND g.dated = 1"),
    ):
        samples, median = tables.one(f"SELECT count(*), {_MEDIAN} FROM ({_ranked(sql, 'dt')}) q", src)
        if not isinstance(median, int) or not isinstance(samples, int):
            continue
        mad = tables.number(f"SELECT {_MEDIAN} FROM ({_ranked(sql, f'abs(dt - ({median}))')}) q", src)
        window = min(max(LEAST_WINDOW, 4 * mad), OFF) + resolution
        return Skew(median=median, mad=mad, samples=samples, by=by, window=window)
    return Skew(window=LEAST_WINDOW + resolution)


# The lower one of the two in the middle; engines differ in what they call a quantile.
_MEDIAN = "max(CASE WHEN q.k = (q.n + 1) // 2 THEN q.x END)"


def _ranked(select: str, value: str) -> str:
    return (
        f"SELECT x, row_number() OVER (ORDER BY x) AS k, count(*) OVER () AS n FROM (SELECT {value} AS x "
        f"FROM ({select}) d) v"
    )


def _in_windows(tables: Tables, src: int, target: Target, skew: Skew) -> None:
    exact = list(target.key)
    if "status" not in exact:
        exact.append("ok")
    loose = [name for name in target.key if name != "status"]
    tight = TIGHT + target.resolution_ms * 1000 if skew.samples else skew.window
    rounds = [(exact, min(tight, skew.window)), (exact, skew.window), (loose, skew.window)]
    for at, (key, window) in enumerate(rounds):
        _islands(tables, src, target, key, skew.median, window)
        _pair_equal(tables, src, window)
        if at > 0:
            _pair_unequal(tables, src, window, strong=target.strong)


def _key(names: list[str], *, ours: bool) -> str:
    """The key's columns as one text, of a request or of a record."""
    of_ours = {
        "service": "s.service", "host": "g.host", "method": "g.method", "path": "coalesce(t.route, g.path)",
        "status": "CAST(g.status AS VARCHAR)", "ok": "CAST(g.ok AS VARCHAR)", "action": "''",
    }  # fmt: skip
    of_theirs = {name: f"l.{name}" for name in of_ours} | {
        "status": "CAST(l.status AS VARCHAR)", "ok": "CAST(l.ok AS VARCHAR)", "action": "''",
    }  # fmt: skip
    table = of_ours if ours else of_theirs
    return "concat_ws(chr(31), " + ", ".join(table[name] for name in names) + ")"


def _islands(tables: Tables, src: int, target: Target, key: list[str], shift: int, window: int) -> None:
    """Fill `isle`: what is left of both sides, in groups of one key without a pause longer than the window."""
    tables.make(
        "isle",
        "WITH sides AS ("
        f"SELECT {_key(key, ours=True)} AS k, 0 AS side, g.g AS id, {_ours(target)} AS moment FROM gs s "
        "JOIN gw g ON g.g = s.g LEFT JOIN route t ON t.src = s.src AND t.path = g.path "
        "WHERE s.src = $1 AND g.ev <> 'deny' AND s.g NOT IN (SELECT g FROM pair WHERE src = $1) "
        f"UNION ALL SELECT {_key(key, ours=False)} AS k, 1 AS side, l.r AS id, l.tt - $2 AS moment FROM live l "
        "WHERE l.src = $1 AND l.kind = 'request' AND l.r NOT IN (SELECT r FROM pair WHERE src = $1)), "
        "jumps AS (SELECT *, CASE WHEN moment - lag(moment) OVER (PARTITION BY k ORDER BY moment, side, id) > $3 "
        "THEN 1 ELSE 0 END AS jump FROM sides), "
        "grouped AS (SELECT k, side, id, moment, sum(jump) OVER (PARTITION BY k ORDER BY moment, side, id) "
        "AS isle FROM jumps), "
        "counted AS (SELECT *, sum(1 - side) OVER (PARTITION BY k, isle) AS n, "
        "sum(side) OVER (PARTITION BY k, isle) AS m, "
        "row_number() OVER (PARTITION BY k, isle, side ORDER BY moment, id) AS place FROM grouped) "
        "SELECT * FROM counted WHERE n > 0 AND m > 0",
        src,
        shift,
        window,
    )


def _pair_equal(tables: Tables, src: int, window: int) -> None:
    """As many of one as of the other: the first with the first, the second with the second, each within the window."""
    tables.add(
        "pair",
        "SELECT $1, a.id, b.id, 'window', CASE WHEN a.n > 1 THEN 1 ELSE 0 END, b.moment - a.moment "
        "FROM isle a JOIN isle b ON a.k = b.k AND a.isle = b.isle AND a.place = b.place "
        "WHERE a.side = 0 AND b.side = 1 AND a.n = a.m AND abs(b.moment - a.moment) <= $2",
        src,
        window,
    )


def _pair_unequal(tables: Tables, src: int, window: int, *, strong: bool) -> None:
    """More of one than of the other: as many pairs as there can be, at the least distance; the rest is a surplus."""
    pairs: list[tuple[object, ...]] = []
    rest: list[tuple[object, ...]] = []
    group: list[tuple[int, int, int]] = []
    last: tuple[object, object] | None = None
    for k, isle, side, id_, at in tables.rows(
        "SELECT k, isle, side, id, moment FROM isle WHERE n <> m ORDER BY k, isle, moment, side, id"
    ):
        if last is not None and (k, isle) != last:
            _settle(src, group, window, pairs, rest)
            group = []
        last = (k, isle)
        group.append((int(str(side)), int(str(id_)), int(str(at))))
    if group:
        _settle(src, group, window, pairs, rest)
    kinds = {"src": "SMALLINT", "g": "BIGINT", "r": "BIGINT", "dt": "BIGINT"}
    tables.fill("more", kinds, pairs)
    tables.add("pair", "SELECT src, g, r, 'window', 1, dt FROM more")
    tables.fill("left_over", _SURPLUS, rest)
    tables.add("surplus", "SELECT src, side, id, n, m FROM left_over")


def _settle(
    src: int,
    group: list[tuple[int, int, int]],
    window: int,
    pairs: list[tuple[object, ...]],
    rest: list[tuple[object, ...]],
) -> None:
    ours = [(at, id_) for side, id_, at in group if side == 0]
    theirs = [(at, id_) for side, id_, at in group if side == 1]
    chosen = align([at for at, _ in ours], [at for at, _ in theirs], window)
    pairs.extend((src, ours[i][1], theirs[j][1], theirs[j][0] - ours[i][0]) for i, j in chosen)
    used_ours, used_theirs = {i for i, _ in chosen}, {j for _, j in chosen}
    sizes = (len(ours), len(theirs))
    rest.extend((src, "g", id_, *sizes) for i, (_, id_) in enumerate(ours) if i not in used_ours)
    rest.extend((src, "r", id_, *sizes) for j, (_, id_) in enumerate(theirs) if j not in used_theirs)
