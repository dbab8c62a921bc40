"""A pytest plugin: what a test needs of the host, and proof that what CI requires was really exercised.

`@pytest.mark.needs("landlock", "userns")` skips where the host lacks a feature. CREDGATE_REQUIRE=landlock,... turns
that skip into a failure, and fails the session when the whole suite was run and no test exercised a required feature:
a guard whose tests were all skipped, renamed or deleted does not pass for tested.
"""

import functools
import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.features import FEATURES

REQUIRE = "CREDGATE_REQUIRE"
_SENT = "exercised"  # in what a worker of pytest-xdist hands to the process that started it

_exercised = pytest.StashKey[set[str]]()
_needed = pytest.StashKey[set[str]]()
_unexercised = pytest.StashKey[list[str]]()


@functools.cache
def lack(feature: str) -> str:
    """Why `feature` is not here; empty where it is."""
    return FEATURES[feature]()


def required() -> frozenset[str]:
    """The features that CREDGATE_REQUIRE names."""
    return frozenset(name for name in os.environ.get(REQUIRE, "").split(",") if name)


def need(item: pytest.Item, *features: str) -> None:
    """Skips (or fails, where it is required) the test unless each feature is here. For fixtures too."""
    item.stash.setdefault(_needed, set()).update(features)
    for feature in features:
        if feature not in FEATURES:
            pytest.fail(f"needs got {feature!r}, expected one of {sorted(FEATURES)}", pytrace=False)
        why = lack(feature)
        if why and feature in required():
            pytest.fail(f"{feature} is required ({REQUIRE}) and missing: {why}", pytrace=False)
        if why:
            pytest.skip(f"no {feature}: {why}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*features): what the test needs of the host; see tests/features.py")
    config.stash[_exercised] = set()
    config.stash[_unexercised] = []
    unknown = required() - FEATURES.keys()
    if unknown:
        raise pytest.UsageError(f"{REQUIRE} got {sorted(unknown)}, expected some of {sorted(FEATURES)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(item, *mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and report.passed:
        item.config.stash[_exercised] |= item.stash.get(_needed, set())
    return report


def exercised(config: pytest.Config) -> set[str]:
    """The features that tests which passed needed, so far."""
    return config.stash[_exercised]


def unexercised(config: pytest.Config) -> list[str]:
    """The required features that no test exercised; known once the session is over."""
    return config.stash[_unexercised]


def _whole_suite(config: pytest.Config) -> bool:
    chosen = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return chosen and not (config.option.keyword or config.option.markexpr or config.option.collectonly)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist ended: what its tests exercised counts here. One that crashed sends nothing."""
    node.config.stash[_exercised] |= set(getattr(node, "workeroutput", {}).get(_SENT, ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput[_SENT] = sorted(config.stash[_exercised])
        return
    if _whole_suite(config):
        config.stash[_unexercised] = sorted(required() - config.stash[_exercised])
    if config.stash[_unexercised] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for feature in config.stash[_unexercised]:
        line = f"ERROR {feature} is required ({REQUIRE}), and no test that passed needs it"
        terminalreporter.write_line(line, red=True)
