"""Things by host pattern: those that mean a name are found by its labels, however many others there are. Pure."""

from collections.abc import Iterable

from rules.hosts import HostPattern

__all__ = ["HostIndex"]

type Labels = tuple[str, ...]


class HostIndex[T]:
    """Built once. What it returns is in the order in which it was given."""

    __slots__ = ("_below", "_by_pattern", "_things")

    def __init__(self, items: Iterable[tuple[HostPattern, T]]) -> None:
        self._things: list[T] = []
        self._by_pattern: dict[tuple[str, Labels], list[int]] = {}  # "", "*" or "**", and the labels behind it
        self._below: dict[Labels, list[int]] = {}  # by each ending of their labels
        for number, (pattern, thing) in enumerate(items):
            self._things.append(thing)
            self._by_pattern.setdefault((pattern.wild, pattern.labels), []).append(number)
            for start in range(len(pattern.labels)):
                self._below.setdefault(pattern.labels[start:], []).append(number)

    def matching(self, labels: Labels) -> list[T]:
        """Those that mean the host of these labels, as HostPattern.matches_labels tells."""
        numbers = list(self._by_pattern.get(("", labels), ()))
        numbers += self._by_pattern.get(("*", labels[1:]), ())
        for start in range(1, len(labels)):
            numbers += self._by_pattern.get(("**", labels[start:]), ())
        return [self._things[number] for number in sorted(numbers)]

    def near(self, pattern: HostPattern) -> list[T]:
        """All that share a host with the pattern, and perhaps some that don't: what is left out shares none."""
        labels = pattern.labels
        numbers = set(self._below.get(labels, ()))  # those below it
        numbers.update(self._by_pattern.get(("*", labels[1:]), ()))
        for start in range(len(labels)):  # those that reach down to it
            numbers.update(self._by_pattern.get(("**", labels[start:]), ()))
        return [self._things[number] for number in sorted(numbers)]
