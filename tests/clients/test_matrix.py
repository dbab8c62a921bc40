"""Generic clients from their registries, in real jails: the secret arrives, a refusal ends soon, nothing is set up."""

from collections.abc import Callable

import pytest

from tests.clients.measure import measure
from tests.clients.rows import ROWS, Row
from tests.clients.services import Services
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "git", "nginx", "npm")


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_client(row: Row, site: Site, services: Services, record_property: Callable[[str, object], None]) -> None:
    result = measure(row, site, services[row.service])
    record_property("result", result.as_json())
    assert not result.why, "\n".join(result.why)
