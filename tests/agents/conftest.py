"""These tests install programs of 1.1 GB and run them: `scripts/test --agents` says where they are, and nothing else
collects them."""

import os
from collections.abc import Iterator

import pytest

from tests.conftest import OrdinaryUser
from tests.e2e.site import Site, make_site

collect_ignore = [] if os.environ.get("CREDGATE_TEST_AGENTS") else ["test_clis.py", "test_logins.py"]


@pytest.fixture
def site(ordinary_user: OrdinaryUser, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A fresh home: where homes are, and for a screen below /tmp, where agents like to put their sockets too."""
    below = "/srv" if os.geteuid() == 0 else str(ordinary_user.home)
    made = make_site(ordinary_user.uid, ordinary_user.gid, None if "screen" in request.node.name else below)
    yield made
    made.close()
