"""Errors of this package: what is wrong, and how to mend it. No error here ever holds a secret's value."""

from collections.abc import Iterable
from dataclasses import dataclass

MOST = 1000  # characters of a text for people; what it quotes has no bound
_HEAD, _TAIL = 600, 300  # of a longer one: what is wrong is said at either end


def brief(text: str) -> str:
    """The text without its middle where it is too long to be read."""
    return text if len(text) <= MOST else f"{text[:_HEAD]} ... {text[-_TAIL:]}"


class RulesError(Exception):
    """Base of every error of `rules`. `code` is stable; `detail` says got/expected; `hint` says the mend or is ""."""

    code = "rules"

    def __init__(self, detail: str, hint: str = "") -> None:
        detail, hint = brief(detail), brief(hint)
        super().__init__(detail, hint)
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return _lines(self.detail, self.hint)


class HostError(RulesError, ValueError):
    """A text that is not a host name, or a host pattern that means too much."""

    code = "host_invalid"


class AddressError(RulesError, ValueError):
    """A text that is not an address in its one canonical spelling."""

    code = "address_invalid"


class PathError(RulesError, ValueError):
    """A path pattern that is not in normal form."""

    code = "path_invalid"


class FieldPathError(RulesError, ValueError):
    """A path to a field of a body that can't be read."""

    code = "field_path_invalid"


class ShapeError(RulesError, ValueError):
    """A placeholder's shape that makes no usable decoy."""

    code = "shape_invalid"


class TableError(RulesError, ValueError):
    """A name table that cannot be read back from its JSON."""

    code = "table_invalid"


class InjectError(RulesError):
    """A secret that cannot stand in its place. Names the secret, never its value."""

    code = "secret_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault of a policy file. `where` is the key's path in the file, e.g. "endpoint.github-api.port"."""

    where: str
    message: str
    hint: str = ""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, brief(getattr(self, name)))

    def __str__(self) -> str:
        return _lines(f"{self.where}: {self.message}" if self.where else self.message, self.hint)


class PolicyError(RulesError):
    """A policy that cannot be used, with all of its faults at once."""

    code = "policy_invalid"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0] if self.problems else Problem(where="", message="the policy cannot be used")
        super().__init__(f"{first.where}: {first.message}" if first.where else first.message, first.hint)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def _lines(detail: str, hint: str) -> str:
    return f"error: {detail}\nhint: {hint}" if hint else f"error: {detail}"
