"""The self-test: lies planted in generated inputs, each of which must be found, and honest inputs, where nothing may.

It shows that this program on this machine finds what it is there to find; it needs no other input.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from credgate.reconcile.classes import Class, severity
from credgate.reconcile.engine import Given, Options, reconcile
from credgate.reconcile.fabricate import FORMATS, World, honest
from credgate.reconcile.lies import LIES, REFUSED, Lie
from credgate.reconcile.model import ReconcileError
from credgate.reconcile.result import Result
from credgate.reconcile.rows import prepare
from credgate.reconcile.store import Store

SMALL, PACE = 400, 20  # requests of a lie's world, spread over two hours
HONEST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case: `found` says whether it came out as it must, `words` what was said."""

    name: str
    told: str
    found: bool
    words: str


def self_test(say: Callable[[Outcome], None], requests: int = HONEST) -> bool:
    """Run all cases, saying each; returns whether all came out right."""
    good = True
    for lie in LIES:
        outcome = tried(lie)
        say(outcome)
        good = good and outcome.found
    for number in (SMALL, requests):
        outcome = honesty(number)
        say(outcome)
        good = good and outcome.found
    return good


def tried(lie: Lie) -> Outcome:
    """One lie."""
    world = honest(SMALL, pace=PACE)
    lie.tell(world)
    try:
        said = _run(world, _notes)
    except ReconcileError as error:
        found = lie.found == REFUSED and error.code == "ledger_unverified"
        return Outcome(name=lie.name, told=lie.words, found=found, words=error.detail)
    found = any(name == lie.found and lie.note in note for name, note in said)
    words = ", ".join(sorted({name for name, _ in said})) or "nothing was found"
    return Outcome(name=lie.name, told=lie.words, found=found, words=words)


def honesty(requests: int) -> Outcome:
    """Honest inputs: the finding is a fault of ours."""
    said = _run(honest(requests), _notes)
    words = ", ".join(sorted({name for name, _ in said})) or "nothing was found"
    return Outcome(name="honest", told=f"{requests} requests, and no lie", found=not said, words=words)


def _run[T](world: World, report: Callable[[Store, Result], T]) -> T:
    with tempfile.TemporaryDirectory(prefix="credgate-self-test-") as name:
        directory = Path(name)
        world.write(directory)
        return reconcile(options(directory), report)


def options(directory: Path) -> Options:
    """How a written world is reconciled."""
    sources = tuple(Given(name=name, hosts=(), patterns=(str(directory / f"{name}.log"),)) for name in FORMATS)
    return Options(ledger=directory / "ledger", sources=sources, mapping=directory / "mapping.toml")


def _notes(store: Store, result: Result) -> list[tuple[str, str]]:
    prepare(store, result)
    said = [(str(item.class_), item.words) for item in result.findings]
    said += [(str(name), str(note)) for name, note in store.rows("SELECT class, note FROM grave ORDER BY class, note")]
    return [(name, note) for name, note in said if severity(Class(name))]
