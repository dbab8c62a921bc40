"""The values that are looked for, in several processes: what one of them learns the others are told."""

from collections.abc import Callable

from credgate.known import KnownValues

_KEPT = 16  # values of one name, as KnownValues keeps

type Value = tuple[str, str, str]  # name, value, Basic text
type Tell = Callable[[Value], None]


class SharedValues(KnownValues):
    """Thread-safe but for `tell`, which is called on the thread that adds: the loop's."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, dict[Value, None]] = {}
        self.tell: Tell | None = None

    def add(self, name: str, value: str, *, basic: str = "") -> None:
        """As KnownValues.add; a value that is new goes to the other processes before this returns."""
        super().add(name, value, basic=basic)
        told, key = self._told.setdefault(name, {}), (name, value, basic)
        if key in told:
            told[key] = told.pop(key)
            return
        told[key] = None
        while len(told) > _KEPT:
            del told[next(iter(told))]
        if self.tell is not None:
            self.tell(key)

    def take(self, value: Value) -> None:
        """Add what another process told; it is not told on."""
        tell, self.tell = self.tell, None
        try:
            self.add(value[0], value[1], basic=value[2])
        finally:
            self.tell = tell

    def values(self) -> tuple[Value, ...]:
        """All of them, the oldest first."""
        return tuple(key for told in self._told.values() for key in told)
