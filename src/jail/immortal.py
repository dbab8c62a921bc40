"""Objects whose references are no longer counted, in a process that is there to be forked.

A count is a write, and a write to a page that a fork shares is a fault and a copy of it (measured: 1,330 of them a
launch, 950 with this). What lives as long as the process does needs none: PEP 683, which the interpreter uses for its
own.
"""

import ctypes
import gc
import sys
import types

# Where an object's count lies, and what it is for one that is never freed, differ by version (Include/refcount.h).
# These were tried; by another one references are counted as ever.
KNOWN = ((3, 12), (3, 13))
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
    mark, marked = _count(None).value, 0
    left = gc.get_objects()
    while left:
        each = left.pop()
        count = _count(each)
        # What is marked was looked into. A set of what was seen would leave a megabyte that each fork copies pieces of.
        if count.value == mark or isinstance(each, _PASSING):
            continue
        count.value = mark
        marked += 1
        left.extend(_within(each))
    return marked


def _count(thing: object) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_address(id(thing))


def _within(thing: object) -> list[object]:
    if isinstance(thing, types.CodeType):  # the collector doesn't look into it
        return [getattr(thing, name) for name in _PARTS]
    return gc.get_referents(thing)
