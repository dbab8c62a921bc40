"""What one more costs when there are many: jails at once, and connections on which nothing moves."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench import kernel
from tests.bench.figures import Row
from tests.bench.footprint import ours, run
from tests.bench.world import HOST, Contestant, client, daemon, prepared, site, target
from tests.targets.pki import Authority

STEPS = (10, 50, 100)  # jails
EACH, RUNS = 250, 4  # connections of a run, which may have 512
LINEAR = 1.5  # what one of the last may cost, by one of the first
KILO, IDLE = 1e3, 2.0


def jails() -> list[Row]:
    """A start and the memory of one jail, of the first ten and the last fifty; the CPU of a hundred idle ones."""
    took: list[float] = []
    grown: list[float] = []
    with site() as place, ExitStack() as stack:
        gateway = daemon(place)
        launchers = [stack.enter_context(run(place))]  # what the first run has loaded is no jail's
        memory = ours(gateway, launchers)
        for step in STEPS:
            more, began = step - len(launchers), kernel.cpu(kernel.ours(gateway))
            launchers += [stack.enter_context(run(place)) for _ in range(more)]
            took.append((kernel.cpu(kernel.ours(gateway)) - began) / more * KILO)
            before, memory = memory, ours(gateway, launchers)
            grown.append((memory - before) / more)
        began = kernel.cpu_of(gateway)
        time.sleep(IDLE)
        idle = (kernel.cpu_of(gateway) - began) / IDLE * KILO
    last, first = f"jail {STEPS[1] + 1} to {STEPS[2]}", f"jail 2 to {STEPS[0]}"
    return [
        Row(name=f"scale: {last}", peer=first, unit="ms CPU a start", ours=took[2:], theirs=took[:1], bar=LINEAR),
        Row(name=f"scale: {last}", peer=first, unit="MB PSS", ours=grown[2:], theirs=grown[:1], bar=LINEAR),
        Row.absolute(f"scale: {STEPS[2]} idle jails", "ms CPU a second", [idle], goal=None, bar=100),
    ]


def _asking(stack: ExitStack) -> tuple[int, list[Contestant]]:
    """A daemon's pid, and clients in jails of its own."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="credgate-bench-")))
    authority = Authority(home, "bench-ca")
    port = stack.enter_context(target(authority))
    place = stack.enter_context(site())
    argv = prepared(place, port, authority.ca)
    gateway = daemon(place)
    more = {"env": place.environment(), "cwd": place.work}
    made = [Contestant(name=HOST, client=stack.enter_context(client(argv, **more))) for _ in range(RUNS)]
    for each in made:
        each.ask("requests 1 20")
    return gateway, made


def connections() -> list[Row]:
    """What the daemon holds for a kept TLS connection after its request, and a request's CPU beside a thousand."""
    with ExitStack() as stack:
        gateway, made = _asking(stack)

        def request() -> float:
            began = kernel.cpu_of(gateway)
            made[0].ask("requests 1 200")
            return (kernel.cpu_of(gateway) - began) / 200 * KILO

        alone, memory, grown = request(), kernel.memory(gateway, "Rss"), []
        for pair in (made[:2], made[2:]):
            for each in pair:
                each.ask(f"requests {EACH} {EACH}")
            before, memory = memory, kernel.memory(gateway, "Rss")
            grown.append((memory - before) / (2 * EACH) / KILO)
        crowded = request()
    count = EACH * RUNS
    return [
        Row(
            name=f"scale: connection {count // 2 + 1} to {count}",
            peer=f"to {count // 2}",
            unit="kB RSS",
            ours=grown[1:],
            theirs=grown[:1],
            bar=LINEAR,
        ),
        Row(
            name=f"scale: request beside {count} idle",
            peer="alone",
            unit="ms CPU",
            ours=[crowded],
            theirs=[alone],
            bar=LINEAR,
        ),
    ]


def measure() -> list[Row]:
    return [*connections(), *jails()]
