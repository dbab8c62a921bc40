"""These tests run programs that `scripts/test --clients` installs, and says where; nothing else collects them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.services import Services, started
from tests.e2e.place import module_site
from tests.targets import hub
from tests.targets.pki import Authority
from tests.targets.served import Target

collect_ignore = [] if os.environ.get("CREDGATE_TEST_MATRIX") else ["test_matrix.py"]
site = pytest.fixture(scope="session")(module_site)


@pytest.fixture(scope="session")
def services(
    _https_server: Target, _hub: hub.Hub, _npm_server: Target, target_state: Path, authority: Authority
) -> Iterator[Services]:
    """What the clients talk to."""
    with started(_https_server, _hub.targets, target_state, authority) as all_of_them:
        yield all_of_them
