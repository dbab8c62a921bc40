"""A pytest plugin: beside a failed test stands what its sites tell, in few lines, for CI keeps few of its output."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.site import CLOSING, LIVING, Site

COMMANDS, LINES, WIDTH = 3, 6, 300  # the last commands of a site, the last lines of each of its sources
ENDS = ("run.end", "alarm")
_closed: dict[str, str] = {}  # what sites told that this test has closed itself


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _closed.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    if report.failed and hasattr(report.longrepr, "addsection"):
        for home, text in (_closed | {str(site.home): _shown(site) for site in LIVING}).items():
            report.longrepr.addsection(f"site {home}", text)
    return report


def _shown(site: Site) -> str:
    return "\n".join(line[:WIDTH] for line in told(site))


CLOSING.append(lambda site: _closed.update({str(site.home): _shown(site)}))


def told(site: Site) -> Iterator[str]:
    """How its last commands ended, the daemon's last words, and why the last runs ended."""
    for words, status, stderr in site.ended[-COMMANDS:]:
        yield f"{status} of {words[: WIDTH // 2]!r}"
        yield from (f"  {line}" for line in stderr.splitlines()[-LINES:])
    for log in site.state.glob("run/daemon.log"):
        yield from log.read_text(errors="replace").splitlines()[-LINES:]
    yield from list(_ends(site))[-COMMANDS:]


def _ends(site: Site) -> Iterator[str]:
    """Of the ledger, which may be what the test has broken."""
    for path in sorted((site.state / "ledger").glob("seg-*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            if any(f'"ev":"{name}"' in line for name in ENDS):
                yield re.sub(r'"(boot|hash|prev|mono_ns|v)":("[^"]*"|[0-9]+),?', "", line)
