"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.conftest import OrdinaryUser
from tests.e2e.site import Site, make_site


@pytest.fixture
def site(ordinary_user: OrdinaryUser) -> Iterator[Site]:
    """A fresh home, its daemon ended afterwards."""
    made = make_site(ordinary_user.uid, ordinary_user.gid)
    yield made
    made.close()
