"""The stage for a record that stands for many requests: a CONNECT in a proxy's log. It says when a tunnel was open and
how much came through it, never what.

The ledger says of each request when the proxy was asked for a tunnel for it, if it was (`gdial`): so each of these
instants explains one tunnel that began there, and nothing else does. Only tunnels of before the ledger's first such
instant are explained by the requests within their time.

`pair.grp` 1: a tunnel that began within the window and not where it should have; 2: one that a request without an
outcome may have opened. Both are `ambiguous`.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from credgate.reconcile.align import Doubts, align, greedy
from credgate.reconcile.model import SECOND
from credgate.reconcile.tables import Tables

TIGHT = 250_000  # microseconds from where a tunnel was asked for to its begin in the proxy's log, its clock allowed for
_CANDIDATES = 256  # offsets of the proxy's clock that are tried
_SAMPLE = 4096  # tunnels by which they are judged
_LEAST_BEYOND = 3  # tunnels by which a clock beyond the window is spoken of
_AHEAD = SECOND  # a tunnel that ends this long before its request does is a doubtful one


class _Asked(NamedTuple):
    """A tunnel that the gateway asked for."""

    at: int
    g: int
    end: int  # of the request
    size: int  # of its answer, -1 unknown


class _Line(NamedTuple):
    """A tunnel in the proxy's log."""

    at: int
    r: int
    end: int
    size: int


@dataclass(slots=True, kw_only=True)
class _Host:
    """Both sides of one host, sorted."""

    asked: list[_Asked]
    lines: list[_Line]


