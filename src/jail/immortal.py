"""Objects whose references are no longer counted, in a process that is there to be forked.

A count is a write, and a write to a page that a fork shares is a fault and a copy of it (measured: 1,330 of them a
launch, 950 with this). What lives as long as the process does needs none: PEP 683, which the interpreter uses for its
own.
"""

import ctypes
import gc
import sys
import types
from typing import Any

# Where an object's count lies, and what it is for one that is never freed, differ by version (Include/refcount.h).
KNOWN = ((3, 12), (3, 13), (3, 14))
_PARTS = ("co_consts", "co_names", "co_filename", "co_name", "co_qualname", "co_linetable", "co_exceptiontable")
_PASSING = (types.FrameType, types.GeneratorType, types.CoroutineType, types.TracebackType)


def possible() -> bool:
    """Whether this interpreter is one that is known, with one lock (without it there are two counts)."""
    locked, wide = "t" not in sys.abiflags, sys.maxsize > 1 << 32
    return sys.implementation.name == "cpython" and sys.version_info[:2] in KNOWN and locked and wide


def forever() -> int:
    """No longer count references to anything that there is now, and is reached from what the collector knows.

    What is freed by its last reference will not be any more: for a process whose objects are made, and that closes what
    it opens. Returns how many they are, 0 where the interpreter is another one.
    """
    if not possible():
        return 0
    gc.collect()
    found = _reached(gc.get_objects())
    mark = _count(None).value
    for each in found:
        _count(each).value = mark
    return len(found)


def _count(thing: object) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(id(thing))


def _reached(left: list[Any]) -> list[Any]:
    found: list[Any] = []
    seen: set[int] = set()
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, _PASSING):
            continue
        seen.add(id(each))
        found.append(each)
        if isinstance(each, types.CodeType):  # the collector doesn't look into it
            left.extend(getattr(each, name) for name in _PARTS)
        else:
            left.extend(gc.get_referents(each))
    return found
