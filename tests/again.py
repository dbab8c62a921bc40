"""A pytest plugin: the tests that failed, written down, so that `scripts/test` can run those few again alone.

CREDGATE_TEST_FAILED is where. Nothing is written where a second run could not tell the first one's whole
story: a worker that died, modules that were not collected. Beside it stand the required features that
nothing exercised: the second run has to.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.needs import exercised, unexercised
from tests.parallel import is_worker

FAILED = "CREDGATE_TEST_FAILED"
_FEATURES = ".features"
AGAIN = "CREDGATE_TEST_AGAIN"  # set in a second run, where to skip is to fail


class Failures:
    """What failed in this session, in its order."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ids: dict[str, None] = {}
        self._lost = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._ids[report.nodeid] = None
            self._lost |= report.when not in {"setup", "call", "teardown"}  # xdist's word on a worker that died

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._lost |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, exitstatus: int) -> Generator[None, None, None]:
        yield
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._ids and not self._lost:
            told = os.environ[FAILED]
            Path(told + _FEATURES).write_text(
                "".join(f"{name}\n" for name in unexercised(self._config)), encoding="utf-8"
            )
            Path(told).write_text("".join(f"{name}\n" for name in self._ids), encoding="utf-8")


class NoSkips:
    """In a second run."""

    def __init__(self) -> None:
        self._skipped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._skipped |= report.skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        missing = set(Path(os.environ[FAILED] + _FEATURES).read_text(encoding="utf-8").split()) - exercised(
            session.config
        )
        if (self._skipped or missing) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    if is_worker(config):
        return
    if os.environ.get(AGAIN):
        config.pluginmanager.register(NoSkips())
    elif os.environ.get(FAILED):
        config.pluginmanager.register(Failures(config))
