"""Run bad input in full: `python -m tests.load [NAME ...]`. Prints what docs/gateway.md quotes."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.load.cases import CASES, FULL


def main(names: list[str]) -> int:
    for name in names or list(CASES):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            figures = asyncio.run(CASES[name](Path(place), FULL[name]))
        told = ", ".join(f"{key} {value}" for key, value in figures.items())
        print(f"{name} ({FULL[name]}): {told}; {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
