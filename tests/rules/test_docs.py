"""The documents say what the code does: every key, every pattern, every reason."""

import re
from pathlib import Path

import pytest

from rules.load import ROOT_KEYS
from rules.load_bindings import BINDING_KEYS, BINDING_LATER
from rules.load_body import BODY_KEYS
from rules.load_endpoints import KEYS as ENDPOINT_KEYS
from rules.load_endpoints import LATER as ENDPOINT_LATER
from rules.load_mints import MINT_KEYS
from rules.load_proxies import PROXY_KEYS
from rules.load_roles import LIMIT_KEYS, ROLE_KEYS, ROLE_LATER, TEST_KEYS
from rules.load_rules import ALLOW_KEYS, ALLOW_LATER, DENY_KEYS
from rules.load_sources import SECRET_KEYS, VAULT_KEYS
from rules.reasons import Reason
from tests.rules.policies import load, problems

DOCS = Path(__file__).parents[2] / "docs"
POLICY, REASONS = ((DOCS / name).read_text() for name in ("policy.md", "reasons.md"))


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def _section(title: str) -> str:
    return POLICY.split(f"\n{title}\n", 1)[1].split("\n#", 1)[0]


def test_every_reason_is_listed_once_and_no_other() -> None:
    assert [row[0].strip("`") for row in _rows(REASONS)] == [reason.value for reason in Reason]


def test_statuses_are_those_that_clients_do_not_retry() -> None:
    assert {row[1] for row in _rows(REASONS)} == {"400", "403", "426", "502", "504"}


@pytest.mark.parametrize(
    ("title", "known", "later"),
    [
        ("top", ROOT_KEYS, ()),
        ("dns", ("unlisted",), ()),
        ("secret", SECRET_KEYS, ()),
        ("vault", VAULT_KEYS, ()),
        ("mint", MINT_KEYS, ()),
        ("proxy", PROXY_KEYS, ()),
        ("endpoint", ENDPOINT_KEYS, ENDPOINT_LATER),
        ("allow", ALLOW_KEYS, ALLOW_LATER),
        ("body", BODY_KEYS, ()),
        ("deny", DENY_KEYS, ()),
        ("binding", BINDING_KEYS, BINDING_LATER),
        ("role", ROLE_KEYS, ROLE_LATER),
        ("test", TEST_KEYS, ()),
    ],
)
def test_every_key_is_listed_in_its_section(title: str, known: tuple[str, ...], later: tuple[str, ...]) -> None:
    rows = _rows(_section(f"### {title}"))
    assert sorted(row[0].strip("`") for row in rows) == sorted((*known, *later))
    assert {row[0].strip("`") for row in rows if row[1].rstrip(" |") == "not yet"} == set(later)


def test_every_limit_is_named() -> None:
    assert all(f"`{name}`" in POLICY for name in LIMIT_KEYS)


BASE = """\
version = 1
[secret.s]
source = "env:S"
[endpoint.e]
host = {host}
address = [{address}]
[[endpoint.e.allow]]
id = "r"
methods = [{methods}]
paths = [{paths}]
encoded_slash = true
[endpoint.f]
host = "f.example.org"
[[endpoint.f.allow]]
id = "r"
methods = ["GET"]
paths = ["/"]
[endpoint.g]
host = "g.example.org"
spki = [{spki}]
[[endpoint.g.allow]]
id = "r"
methods = ["POST"]
paths = ["/"]
body = {{ type = "json", absent = [{absent}] }}
[[endpoint.g.allow]]
id = "q"
methods = ["POST"]
paths = ["/"]
body = {{ type = "graphql", operations = [{operations}] }}
[binding.b]
secret = "s"
endpoint = "f"
rules = ["r"]
place = {place}
mode = "placeholder"
placeholder = {{ env = "T", shape = {shape} }}
[role.r]
env = [{env}]
tools = [{tools}]
readonly = [{readonly}]
hide = [{hide}]
show = [{show}]
deadline = {deadline}
limits = {{ memory = {memory} }}
"""
GOOD = {
    "host": "a.example.org",
    "address": "10.0.0.1",
    "spki": "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "methods": "GET",
    "absent": "model",
    "operations": "query.viewer",
    "paths": "/",
    "place": "header:authorization",
    "shape": "x{36}",
    "env": "TERM",
    "tools": "/opt/tools",
    "readonly": "deploy/",
    "hide": "*.p12",
    "show": ".env",
    "deadline": "1h",
    "memory": "1GiB",
}
PATTERNS = [(row[0].strip("`"), row[1].strip("`"), row[2]) for row in _rows(_section("## Patterns"))]


def test_the_base_of_the_pattern_table_loads() -> None:
    assert problems(BASE.format(**{key: f"'{value}'" for key, value in GOOD.items()})) == {}


def test_the_pattern_table_has_both_sides_of_each_key() -> None:
    assert {(key, word) for key, _, word in PATTERNS} == {(key, word) for key in GOOD for word in ("valid", "invalid")}


@pytest.mark.parametrize(("key", "text", "word"), PATTERNS)
def test_each_row_of_the_pattern_table(key: str, text: str, word: str) -> None:
    found = problems(BASE.format(**{k: f"'{v}'" for k, v in {**GOOD, key: text}.items()}))
    if word == "valid":
        assert found == {}
    else:
        assert len(found) == 1
        assert key in next(iter(found))


def test_the_examples_load() -> None:
    pages = "".join((DOCS / name).read_text() for name in ("policy.md", "packs.md", "minting.md", "secrets.md"))
    # what has no version is a part of one
    blocks = [b for b in re.findall(r"```toml\n(.*?)```", pages, re.DOTALL) if b.startswith("version = 1\n")]
    assert len(blocks) > 8
    for block in blocks:
        load(block)


def _anchors(text: str) -> set[str]:
    """Of each heading, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_between_documents_leads_somewhere() -> None:
    pages = [*DOCS.rglob("*.md"), *(DOCS.parent / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md"))]
    dead = []
    for page in pages:
        for place, _, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(#?)([^)\s]*)\)", page.read_text()):
            target = page.parent / place if place else page
            good = target.exists() and (not anchor or anchor in _anchors(target.read_text()))
            dead += [] if good else [f"{page.name}: {place}#{anchor}"]
    assert len(pages) > 50 and not dead
