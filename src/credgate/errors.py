"""The one error base of this package, and the one place that prints it."""

import sys

from credgate.text import escape

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from typing import TextIO


class CredgateError(Exception):
    """Something a person can mend. `code` is stable, `detail` says got/expected, `hint` says what to do.

    None of the three ever holds a secret, and none goes into the jail.
    """

    def __init__(self, code: str, detail: str, hint: str = "", exit_status: int = 1) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.hint = hint
        self.exit_status = exit_status


def print_error(error: CredgateError, stream: "TextIO | None" = None) -> int:
    """Write `error: ...` and `hint: ...`, a hint a line, control characters escaped; return the exit status."""
    out = sys.stderr if stream is None else stream
    if out is None:  # closed by the caller; the status is all that can be said
        return error.exit_status
    out.write(f"error: {escape(error.detail)}\n")
    for hint in error.hint.split("\n") if error.hint else ():
        out.write(f"hint: {escape(hint)}\n")
    out.flush()
    return error.exit_status
