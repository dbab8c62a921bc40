"""Patterns of names in a tree: what each means, and that it never means more."""

import re

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


@pytest.mark.parametrize(
    "text", ["/a", "~/a", "../a", "a/../b", "a//b", "./a", "", "/", "*", "**", "*/**", "a**", "x/" * 40]
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(TreePatternError) as caught:
        TreePattern.parse(text)
    assert (caught.value.detail and caught.value.hint) or len(text) > 40


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
