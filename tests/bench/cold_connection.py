"""A new connection and one request on it to a target 50 ms away: through Credgate, through Envoy, with nobody between.

Not the run's first: what stands between kept its connection to the target. Everything runs in network namespaces of its
own (`farlink`), so this process starts another, which moves there.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench import farlink, peers, served
from tests.bench.figures import Absent, Row
from tests.bench.world import CREDENTIAL, HOST, Contestant, client, credgate, outside
from tests.conftest import CHECKOUT
from tests.targets.pki import Authority

ROUNDS = 11
MILLI = 1e3
INSIDE = "import json; from tests.bench.cold_connection import times; print(json.dumps(times()))"
TOOK = 120.0  # seconds, at most


@contextmanager
def _target(link: farlink.Link, ca: Authority) -> Iterator[int]:
    pair = ca.issue(HOST)
    argv = [*farlink.far_command(link), sys.executable, "-I", served.__file__]
    argv += [str(pair.certificate), str(pair.key), CREDENTIAL, farlink.FAR]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def _racing() -> Iterator[dict[str, Contestant]]:
    link = farlink.lay()
    farlink.carrier(link)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="credgate-bench-")))
        authority = Authority(home, "bench-ca")
        port = stack.enter_context(_target(link, authority))
        upstream = peers.Upstream(
            host=HOST,
            port=port,
            ca=authority.ca,
            credential=CREDENTIAL,
            pair=authority.issue(HOST),
            home=home,
            address=farlink.FAR,
        )
        made = {"credgate": stack.enter_context(credgate(port, authority.ca, farlink.FAR))}
        argv = outside(HOST, port, authority.ca, credential=CREDENTIAL, address=farlink.FAR)
        made["direct"] = Contestant(name="direct", client=stack.enter_context(client(argv)))
        if peers.envoy_binary() is not None:
            _, local = stack.enter_context(peers.envoy(upstream))
            argv = outside(HOST, local, authority.ca)
            made["envoy"] = Contestant(name="envoy", client=stack.enter_context(client(argv)))
        yield made


def times() -> dict[str, list[float]]:
    """Milliseconds of each round, by contestant. Moves the calling process into another network namespace."""
    with _racing() as racing:
        took: dict[str, list[float]] = {name: [] for name in racing}
        for turn in range(ROUNDS + 1):
            for name, each in racing.items():
                told = each.ask("connect 1")
                if turn:
                    took[name].append(told["seconds"] * MILLI)
    return took


def measure() -> list[Row | Absent]:
    """By root alone: a network namespace of its own, with the ordinary account's runs in it."""
    if os.geteuid() != 0:
        return [Absent(name="cold_connection", peer="direct")]
    argv = [
        sys.executable,
        "-c",
        "import json; from tests.bench.cold_connection import times; print(json.dumps(times()))",
    ]
    done = subprocess.run(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True, timeout=TOOK)
    took: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    name, ours = "cold_connection 50 ms", took["credgate"]
    direct = took["direct"]
    rows: list[Row | Absent] = [
        Row(
            name=name,
            peer="direct",
            unit="ms",
            ours=ours,
            theirs=direct,
            goal=2.8,
            bar=2.0,
            at_least=True,
            inverse=True,
        )
    ]
    if "envoy" in took:
        rows.append(Row(name=name, peer="envoy", unit="ms", ours=ours, theirs=took["envoy"]))
    return rows
