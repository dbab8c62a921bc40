"""Patterns of names in a tree: what each means, and that it never means more."""

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.treenames import TreePattern, TreePatternError, union

MEANS = [
    ("deploy/", ["deploy", "a/deploy", "a/b/deploy"], ["deploys", "a/xdeploy", "deploy/x"]),
    ("*.p12", ["a.p12", "x/y.p12", ".p12"], ["a.p12x", "p12", "a.p12/b"]),
    ("infra/prod", ["infra/prod"], ["x/infra/prod", "infra/prod/a", "infra/x/prod"]),
    ("infra/**/*.tf", ["infra/a.tf", "infra/x/y/a.tf"], ["a.tf", "x/infra/a.tf", "infra/a.tfx"]),
    ("infra/**", ["infra/a", "infra/a/b"], ["infra", "x/infra/a"]),
    ("**/x", ["x", "a/x", "a/b/x"], ["ax", "x/a"]),
    ("id_?", ["id_a", "x/id_b"], ["id_", "id_ab", "id_/"]),
    ("a.b", ["a.b"], ["axb"]),
    ("[x]", ["[x]"], ["x"]),
]


@pytest.mark.parametrize(("text", "yes", "no"), MEANS)
def test_what_a_pattern_means(text: str, yes: list[str], no: list[str]) -> None:
    regex = re.compile(TreePattern.parse(text).regex(), re.DOTALL)
    assert [path for path in yes if not regex.fullmatch(path)] == []
    assert [path for path in no if regex.fullmatch(path)] == []


@pytest.mark.parametrize("text", ["/a", "~/a", "../a", "a/../b", "a//b", "./a", "", "/", "*", "**", "*/**", "a**"])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(TreePatternError) as caught:
        TreePattern.parse(text)
    assert caught.value.detail and caught.value.hint


def test_a_pattern_of_too_many_parts_is_none() -> None:
    with pytest.raises(TreePatternError, match="got 40 parts, expected at most 32"):
        TreePattern.parse("x/" * 40)


def test_parts_that_are_asked_for() -> None:
    pattern = TreePattern.parse("a/b/")
    assert (pattern.path, pattern.anchored, pattern.directory, pattern.literal) == ("a/b", True, True, True)
    assert not TreePattern.parse("a*").literal
    assert union([]) is None


@given(st.text(alphabet="ab*?./[\\(+", max_size=12), st.text(alphabet="ab./[\\(+\n", max_size=12))
def test_any_text_is_a_pattern_or_an_error_and_names_no_other_literal(text: str, path: str) -> None:
    try:
        pattern = TreePattern.parse(text)
    except TreePatternError:
        return
    found = re.compile(pattern.regex(), re.DOTALL).fullmatch(path)
    if pattern.literal and found:
        assert path == pattern.path or (not pattern.anchored and path.endswith("/" + pattern.path))
    assert not (pattern.literal and path == pattern.path and not found)


def meant(parts: tuple[str, ...], names: list[str]) -> bool:
    """The same by trying every way, a part at a time."""
    if not parts:
        return not names
    if parts[0] == "**":
        least = 1 if len(parts) == 1 else 0
        return any(meant(parts[1:], names[count:]) for count in range(least, len(names) + 1))
    return bool(names) and fits(parts[0], names[0]) and meant(parts[1:], names[1:])


def fits(part: str, name: str) -> bool:
    if not part:
        return not name
    if part[0] == "*":
        return any(fits(part[1:], name[count:]) for count in range(len(name) + 1))
    return bool(name) and part[0] in ("?", name[0]) and fits(part[1:], name[1:])


NAMES = st.text(alphabet="ab", min_size=1, max_size=4)
PARTS = st.one_of(st.just("**"), st.text(alphabet="ab*?", min_size=1, max_size=5).filter(lambda part: "**" not in part))


@given(st.lists(PARTS, min_size=1, max_size=5), st.lists(NAMES, min_size=1, max_size=6))
def test_it_means_what_every_way_of_trying_finds(parts: list[str], names: list[str]) -> None:
    try:
        pattern = TreePattern.parse("/".join(parts))
    except TreePatternError:
        return
    path = "/".join(names)
    tails = [names] if pattern.anchored else [names[start:] for start in range(len(names))]
    expected = any(meant(pattern.parts, tail) for tail in tails)
    assert (re.fullmatch(pattern.regex(), path, re.DOTALL) is not None) is expected
    # as `rules.naming` asks: of the path, or of a directory on its way
    heads = [names[:end] for end in range(1, len(names) + 1)]
    some = any(
        meant(pattern.parts, head[start:]) for head in heads for start in range(1 if pattern.anchored else len(head))
    )
    assert (re.fullmatch(f"(?:{pattern.regex()})(?:/.*)?", path, re.DOTALL) is not None) is some


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("*a*a*a*a*a*a*a*a*b", "a" * 250),
        ("**/a/**/a/**/a/**/a/**/a/**/b", "a/" * 2000 + "a"),
        ("**/**/**/**/**/**/b", "a/" * 2000 + "a"),
        ("x/**/*a*/**/*a*a*/**/b?", "x/" + "aaaa/" * 800 + "a"),
    ],
)
def test_no_name_takes_long(text: str, path: str) -> None:
    """Each would take hours where every way is tried; here it takes less than a second."""

    def over(*_: object) -> None:
        raise AssertionError("it takes too long")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, 20.0)  # of this process's own CPU time
    try:
        assert not re.fullmatch(TreePattern.parse(text).regex(), path, re.DOTALL)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def test_a_name_means_both_forms_that_a_file_system_keeps_of_it() -> None:
    """What macOS unpacked is decomposed; both look the same to whoever wrote the pattern."""
    composed, decomposed = "schl\u00fcssel/*.tx\u00e9", "schlu\u0308ssel/*.txe\u0301"
    for text in (composed, decomposed):
        found = union([TreePattern.parse(text)])
        assert found is not None
        for path in (composed, decomposed):
            assert found.fullmatch(path.replace("*", "a"))
        assert not found.fullmatch("schlussel/a.txe")
