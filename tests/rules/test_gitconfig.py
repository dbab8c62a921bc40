"""What a git configuration leads to: as git reads it, and never an exception."""

from hypothesis import given
from hypothesis import strategies as st

from rules.gitconfig import led, parse

TEXT = b"""\
# comment
[core]
\thooksPath = .husky/_  ; after
\tFsMonitor = "./tools/watch.sh" --quick
[include] path = ../shared.gitconfig
[includeIf "gitdir:~/x/"]
\tpath = \\
extra.inc
[alias]
\tci = !sh ./tools/ci.sh && true
\tst
[filter "a.b"]
\tclean = tools/clean %f
[branch "x"] remote = origin
[diff "pem"]
\ttextconv = "tools/with blank" -x
"""


def test_what_is_led_to() -> None:
    found = led(TEXT)
    assert found.hooks == (".husky/_",)
    assert found.includes == ("../shared.gitconfig", "extra.inc")
    assert {"./tools/watch.sh", "./tools/ci.sh", "tools/clean"} <= set(found.words)
    assert "origin" not in found.words


def test_keys_and_values() -> None:
    entries = dict(parse(b'[A "B\\"c"]\nKey = "x # y" z # w\n[d]k\n[e]\n a = 1\\n2\r\n'))
    assert entries == {'a.B"c.key': "x # y z", "d.k": "true", "e.a": "1\n2"}


def test_what_git_would_refuse_ends_it() -> None:
    assert list(parse(b"[a]\nb = 1\n???\n[core]\nhooksPath = x\n")) == [("a.b", "1")]
    assert list(parse(b"key = before any section")) == []


@given(st.binary(max_size=400) | st.text(alphabet='[]"\\=;# \n\tabc.', max_size=200).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    assert all(isinstance(word, str) for word in (*led(data).hooks, *led(data).includes, *led(data).words))


def test_a_long_line_costs_little() -> None:
    assert led(b"[core]\n" + b'\thooksPath = "' + b"\\\\" * 200_000) is not None
    assert led(b'[a "' + b"\\x" * 200_000) is not None
