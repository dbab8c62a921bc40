"""`scripts/bench [NAME...] [--json FILE]`: the figures that this project promises, measured on this machine."""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from tests.bench import (
    bulk,
    cold_connection,
    event_delay,
    first_output,
    flame,
    footprint,
    launch,
    new_connections,
    open_inside,
    proof_share,
    request_cpu,
    scale,
    warm,
    workers,
)
from tests.bench.figures import Absent, Row, table

BENCHMARKS = {
    "launch": launch.measure,
    "warm": warm.measure,
    "first_output": first_output.measure,
    "request_cpu": request_cpu.measure,
    "workers": workers.measure,
    "event_delay": event_delay.measure,
    "bulk": bulk.measure,
    "new_connections": new_connections.measure,
    "cold_connection": cold_connection.measure,
    "footprint": footprint.measure,
    "scale": scale.measure,
    "open_inside": open_inside.measure,
    "proof_share": proof_share.measure,
}


def write(path: Path, rows: list[Row | Absent]) -> None:
    """The rows, and what they were measured on."""
    host = {"kernel": platform.release(), "machine": platform.machine(), "cores": os.cpu_count()}
    made = {"time": int(time.time()), **host, "python": platform.python_version()}
    path.write_text(json.dumps({**made, "rows": [row.json() for row in rows]}, indent=2) + "\n")


def main(argv: list[str]) -> int:
    """Run those asked for, print a table; 1 where a figure falls short or could not be measured."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--json", metavar="FILE", default="", help="write the figures there as well")
    parser.add_argument("--flame", metavar="SVG", default="", help="draw where the daemon's time goes, and end")
    options = parser.parse_args(argv)
    if options.flame:
        flame.record(Path(options.flame))
        return 0
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"got {unknown[0]}, expected one of: {', '.join(BENCHMARKS)}")
    rows: list[Row | Absent] = []
    for name in options.names or BENCHMARKS:
        began = time.monotonic()
        rows += BENCHMARKS[name]()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if options.json:
        write(Path(options.json), rows)
    print(table(rows))
    return 1 if {row.verdict for row in rows} & {"short", "not measured"} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
