"""Names for the JSON of a plan. The aliases are lazy and `typing` is for the checker alone: its import costs pid 1 time."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

type Plan = dict[str, Any]
type Operation = dict[str, Any]
