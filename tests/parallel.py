"""A pytest plugin: what pytest-xdist's workers need so that tests of two of them don't meet.

By root each worker has a network of its own, loopback alone: ports and abstract sockets that one test takes can't be
another's, and a packet that a failing guard lets out goes nowhere. Tests of one file stay together (`--dist loadfile`),
as module fixtures do (those of agents have none); the files with the longest tests go first, or one worker is left
alone with them. Every worker has to collect the same ids: no time, pid or chance in a parameter.
"""

import gc
import os
import runpy
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_OWN_NETWORK = Path(__file__).parent.parent / "scripts/lib/own_network.py"

# The longest; then those of which a test takes seconds, most of them waiting; then those that keep a core busy for half
# a minute, not beside each other from the beginning. Elsewhere hundreds of tests take a second.
_FIRST = (
    "tests/clients/",
    "tests/credgate/reconcile/test_engine.py",
    "tests/e2e/",
    "tests/credgate/test_gateway_kills.py",
    "tests/fuzz/",
    "tests/credgate/test_ledger_segments.py",
)


_APART = "tests/agents/"  # each test takes seconds, and has a home and a daemon of its own


class Scheduling(LoadFileScheduling):
    """By files, but for tests that have nothing in common."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(_APART) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """None: as the command line has it."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def is_worker(config: pytest.Config) -> bool:
    """Whether this process was started by another pytest, to run a share of its tests."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not is_worker(config):
        return
    if os.geteuid() == 0:
        runpy.run_path(str(_OWN_NETWORK))["enter"]()
    # `popen-gw0` is long enough to make the path of a socket in a temporary home too long (unix(7): 107 bytes).
    base = Path(config.option.basetemp)
    config.option.basetemp = str(base.with_name(base.name.removeprefix("popen-gw")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Behind pytest-randomly, whose order of the files stays as it is within each part."""
    if is_worker(config):
        items.sort(key=lambda item: _part(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Nine thousand tests stay, so nobody needs to look through them for garbage: a twentieth of a worker's CPU."""
    if is_worker(session.config):
        gc.collect()
        gc.freeze()


def _part(nodeid: str) -> int:
    return next((at for at, path in enumerate(_FIRST) if nodeid.startswith(path)), len(_FIRST))
