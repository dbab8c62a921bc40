"""The stage for one record that stands for many requests: Squid's CONNECT. The record says when a tunnel was open and
how much came through it, never what.

The gateway opens a tunnel because of a request, between that request's intent and its outcome, and dials nothing ahead.
So each tunnel needs a request of its own that was under way as it was opened. Which one is no matter of the ledger's
(it has no line for a connection of a request's): as many tunnels as possible get one, the nearest first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from credgate.reconcile.tables import Tables

MOST_EDGES = 400_000  # some 100 MB; beyond, tunnels and requests are assigned without looking at each pair

_LEFT = (
    "NOT IN (SELECT r FROM pair WHERE src = $1)",
    "NOT IN (SELECT g FROM pair WHERE src = $1)",
)
# At least the body of an answer came through the tunnel that it took. No more than a preference: the ledger counts what
# the client got, which is longer where a content coding was taken off or a secret written over.
_TOO_SMALL = "CASE WHEN l.size >= 0 AND g.size > l.size AND g.method <> 'HEAD' THEN 1 ELSE 0 END"
_FROM = (
    "FROM live l JOIN gw g ON g.host = l.host AND {when} JOIN gs s ON s.g = g.g AND s.src = l.src "
    f"WHERE l.src = $1 AND l.kind = 'session' AND g.ev <> 'deny' AND g.g {_LEFT[1]}"
)
# l.t - $2 is the tunnel's begin by our clock, l.te - $2 its end
_OPENED = "g.t0 <= l.t - $2 + $3 AND g.t1 >= l.t - $2 - $3"  # the request was under way as the tunnel was opened
_LATER = "g.t0 > l.t - $2 + $3 AND g.t0 <= l.te - $2 + $3"  # it began when the tunnel was open already
_WITHIN = "g.t1 >= l.t - $2 - $3 AND g.t0 <= l.te - $2 + $3"


def pair_sessions(tables: Tables, src: int, shift: int, window: int) -> None:
    """Pair tunnels with requests: each with one that may have opened it; of what is left, each with one that came
    later, for a clock may be off. Then the other requests with a tunnel that was open.

    grp 1: a tunnel that none opened, and whose requests may all have taken another.
    """
    _assign(tables, src, shift, window, later=False)
    tables.add("pair", "SELECT src, g, r, 'session' AS how, 0 AS grp, 0 AS dt FROM assigned")
    _assign(tables, src, shift, window, later=True)
    tables.make(  # a request with one tunnel to go by went by that
        "only_way",
        f"SELECT DISTINCT n.r FROM (SELECT g.g, min(l.r) AS r, count(*) AS n {_FROM.format(when=_WITHIN)} "
        "GROUP BY g.g) n WHERE n.n = 1",
        src,
        shift,
        window,
    )
    tables.add(
        "pair",
        "SELECT a.src, a.g, a.r, 'session' AS how, CASE WHEN w.r IS NULL THEN 1 ELSE 0 END AS grp, 0 AS dt "
        "FROM assigned a LEFT JOIN only_way w ON w.r = a.r",
    )
    tables.make("explained", "SELECT r FROM pair WHERE src = $1", src)
    tables.add(
        "pair",
        "SELECT $1, n.g, n.r, 'session', 0, 0 FROM (SELECT g.g, l.r, row_number() OVER "
        f"(PARTITION BY g.g ORDER BY l.t, l.r) AS k {_FROM.format(when=_WITHIN)} "
        "AND l.r IN (SELECT r FROM explained)) n WHERE n.k = 1",
        src,
        shift,
        window,
    )


def _assign(tables: Tables, src: int, shift: int, window: int, *, later: bool) -> None:
    """Fill `assigned`: (src, g, r)."""
    candidates = f"{_FROM.format(when=_LATER if later else _OPENED)} AND l.r {_LEFT[0]}"
    if tables.number(f"SELECT count(*) {candidates}", src, shift, window) <= MOST_EDGES:
        edges = f"SELECT l.r, g.g, {_TOO_SMALL} AS small, abs(g.t0 - l.t + $2) AS d {candidates}"
        rows = tables.rows(f"SELECT n.r, n.g FROM ({edges}) n ORDER BY n.small, n.d, n.r, n.g", src, shift, window)
        found = nearest((int(str(r)), int(str(g))) for r, g in rows)
    else:
        found = _without_edges(tables, src, shift, window, later=later)
    kinds = {"src": "SMALLINT", "g": "BIGINT", "r": "BIGINT"}
    tables.fill("assigned", kinds, [(src, g, r) for r, g in sorted(found.items())])


def nearest(edges: Iterable[tuple[int, int]]) -> Mapping[int, int]:
    """A request for each tunnel, for as many tunnels as there can be. `edges`: (tunnel, request), the nearest first.

    The nearest that are free for each other; then, for tunnels without one, along augmenting paths (Berge): a tunnel
    takes a request from another that has a further choice.
    """
    choices: defaultdict[int, list[int]] = defaultdict(list)
    request: dict[int, int] = {}
    tunnel: dict[int, int] = {}
    for r, g in edges:
        choices[r].append(g)
        if r not in request and g not in tunnel:
            request[r], tunnel[g] = g, r
    hopeless: set[int] = set()  # requests from which no path led to a free one: none ever will
    for r in choices:
        if r not in request:
            _augment(r, choices, request, tunnel, hopeless)
    return request


def _augment(
    begin: int,
    choices: Mapping[int, Sequence[int]],
    request: dict[int, int],
    tunnel: dict[int, int],
    hopeless: set[int],
) -> None:
    """Give `begin` a request, breadth first, where the tunnels on the way can change theirs."""
    came: dict[int, int] = {}  # request -> the tunnel that asked for it
    queue = [begin]
    for r in queue:
        for g in choices[r]:
            if g in came or g in hopeless:
                continue
            came[g] = r
            if g in tunnel:
                queue.append(tunnel[g])
                continue
            at: int | None = g
            while at is not None:
                asked = came[at]
                before = request.get(asked)
                request[asked], tunnel[at] = at, asked
                at = before
            return
    hopeless.update(came)


type _Span = tuple[int, int, int]  # first moment, last moment, id


def _without_edges(tables: Tables, src: int, shift: int, window: int, *, later: bool) -> dict[int, int]:
    """As `nearest`, as many and perhaps not the nearest, for a host with very many at once. Sizes don't count here."""
    sessions = (
        "SELECT l.host, l.t - $2 AS a, l.te - $2 AS b, l.r AS id FROM live l "
        f"WHERE l.src = $1 AND l.kind = 'session' AND l.r {_LEFT[0]} ORDER BY id"
    )
    requests = (
        "SELECT g.host, g.t0 AS a, g.t1 AS b, g.g AS id FROM gs s JOIN gw g ON g.g = s.g "
        f"WHERE s.src = $1 AND g.ev <> 'deny' AND g.g {_LEFT[1]} ORDER BY id"
    )
    tunnels, asked = _by_host(tables.rows(sessions, src, shift)), _by_host(tables.rows(requests, src))
    found: dict[int, int] = {}
    for host in sorted(tunnels.keys() & asked.keys()):
        if later:
            spans = [(a + window + 1, b + window, r) for a, b, r in tunnels[host]]
            found |= {r: g for g, r in covered([(a, g) for a, _, g in asked[host]], spans)}
        else:
            spans = [(a - window, b + window, g) for a, b, g in asked[host]]
            found |= dict(covered([(a, r) for a, _, r in tunnels[host]], spans))
    return found


def _by_host(rows: Iterable[tuple[object, ...]]) -> Mapping[str, list[_Span]]:
    found: defaultdict[str, list[_Span]] = defaultdict(list)
    for host, a, b, id_ in rows:
        found[str(host)].append((int(str(a)), int(str(b)), int(str(id_))))
    return found


def covered(points: Iterable[tuple[int, int]], spans: Iterable[_Span]) -> list[tuple[int, int]]:
    """Pairs of ids, of a point and a span that holds it, each once: as many as there can be (Glover 1967). Of the spans
    that are open the one that ends first is taken.
    """
    waiting = sorted(spans, reverse=True)
    open_: list[tuple[int, int]] = []
    found = []
    for at, id_ in sorted(points):
        while waiting and waiting[-1][0] <= at:
            _, last, span = waiting.pop()
            heappush(open_, (last, span))
        while open_ and open_[0][0] < at:
            heappop(open_)
        if open_:
            found.append((id_, heappop(open_)[1]))
    return found