type _Pairs = list[tuple[int, int, int, int]]  # g, r, grp, how much later than expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A proxy's clock, microseconds before ours: with `shift` so many tunnels `fit`."""

    shift: int
    fit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The one within the window that was taken, and one beyond it by which clearly more would fit."""

    taken: Clock
    beyond: Clock | None


def pair_tunnels(tables: Tables, src: int, clock: int, window: int) -> Clocks:
    """Pair tunnels with the requests that they were opened for, then the requests that went by an open one.

    `clock`: the target's, where it is known; the proxy's own is found out.
    """
    hosts = _hosts(tables, src)
    sides = list(hosts.values())
    taken = _best(sides, _candidates(sides, sorted({0, clock}), window)) or Clock(shift=clock, fit=0)
    shift = taken.shift
    pairs: _Pairs = []
    surplus: list[tuple[object, ...]] = []
    for host in hosts.values():
        found = _opened(host, shift, window)
        pairs += found
        surplus += _surplus(src, host, found, shift, window)
    _add(tables, src, pairs)
    tables.fill("left_over", _SURPLUS, surplus)
    tables.add("surplus", "SELECT src, side, id, n, m FROM left_over")
    _add(tables, src, _unsettled(tables, src, shift, window))
    _carried(tables, src, shift, window)
    beyond = _best(sides, _far(sides))
    clear = beyond is not None and beyond.fit >= _LEAST_BEYOND and beyond.fit > 2 * taken.fit
    return Clocks(taken=taken, beyond=beyond if clear else None)


_SURPLUS = {"src": "SMALLINT", "side": "VARCHAR", "id": "BIGINT", "n": "BIGINT", "m": "BIGINT"}
_LINES = "FROM live l WHERE l.src = $1 AND l.kind = 'session' AND l.r NOT IN (SELECT r FROM pair WHERE src = $1)"


def _hosts(tables: Tables, src: int) -> dict[str, _Host]:
    """Hosts of which the ledger has such instants, and the tunnels that are not older than the first of them."""
    hosts: defaultdict[str, _Host] = defaultdict(lambda: _Host(asked=[], lines=[]))
    for host, *row in tables.rows(
        "SELECT g.host, d.at, g.g, g.t1, CASE WHEN g.method = 'HEAD' THEN -1 ELSE g.size END AS size FROM gdial d "
        "JOIN gw g ON g.g = d.g JOIN gs s ON s.g = g.g WHERE s.src = $1 ORDER BY g.host, d.at, g.g",
        src,
    ):
        hosts[str(host)].asked.append(_Asked(*_numbers(row)))
    for host, *row in tables.rows(f"SELECT l.host, l.t, l.r, l.te, l.size {_LINES} ORDER BY l.host, l.t, l.r", src):
        if str(host) in hosts:
            hosts[str(host)].lines.append(_Line(*_numbers(row)))
    return hosts


def _numbers(row: Sequence[object]) -> Iterator[int]:
    return (int(str(value)) for value in row)


def _best(hosts: Sequence[_Host], shifts: Iterable[int]) -> Clock | None:
    """How far the proxy's clock is off: where most tunnels have one that was asked for, and then the nearest.

    The true distance of any tunnel is among those that are tried, and with it all others lie within twice the jitter.
    """
    best: tuple[int, int, int, int] | None = None
    for shift in shifts:
        count = total = 0
        for host in hosts:
            a, b = [one.at + shift for one in host.asked[:_SAMPLE]], [line.at for line in host.lines[:_SAMPLE]]
            found = greedy(a, b, TIGHT)
            count += len(found)
            total += sum(abs(b[j] - a[i]) for i, j in found)
        score = (count, -total, -abs(shift), shift)
        best = score if best is None else max(best, score)
    return None if best is None else Clock(shift=best[3], fit=best[0])


def _candidates(hosts: Sequence[_Host], centres: Sequence[int], window: int) -> list[int]:
    """Distances of tunnels from the ones asked for, first of those that have the fewest near them."""
    near: list[tuple[int, int, list[int], int, int]] = []
    for host in hosts:
        times = [line.at for line in host.lines]
        for one in host.asked[:_SAMPLE]:
            for centre in centres:
                first = bisect_left(times, one.at + centre - window)
                last = bisect_right(times, one.at + centre + window)
                if first < last:
                    near.append((last - first, one.at, times, first, last))
    out: dict[int, None] = {}
    for _, at, times, first, last in sorted(near):
        out.update(dict.fromkeys(time - at for time in times[first : first + min(last - first, _CANDIDATES)]))
        if len(out) >= _CANDIDATES:
            break
    return list(out)


def _far(hosts: Sequence[_Host]) -> list[int]:
    """Distances of any size, of the first few."""
    out: dict[int, None] = {}
    for host in hosts[:4]:
        for one in host.asked[:4]:
            out.update(dict.fromkeys(line.at - one.at for line in host.lines[:16]))
    return list(out)


def _opened(host: _Host, shift: int, window: int) -> _Pairs:
    """One tunnel for each that was asked for: close by, and of the rest within the window."""
    pairs: _Pairs = []
    asked, lines = host.asked, host.lines
    for grp, reach in ((0, TIGHT), (1, window)):
        used: Counter[_Asked] = Counter()
        taken: set[int] = set()
        for some, others in _islands(asked, lines, shift, reach):
            a, b = [one.at + shift for one in some], [line.at for line in others]
            for i, j in align(a, b, reach, _doubts(some, others, shift, reach)):
                pairs.append((some[i].g, others[j].r, grp, b[j] - a[i]))
                used[some[i]] += 1
                taken.add(others[j].r)
        asked = sorted((Counter(asked) - used).elements())
        lines = [line for line in lines if line.r not in taken]
    return pairs


def _doubts(asked: Sequence[_Asked], lines: Sequence[_Line], shift: int, reach: int) -> Doubts:
    """A pair seems further off by the whole reach for each thing that speaks against it; how many pairs there are does
    not depend on that: a client may have got more bytes than came (a coding taken off), or later.
    """

    def doubt(i: int, j: int) -> int:
        one, line = asked[i], lines[j]
        return 2 * reach * ((0 <= line.size < one.size) + (line.end - shift < one.end - _AHEAD))

    return doubt


def _islands(
    asked: list[_Asked], lines: list[_Line], shift: int, reach: int
) -> Iterator[tuple[list[_Asked], list[_Line]]]:
    """Both sides in groups without a pause longer than `reach`, where there is any of both."""
    some: list[_Asked] = []
    others: list[_Line] = []
    last = -reach
    i = j = 0
    while i < len(asked) or j < len(lines):
        ours = j == len(lines) or (i < len(asked) and asked[i].at + shift <= lines[j].at)
        at = asked[i].at + shift if ours else lines[j].at
        if at - last > reach:
            if some and others:
                yield some, others
            some, others = [], []
        last = at
        if ours:
            some.append(asked[i])
            i += 1
        else:
            others.append(lines[j])
            j += 1
    if some and others:
        yield some, others


def _surplus(src: int, host: _Host, pairs: _Pairs, shift: int, window: int) -> Iterator[tuple[object, ...]]:
    """Of each tunnel that is left over how many were asked for within the window of its begin, how many there are."""
    taken = {r for _, r, _, _ in pairs}
    a, b = [one.at + shift for one in host.asked], [line.at for line in host.lines]
    for line in host.lines:
        n = bisect_right(a, line.at + window) - bisect_left(a, line.at - window)
        if n and line.r not in taken:
            yield src, "r", line.r, n, bisect_right(b, line.at + window) - bisect_left(b, line.at - window)


def _add(tables: Tables, src: int, pairs: _Pairs) -> None:
    columns = {"src": "SMALLINT", "g": "BIGINT", "r": "BIGINT", "grp": "TINYINT", "dt": "BIGINT"}
    tables.fill("opened", columns, [(src, *pair) for pair in sorted(pairs)])
    tables.add("pair", "SELECT src, g, r, 'session' AS how, grp, dt FROM opened")


def _unsettled(tables: Tables, src: int, shift: int, window: int) -> _Pairs:
    """Requests of which nobody wrote down whether a tunnel was asked for: no outcome, or a process that died."""
    requests: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for host, *row in tables.rows(
        "SELECT g.host, g.t0, g.t1, g.g FROM gw g JOIN gs s ON s.g = g.g WHERE s.src = $1 AND g.ev <> 'deny' "
        "AND (g.settled = 0 OR g.reason = 'worker_died') AND g.host IN "
        "(SELECT x.host FROM gdial d JOIN gw x ON x.g = d.g) AND g.g NOT IN (SELECT g FROM pair WHERE src = $1) "
        "ORDER BY g.host, g.t0, g.g",
        src,
    ):
        begin, end, g = _numbers(row)
        requests[str(host)].append((begin + shift - TIGHT, end + shift + window, g))
    pairs: _Pairs = []
    for host, *row in tables.rows(f"SELECT l.host, l.t, l.r {_LINES} ORDER BY l.host, l.t, l.r", src):
        at, r = _numbers(row)
        waiting = requests[str(host)]
        first = next((one for one in waiting if one[0] <= at <= one[1]), None)
        if first is not None:
            waiting.remove(first)
            pairs.append((first[2], r, 2, at - first[0]))
    return pairs


def _carried(tables: Tables, src: int, shift: int, window: int) -> None:
    """Each other request goes by a tunnel that was open: one that is explained; else one of before the ledger's first
    such instant.
    """
    tables.make(
        "since",
        "SELECT g.host, min(d.at) AS first FROM gdial d JOIN gw g ON g.g = d.g JOIN gs s ON s.g = g.g "
        "WHERE s.src = $1 GROUP BY g.host",
        src,
    )
    tables.make("known", "SELECT r, max(grp) AS grp FROM pair WHERE src = $1 AND how = 'session' GROUP BY r", src)
    tables.add(
        "pair",
        "SELECT $1, n.g, n.r, 'session', 0, 0 FROM (SELECT g.g, l.r, row_number() OVER (PARTITION BY g.g "
        "ORDER BY CASE WHEN k.grp = 0 THEN 0 WHEN k.r IS NULL THEN 1 ELSE 2 END, l.t, l.r) AS k "
        "FROM live l LEFT JOIN known k ON k.r = l.r LEFT JOIN since f ON f.host = l.host JOIN gw g ON g.host = l.host "
        "AND g.t1 >= l.t - $2 - $3 AND g.t0 <= l.te - $2 + $3 JOIN gs s ON s.g = g.g AND s.src = l.src "
        "WHERE l.src = $1 AND l.kind = 'session' AND g.ev <> 'deny' "
        "AND (k.r IS NOT NULL OR f.first IS NULL OR l.t - $2 < f.first - $3) "
        "AND g.g NOT IN (SELECT g FROM gdial) AND g.g NOT IN (SELECT g FROM pair WHERE src = $1)) n WHERE n.k = 1",
        src,
        shift,
        window,
    )
