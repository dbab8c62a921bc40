"""Names for the JSON of a plan. The aliases are lazy, `typing` is for the checker alone: pid 1 pays for imports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

type Plan = dict[str, Any]
type Operation = dict[str, Any]
