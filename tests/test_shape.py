"""The sources' own bounds: length of files and functions, and a reason beside everything that is switched off."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
SOURCES = sorted((CHECKOUT / "src").rglob("*.py"))
TESTS = sorted((CHECKOUT / "tests").rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 400, 40

# What is longer and why. An entry that is not needed any more is a failure too.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# Of a suppression: what it is, then what stands behind it in the same comment.
_SUPPRESSION = re.compile(r"#\s*(noqa(?::\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*)?|type:\s*ignore(?:\[[a-z, -]+\])?)(.*)")
# Codes whose every use has one reason, which is told here instead of each time.
EVIDENT = {
    "PLC0415": "imported where it is used: it is slow, or may be missing, and most callers do without it",
    "PTH": "a path that may hold surrogates, or one system call on a path that is hot: no object for it",
    "no-untyped-call": "a library without types",
}


def too_long(path: Path, text: str) -> Iterator[str]:
    """Names of the functions over their bound."""
    for node in ast.walk(ast.parse(text, path.name)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES:
            yield node.name


def unreasoned(text: str, *, ignores: bool = True) -> Iterator[str]:
    """Suppressions without a word of why: behind them, in the line above, or in the same group of lines."""
    reasoned_until = -1
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for line, comment in comments.items():
        found = _SUPPRESSION.search(comment)
        if found is None:
            continue
        kind, why = found[1], found[2].strip(" -")
        above = comments.get(line - 1, "")
        if why or (above and _SUPPRESSION.search(above) is None) or line - 1 == reasoned_until:
            reasoned_until = line
        elif not any(code in kind for code in EVIDENT) and (ignores or not kind.startswith("type")):
            yield f"{line}: {comment}"


def named(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def test_no_file_is_over_its_bound() -> None:
    over = {named(path) for path in SOURCES if len(path.read_text().splitlines()) > FILE_LINES}
    assert over == set(LONG_FILES)


def test_no_function_is_over_its_bound() -> None:
    over = {f"{named(path)}:{name}" for path in SOURCES for name in too_long(path, path.read_text())}
    assert over == set(LONG_FUNCTIONS)


def test_what_is_switched_off_in_the_sources_says_why() -> None:
    assert [f"{named(path)}:{one}" for path in SOURCES for one in unreasoned(path.read_text())] == []


def test_what_is_switched_off_in_tests_says_why() -> None:
    """mypy reads the sources alone; an ignore for it in a test is for editors."""
    found = [f"{named(path)}:{one}" for path in TESTS for one in unreasoned(path.read_text(), ignores=False)]
    assert found == []


def calls_of_skip(text: str) -> Iterator[tuple[int, ast.Call]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func).split(".")
            if words[-1] in {"skip", "skipif", "xfail", "importorskip"} and words[0] in {"pytest", "mark"}:
                yield node.lineno, node


def without_reason(text: str) -> Iterator[int]:
    for line, call in calls_of_skip(text):
        named = any(word.arg == "reason" for word in call.keywords)
        positional = ast.unparse(call.func).endswith(".skip") and call.args
        if not (named or positional):
            yield line


def test_each_skip_says_why() -> None:
    assert [f"{named(path)}:{line}" for path in TESTS for line in without_reason(path.read_text())] == []


LONG = "def f():\n" + "    pass\n" * FUNCTION_LINES


@pytest.mark.parametrize(("text", "found"), [(LONG, ["f"]), (LONG.replace("    pass\n", "", 1), [])])
def test_that_a_long_function_is_seen(text: str, found: list[str]) -> None:
    assert list(too_long(Path("x.py"), text)) == found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("x = 1  # noqa: S105\n", 1),
        ("x = 1  # noqa: S105 - no secret\n", 0),
        ("# no secret\nx = 1  # noqa: S105\n", 0),
        ("x = 1  # noqa\n", 1),
        ("x = 1  # type: ignore[arg-type]\n", 1),
        ("x = 1  # type: ignore[arg-type]  # a stub that is wrong\n", 0),
        ("x = 1  # noqa: S105 - no secret\ny = 2  # noqa: S105\n", 0),
        ("x = '# noqa: S105'\n", 0),
    ],
)
def test_that_a_missing_reason_is_seen(text: str, count: int) -> None:
    assert len(list(unreasoned(text))) == count


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pytest.skip('not here')", []),
        ("pytest.skip()", [1]),
        ("pytest.mark.skipif(True)", [1]),
        ("pytest.mark.skipif(True, reason='why')", []),
        ("pytest.mark.xfail()", [1]),
    ],
)
def test_that_a_skip_without_reason_is_seen(text: str, found: list[int]) -> None:
    assert list(without_reason(text)) == found
