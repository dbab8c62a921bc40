"""These tests install programs of 1.3 GB and run them: `scripts/test --agents` says where they are, and nothing else
collects them."""

import os

from tests.e2e.conftest import site

__all__ = ["site"]

collect_ignore = [] if os.environ.get("CREDGATE_TEST_AGENTS") else ["test_clis.py"]
