"""Attempts at what a guard forbids. Standard library and ctypes only: they run in the jail, before its command.

Each attempt takes the context (names, paths, pids, ports of the stand-ins) and returns "done" when the forbidden thing
worked; a refusal is the kernel's OSError. The same function runs outside, as the control.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

type Context = dict[str, Any]
type Attempt = Callable[[Context], str]

DONE = "done"


def refuse(number: int) -> OSError:
    """The error of an attempt that saw by itself that it was refused: an empty file, a name that is not there."""
    import os  # noqa: PLC0415 - this module stays free of imports: guards.py reads it too

    return OSError(number, os.strerror(number))
