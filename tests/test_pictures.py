"""The pictures in the documents: well-formed, small, and nothing of this machine in them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pictures import COLOURS, PLAIN, short, spans, svg, wrapped

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def texts(document: str) -> list[str]:
    root = ElementTree.fromstring(document)
    return ["".join(line.itertext()) for line in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_and_holds_what_anybody_may_see(path: Path) -> None:
    text = path.read_text()
    assert len(text) < 10_000
    assert not re.search(r"/(tmp|work|opt)/|credgate-e2e|sk-acme", text)
    assert len(texts(text)) > 5


def test_the_page_shows_all_of_them() -> None:
    shown = re.findall(r"!\[.+\]\((pictures/\S+)\)", (DOCS / "first-run.md").read_text())
    assert sorted(shown) == [f"pictures/{path.name}" for path in PICTURES] != []


def test_what_is_drawn_is_what_was_on_the_screen() -> None:
    document = svg("a <title>", ["plain & <b>", "\x1b[31mred\x1b[0m \x1b[2mdim\x1b[39m", "", "x" * 50], columns=40)
    assert texts(document) == ["plain & <b>", "red dim", "x" * 40, "x" * 10]
    assert COLOURS["31"] in document


def test_parts() -> None:
    assert list(spans("a\x1b[31mb\x1b[0mc")) == [(PLAIN, "a"), (COLOURS["31"], "b"), (PLAIN, "c")]
    assert wrapped("\x1b[31m" + "x" * 50, 40) == ["\x1b[31m" + "x" * 50]
    assert short(" 1  2026-01-02 03:04:05  r1 GET x [at 1.2.3.4] -> 403 no_rule a rule in y") == (
        " 1  03:04:05  r1 GET x -> 403 no_rule"
    )
