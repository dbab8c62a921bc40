"""What a process's command line shows once it is written over."""

import subprocess
import sys
from pathlib import Path

import pytest

from jail import title

SHOW = """
import sys
sys.path.insert(0, sys.argv[1])
from jail import title
if sys.argv[2] == "blank": title.blank()
print(open("/proc/self/cmdline", "rb").read())
print(len(sys.argv), open("/proc/self/comm").read().strip())
"""


@pytest.mark.parametrize("blank", [True, False])
def test_arguments_are_written_over_and_nothing_else(blank: bool) -> None:
    source = str(Path(title.__file__).parents[1])
    words = [sys.executable, "-I", "-S", "-c", SHOW, source, "blank" if blank else "keep", "more"]
    done = subprocess.run(words, env={"KEPT": "1"}, capture_output=True, text=True, timeout=30, check=True)
    shown, rest = done.stdout.splitlines()
    length = sum(len(word) + 1 for word in words)
    expected = title.NAME.ljust(length, b"\0") if blank else b"".join(word.encode() + b"\0" for word in words)
    assert shown == repr(expected)
    assert rest.split()[0] == "4"
