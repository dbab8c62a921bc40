"""Two sorted lists of times, laid beside each other. Pure."""

from collections.abc import Callable

_DP_CELLS = 250_000

type Doubts = Callable[[int, int], int]  # by the places of the two: microseconds


def align(a: list[int], b: list[int], window: int, doubts: Doubts | None = None) -> list[tuple[int, int]]:
    """Pairs of two sorted lists of times, in their order: as many as are possible within the window, and of these the
    ones with the least sum of distances; `doubts` makes pairs seem further apart than they are.

    For long lists the first possible ones: as many, perhaps not the nearest.
    """
    if len(a) * len(b) > _DP_CELLS:
        return greedy(a, b, window)
    width = len(b) + 1
    # best[i][j]: (pairs, -distance) of the tails a[i:], b[j:]
    best = [[(0, 0)] * width for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        row, below = best[i], best[i + 1]
        for j in range(len(b) - 1, -1, -1):
            choice = max(below[j], row[j + 1])
            distance = abs(b[j] - a[i])
            if distance <= window:
                distance += doubts(i, j) if doubts is not None else 0
                count, cost = below[j + 1]
                choice = max(choice, (count + 1, cost - distance))
            row[j] = choice
    return _trace(best, a, b, window, doubts)


type _Best = list[list[tuple[int, int]]]


def _trace(best: _Best, a: list[int], b: list[int], window: int, doubts: Doubts | None) -> list[tuple[int, int]]:
    chosen, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        distance = abs(b[j] - a[i])
        count, cost = best[i + 1][j + 1]
        more = doubts(i, j) if doubts is not None else 0
        if distance <= window and best[i][j] == (count + 1, cost - distance - more):
            chosen.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return chosen


def greedy(a: list[int], b: list[int], window: int) -> list[tuple[int, int]]:
    """The first possible pairs: as many as there can be."""
    chosen, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if abs(b[j] - a[i]) <= window:
            chosen.append((i, j))
            i, j = i + 1, j + 1
        elif a[i] < b[j]:
            i += 1
        else:
            j += 1
    return chosen
