"""`scripts/bench [NAME...] [--json FILE]`: the figures that this project promises, measured on this machine."""

import argparse
import json
import sys
from pathlib import Path

from tests.bench import proof_share

BENCHMARKS = {"proof_share": proof_share.measure}


def main(argv: list[str]) -> int:
    """Run those asked for, print a line for each; 1 where a figure is not what it must be."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--json", metavar="FILE", default="", help="write the figures there as well")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"got {unknown[0]}, expected one of: {', '.join(BENCHMARKS)}")
    figures = {name: BENCHMARKS[name]() for name in options.names or BENCHMARKS}
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")
    for name, figure in figures.items():
        shown = ", ".join(f"{key} {value}" for key, value in figure.items())
        print(f"{name}: {shown}")
    return 0 if all(figure["within"] for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
