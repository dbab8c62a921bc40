"""Invariant: what a process that is forked has made is the same afterwards, and no reference to it is counted."""

import subprocess
import sys

import pytest

from jail import immortal

MARKED = """
import ctypes, gc, sys
from jail import fdpass, immortal
class Own: pass
kept, word, own = [{"a": (1.5, "mine" * 3)}], "a word of ours", Own()
own.word = word
def count(thing): return ctypes.c_uint32.from_address(id(thing)).value
def used(thing): return sum(each is thing for each in [thing] * 9)
before = [count(thing) for thing in (kept, kept[0], kept[0]["a"], own, Own, used, used.__code__)]
found = immortal.forever()
gc.freeze()
mark = count(None)
things = [kept, kept[0], kept[0]["a"], kept[0]["a"][1], own, word, Own, used, used.__code__, used.__code__.co_consts]
things += [fdpass.send, fdpass.send.__code__, fdpass.__dict__, sys.modules]
assert [count(thing) for thing in things] == [mark] * len(things), [count(thing) - mark for thing in things]
assert mark not in before and found > 1000
assert [used(thing) for thing in things] == [9] * len(things)
assert [count(thing) for thing in things] == [mark] * len(things)
kept.append([used])
own.word = "another"
del kept[0], things
gc.collect()
assert count([]) != mark and (kept[-1][0](word), own.word, used.__name__) == (9, "another", "used")
print(found)
"""


@pytest.mark.skipif(not immortal.possible(), reason="another interpreter's counts are left as they are")
def test_references_to_what_was_there_are_not_counted_and_it_is_used_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", MARKED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 1000


def test_of_another_interpreter_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[object] = []
    monkeypatch.setattr(immortal, "_count", touched.append)
    for name, value in (("KNOWN", ((3, 11),)), ("sys", _Free())):
        with monkeypatch.context() as patch:
            patch.setattr(immortal, name, value)
            assert (immortal.possible(), immortal.forever()) == (False, 0)
    assert touched == []


class _Free:
    """An interpreter without its one lock, which counts twice."""

    abiflags, implementation, version_info, maxsize = "t", sys.implementation, sys.version_info, sys.maxsize


def test_the_child_of_such_a_process_copies_fewer_pages() -> None:
    """The control is the same process without it."""

    def copied(first: str) -> int:
        script = f"""
import gc, json, os, resource
from jail import immortal
kept = [[str(number), (number, 1.0 * number)] for number in range(40_000)]
{first}
gc.freeze()
def look():
    return sum(len(text) + pair[0] for text, pair in kept)
look()
pid = os.fork()
if pid == 0:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    look()
    os._exit(min(255, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return int(done.stdout)

    if immortal.possible():
        assert copied("immortal.forever()") < copied("pass") // 4
