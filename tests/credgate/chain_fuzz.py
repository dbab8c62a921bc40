"""What both chains are put through. By itself (`python chain_fuzz.py MODULE.so`): the one in that file, sanitized."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

from hypothesis import strategies as st

from credgate.ledger import linking
from credgate.ledger.form import Form

HOLES = ("counters", "detail", "ids", "intent_seq", "query_names", "status", "ua_tag")
END = (5, "0123456789abcdef" * 4)

type Outcome = object

ANY_TEXT = st.text(st.characters(codec=None), max_size=40) | st.text('abc"\\\x7f\x1f~ ', max_size=300)
NUMBER = st.integers(-2, 2**64) | st.sampled_from([0, 2**63 - 1, 2**63, -1, 10**40])
ODD = st.none() | st.booleans() | st.floats() | st.binary(max_size=40) | st.just(b"x" * 30_000) | st.just("x" * 60_000)
SOME = (
    ODD
    | NUMBER
    | ANY_TEXT
    | st.tuples(st.binary(max_size=30))
    | st.tuples(st.binary(max_size=9), st.binary(max_size=9))
    | st.lists(ANY_TEXT, max_size=4)
    | st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=22)
    | st.dictionaries(st.text("ab-", max_size=70), st.text("xyz", max_size=260), max_size=4)
    | st.dictionaries(st.integers(), ODD, max_size=2)
)
VALUES = st.lists(SOME, min_size=len(HOLES), max_size=len(HOLES)) | st.lists(SOME, max_size=8)
FITTING = st.tuples(
    st.none(),
    ANY_TEXT,
    st.none() | st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=20),
    st.integers(0, 2**63 - 1),
    st.none() | st.binary(max_size=40),
    st.none() | st.integers(100, 599),
    st.tuples(st.binary(max_size=30)),
).map(list)
STEP = st.tuples(
    st.sampled_from(["put", "put", "put", "made", "add", "take", "wrote", "broken"]),
    VALUES | FITTING,
    st.fixed_dictionaries({}, optional={"host": ANY_TEXT, "path": ANY_TEXT, "pin": ANY_TEXT, "via": ANY_TEXT}),
    st.binary(max_size=60) | st.just(b"%s%d"),
    st.binary(max_size=60),
    NUMBER,
)
type Step = tuple[str, list[object], dict[str, object], bytes, bytes, int]
type Case = tuple[linking.End, list[Step]]
SEQS = st.integers(0, 70) | st.integers(0, 2**62 - 100) | st.sampled_from([2**32 - 1, 2**40 - 2])
ENDS = st.tuples(SEQS, st.text("0123456789abcdef", min_size=64, max_size=64))
CASES = st.tuples(ENDS, st.lists(STEP, max_size=8))


def new(of: object, end: linking.End) -> linking.IsChain:
    """A chain of that module, in Python or compiled, with a tree of any nodes."""
    nodes = tuple(bytes([n]) * 32 for n in range(end[0].bit_count()))
    return of.Chain(*end, nodes)  # type: ignore[attr-defined,no-any-return]  # of one of two modules


def template(of: object, fields: dict[str, object]) -> linking.IsTemplate:
    """Lines of an outcome with those fields."""
    before = linking.template_of
    linking.template_of = of.Template  # type: ignore[attr-defined]  # what a Form is made with
    try:
        return Form("outcome", fields, HOLES).template
    finally:
        linking.template_of = before


def steps(of: object, end: linking.End, todo: list[Step]) -> list[object]:
    """All that can be seen of a chain as it goes on from `end`."""
    chain, seen = new(of, end), []
    for what, values, fields, boot, ts, mono in todo:
        try:
            seen.append(_step(of, chain, (what, values, fields, boot, ts, mono)))
        except (TypeError, ValueError, UnicodeEncodeError, ZeroDivisionError) as error:
            seen.append(type(error).__name__)
        seen.append((chain.seq, chain.end, chain.written, chain.nodes))
    return [*seen, chain.take()]


def _step(of: object, chain: linking.IsChain, step: Step) -> object:
    what, values, fields, boot, ts, mono = step
    match what:
        case "take":
            return chain.take()
        case "wrote":
            return chain.wrote()
        case "add":
            return chain.add(boot + b"\n")
    made: dict[str, linking.Given] = {
        "put": tuple(values),
        "made": lambda seq: (*values[:-1], seq),
        "broken": lambda seq: (seq // 0,),
    }
    return chain.put(template(of, fields), made[what], boot, "", ts, mono)


def load(path: Path) -> ModuleType:
    """The module in that file."""
    spec = importlib.util.spec_from_file_location("_credgate_chain", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Draw:
    """Random steps without hypothesis, whose own state has no place below a sanitizer's slowness."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        letters = self.random.choice(["abc", 'a"\\', "\x00\x1f\x7f", "\u00e4\u2028\U0001f600", "\ud800"])
        return "".join(self.random.choices(letters, k=self.random.choice([0, 1, 5, 60, 255, 256, 257, 3000])))

    def value(self) -> object:
        r = self.random
        return r.choice(
            [
                None,
                r.choice([0, 1, -1, 2**63 - 1, 2**63, 10**30]),
                r.randbytes(r.choice([0, 3, 30_000])),
                (r.randbytes(9),),
                (b"", b""),
                self.text(),
                1.5,
                True,
                [self.text(), self.text()],
                {self.text(): self.text() for _ in range(r.choice([0, 1, 3, 20, 21, 30]))},
                {1: 2},
                {f"x-{n}": "v" * r.choice([1, 256]) for n in range(r.choice([1, 20]))},
            ]
        )

    def step(self) -> Step:
        r = self.random
        count = r.choice([len(HOLES)] * 9 + [0, 1, 30])
        what = r.choice(["put"] * 6 + ["made", "add", "take", "wrote", "broken"])
        fields: dict[str, object] = {"host": self.text()} if r.random() < 0.5 else {}
        long = r.choice([0, 20, 20, 20, 40_000])
        mono = r.choice([0, 2**63 - 1, 2**63, -1])
        return what, [self.value() for _ in range(count)], fields, r.randbytes(long), r.randbytes(20), mono


def main(path: str) -> None:
    """Compare both on random steps, and hand the compiled one what is no argument at all."""
    module = load(Path(path))
    for seed in range(25):
        draw = Draw(seed)
        end = (draw.random.choice([0, 1, 62, 2**40 - 3, 2**62 - 20]), END[1])
        todo = [draw.step() for _ in range(12)]
        assert steps(module, end, todo) == steps(linking, end, todo), seed
    odd: list[object] = [None, 1, -7, 2**70, b"x" * 50_000, "x", (), (b"a", 9), (2**40,), ("a",), [], {}, (b"a",) * 200]
    chain, made = new(module, END), template(module, {})
    calls = [module.Template, module.Chain, chain.put, chain.add, chain.take, chain.wrote, module.sha256]
    refused = 0
    for seed in range(1000):
        draw = Draw(seed)
        call = draw.random.choice(calls)
        try:
            call(*[draw.random.choice([*odd, made, chain]) for _ in range(draw.random.randrange(8))])
        except (TypeError, ValueError, OverflowError):
            refused += 1
    again = chain

    def inner(_seq: int) -> tuple[object, ...]:
        again.add(b"x\n")
        return ()

    for given in (inner, lambda _seq: again.put(made, (), b"", "", b"", 0), lambda _seq: again.take()):
        try:
            chain.put(made, given, b"", "", b"", 0)
        except RuntimeError:
            refused += 1
    print("same", refused)


if __name__ == "__main__":
    main(sys.argv[1])
