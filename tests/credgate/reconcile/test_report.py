"""The report's files: true to their schema, the same each time, and harmless whatever a log holds."""

import csv
import hashlib
import json
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from credgate import cli
from credgate.reconcile.classes import MEANINGS
from credgate.reconcile.engine import reconcile
from credgate.reconcile.fabricate import BEGIN, honest
from credgate.reconcile.lies import LIES, REFUSED
from credgate.reconcile.output import schema, write_report
from credgate.reconcile.selftest import options
from credgate.reconcile.targets import formats, load_mapping, target_of
from tests.credgate.reconcile.rig import Case, web

HOSTILE = (
    '=HYPERLINK("https://x.example","y")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\x1b[31mred\x07",
    "bidi\u202eevil",
    "line\nbreak\r\nagain",
    "nul\x00byte",
    "{{7*7}}${7*7}",
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A report about records whose texts are all attacks."""
    case = Case(directory=tmp_path)
    case.call(5, path="/ok", rule="r")
    records = [
        {"ts": (BEGIN + 10**7 * (n + 2)) // 1000, "m": text, "p": f"/{text}", "u": text, "a": text, "h": text, "s": 200}
        for n, text in enumerate(HOSTILE)
    ]
    good = {"ts": BEGIN // 1000 + 5000, "m": "GET", "p": "/ok", "h": "a.example", "s": 200}
    case.export("=evil.jsonl", *(json.dumps(record) for record in [good, *records]))
    case.mapping(
        '[source."api"]\nformat = "jsonl"\nhosts = ["a.example"]\n'
        '[source.api.fields]\ntime = "ts"\nmethod = "m"\npath = "p"\n'
        'credential = "u"\naction = "a"\nhost = "h"\nstatus = "s"\n'
    )
    out = tmp_path / "out"
    case.entries.sort()
    from credgate.reconcile.engine import Given, Options
    from credgate.reconcile.fabricate import write_ledger

    write_ledger(tmp_path / "ledger", [*case.entries, (BEGIN + 10**9, "final", 0, {})])
    asked = Options(
        ledger=tmp_path / "ledger", mapping=tmp_path / "mapping.toml",
        sources=(Given(name="api", hosts=(), patterns=(str(tmp_path / "=evil.jsonl"),)),),
    )  # fmt: skip
    reconcile(asked, lambda store, result: write_report(store, result, out))
    return out


class Page(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_holds_no_markup_of_a_logs(hostile: Path) -> None:
    text = (hostile / "report.html").read_text()
    page = Page(text)
    assert not page.tags & {"script", "img", "iframe", "object", "a", "link", "form"}
    assert not {name for name in page.attributes if name.startswith("on")}
    assert page.links == []
    assert any("<script>alert(1)</script>" in part for part in page.text)
    assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text
    assert re.search(r"https?://", text.replace("https://x.example", "")) is None


def test_csv_starts_no_formula_and_keeps_one_line_a_row(hostile: Path) -> None:
    raw = (hostile / "records.csv").read_bytes()
    rows = list(csv.reader(raw.decode().splitlines()))
    assert len(rows) == 1 + 1 + 1 + len(HOSTILE)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [cell for row in rows[1:] for cell in row if re.match(r"\s*[=+@|%]|\s*-(?!\d+$)", cell)]
    assert not set(raw) & (set(range(32)) - {10, 13})


def test_json_follows_the_schema(hostile: Path) -> None:
    report = json.loads((hostile / "report.json").read_text())
    jsonschema.Draft202012Validator.check_schema(json.loads(schema()))
    jsonschema.Draft202012Validator(json.loads((hostile / "report.schema.json").read_text())).validate(report)
    assert len(report["findings"]) == len(HOSTILE)
    assert (hostile / "report.json").read_text().isascii()


def test_the_schema_knows_every_class() -> None:
    assert set(json.loads(schema())["$defs"]["class"]["enum"]) == {str(name) for name in MEANINGS}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with most lies told."""
    directory = tmp_path_factory.mktemp("mixed")
    world = honest(400, pace=20)
    for lie in LIES:
        if lie.found != REFUSED and lie.name not in ("short-ledger", "wrong-clock", "doubled-export"):
            lie.tell(world)
    world.write(directory)
    return directory


def written(world: Path, out: Path) -> dict[str, bytes]:
    reconcile(options(world), lambda store, result: write_report(store, result, out))
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def test_same_inputs_same_bytes(mixed: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-r", mixed, moved], check=True)
    one, two = written(mixed, tmp_path / "one"), written(moved, tmp_path / "two")
    assert sorted(one) == ["records.csv", "report.html", "report.json", "report.schema.json", "runs.html"]
    assert one == two


def test_a_report_of_all_kinds_follows_the_schema_and_names_its_inputs(mixed: Path, tmp_path: Path) -> None:
    files = written(mixed, tmp_path / "out")
    report = json.loads(files["report.json"])
    jsonschema.Draft202012Validator(json.loads(schema())).validate(report)
    named = {file["sha256"] for source in report["sources"] for file in source["files"]}
    assert named == {hashlib.sha256(path.read_bytes()).hexdigest() for path in mixed.glob("*.log")}
    last = (mixed / "ledger" / "seg-000001.jsonl").read_bytes().splitlines(keepends=True)[-1]
    assert report["ledger"]["last_sha256"] == hashlib.sha256(last).hexdigest()
    page = files["report.html"].decode()
    assert all(digest in page for digest in named)
    body = page.partition("<body>")[2]
    verdict = body.index("A refused request was seen by its target.")
    assert verdict < body.index("Counts</h2>") < body.index("Over time</h2>") < body.index("Findings</h2>")
    for item in report["findings"]:
        assert item["ledger"] or item["target"]


def test_rows_are_as_many_as_requests_and_records(mixed: Path, tmp_path: Path) -> None:
    files = written(mixed, tmp_path / "out")
    rows = list(csv.DictReader(files["records.csv"].decode().splitlines()))
    report = json.loads(files["report.json"])
    unreadable = sum(sum(file["unreadable"].values()) for source in report["sources"] for file in source["files"])
    targets = [row for row in rows if row["side"] == "target"]
    assert len(targets) == sum(file["records"] for s in report["sources"] for file in s["files"]) - unreadable
    asked = {row["ledger_seq"] for row in rows if row["side"] == "ledger" and row["action"] != "deny"}
    assert len(asked) == report["completeness"]["requests"]


@pytest.mark.needs("chromium")
def test_a_browser_shows_it_and_prints_it(mixed: Path, tmp_path: Path) -> None:
    written(mixed, tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    for name in ("report", "runs"):
        page = tmp_path / "out" / f"{name}.html"
        shot, paper = tmp_path / f"{name}.png", tmp_path / f"{name}.pdf"
        browse(page, tmp_path, "--window-size=1180,900", f"--screenshot={shot}")
        browse(page, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
        # a blank page of this size is a tenth of that
        assert shot.stat().st_size > {"report": 40_000, "runs": 15_000}[name]
        assert (
            paper.read_bytes().startswith(b"%PDF") and paper.stat().st_size > {"report": 40_000, "runs": 10_000}[name]
        )


def browse(page: Path, home: Path, *wanted: str) -> str:
    """What a headless Chromium says of a page, whose own policy allows no script."""
    common = [
        "chromium", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={home / 'profile'}", "--hide-scrollbars",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]  # fmt: skip
    env = {**os.environ, "HOME": str(home)}
    argv = [*common, *wanted, page.as_uri()]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60, env=env).stdout


@pytest.mark.needs("chromium")
def test_a_browser_that_may_run_no_script_holds_all_of_the_text(mixed: Path, tmp_path: Path) -> None:
    files = written(mixed, tmp_path / "out")
    assert b"default-src 'none'" in files["report.html"].partition(b"<body>")[0]
    text = " ".join(Page(browse(tmp_path / "out" / "report.html", tmp_path, "--dump-dom")).text)
    report = json.loads(files["report.json"])
    assert report["ledger"]["proof"] in text
    assert report["verdict"]["words"] in text
    assert all(item["words"] in text for item in report["findings"] if item["class"] != "coverage-gap")


A, B = hashlib.sha256(b"a body").hexdigest(), hashlib.sha256(b"another").hexdigest()


@pytest.fixture
def bodies(tmp_path: Path) -> Path:
    """One run gets a body, another sends it elsewhere; of one that a single run had twice nothing is to be said."""
    case = Case(directory=tmp_path)
    case.call(5, path="/in", run="r-1", resp_sha256=A, resp_bytes=6)
    case.call(9, path="/out", run="r-2", host="b.example", req_sha256=A, req_bytes=6)
    case.call(12, path="/same", run="r-3", resp_sha256=B, resp_bytes=7)
    case.call(13, path="/same", run="r-3", resp_sha256=B, resp_bytes=7)
    case.call(14, path="/<i>", run="r-4", resp_sha256="<script>", resp_bytes=7)
    case.export("log", web(5, "/in", size=6))
    case.run("nginx@a.example=log")
    sources = ("--source", f"nginx@a.example={tmp_path / 'log'}", "--report", str(tmp_path / "out"))
    assert cli.main(["reconcile", "--ledger", str(tmp_path / "ledger"), *sources]) in (0, 3)
    return tmp_path / "out"


def test_contents_that_several_runs_had_are_on_the_page_of_runs(bodies: Path) -> None:
    report = json.loads((bodies / "report.json").read_text())
    jsonschema.Draft202012Validator(json.loads(schema())).validate(report)
    (content,) = report["shared_contents"]
    assert content == {
        "sha256": A, "bytes": 6, "runs": 2, "sent": 1, "received": 1, "hosts": ["a.example", "b.example"],
        "passed_on": True,
    }  # fmt: skip
    text = (bodies / "runs.html").read_text()
    page = Page(text)
    assert A in text and B not in text and "passed on" in text
    assert not page.tags & {"script", "img", "iframe", "a", "link", "i"} and page.links == []
    assert "a.example" in text.partition("Targets</h2>")[2]


def test_without_digests_the_page_of_runs_says_so(mixed: Path, tmp_path: Path) -> None:
    assert "no digest of a body" in written(mixed, tmp_path / "out")["runs.html"].decode()


def test_nothing_to_check_is_said(tmp_path: Path) -> None:
    case = Case(directory=tmp_path)
    case.export("log", web(10, "/a"))
    said = case.run("nginx@a.example=log")
    assert said.result.allowed == 0
    assert said.records == ["target-only"]


DOCS = Path(__file__).parents[3] / "docs" / "reconcile.md"


def test_the_documentation_knows_every_class_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \| (fine|\d) \|$", DOCS.read_text(), re.M)
    assert dict(rows) == {
        str(name): str(int(meaning.severity)) if meaning.severity else "fine" for name, meaning in MEANINGS.items()
    }


def test_the_documentation_knows_every_format() -> None:
    table = DOCS.read_text().partition("## Formats")[2].partition("Files may be")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(formats())


def test_the_mapping_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = DOCS.read_text().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "mapping.toml").write_text(text)
    mapping = load_mapping(tmp_path / "mapping.toml")
    assert [target_of(name, (), mapping).format for name in mapping] == ["nginx", "cloudtrail", "csv"]
