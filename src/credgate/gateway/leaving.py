"""A request is searched for the secrets that this daemon knows: a real one leaves at its place alone, put there by us.

Its body is searched as it streams, and held back as an answer's is, so that a secret that is whole never leaves whole.
One in a content coding goes on as it came, and is decoded beside; a coding that lies or is not known is searched as it
came alone. Like the scrubbing of answers this is depth: whoever wants to can write a secret in a way nobody knows.
"""

from collections import Counter
from functools import partial

from credgate.apart import BODIES
from credgate.gateway.cleaning import named
from credgate.gateway.inflate import CODINGS, RATIO, Inflater, NotThat
from credgate.gateway.refusal import deny
from credgate.runs import Run
from rules.credentials import fold_name
from rules.places import held, key_of
from rules.policy import PlaceKind, Policy
from rules.reasons import Reason
from rules.request import Request, Wire
from rules.scrub import Scrubber, Spotter, Table
from rules.verdict import Allow, Deny

_LONG = 1 << 20  # bytes that are searched in about two milliseconds
_IN_HEADER = frozenset({PlaceKind.HEADER, PlaceKind.BASIC, PlaceKind.SIGV4})
_IN_HEAD = frozenset({PlaceKind.QUERY, PlaceKind.PATH, PlaceKind.COOKIE})
_IN_BODY = frozenset({PlaceKind.JSON, PlaceKind.FORM})

type Fields = tuple[tuple[bytes, bytes], ...]
type Judged = tuple[Request, Allow] | None  # None: refused anyway, so that no place is any secret's


class Leak(Exception):
    """A secret was about to leave. `names` are those of secrets."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def in_head(table: Table, wire: Wire, judged: Judged) -> frozenset[str]:
    """Secrets in a request's line and headers, elsewhere than where a binding of the request writes them anew."""
    bindings = judged[1].bindings if judged is not None else ()
    ours = {key_of(binding)[1] for binding in bindings if binding.place in _IN_HEADER}
    parts = [wire.method, wire.target, wire.authority]
    for name, value in wire.headers:
        parts += [name] if fold_name(name) in ours else [name, value]
    head = b"\n".join(parts)
    if not table.candidates(head):
        return frozenset()
    scrubber = Scrubber(table)
    scrubber.feed(head)
    return _stray(table, scrubber.hits, judged, _IN_HEAD)


def in_body(table: Table, fields: Fields, body: bytes, judged: Judged) -> frozenset[str]:
    """The same of a body that was read whole, as it was sent."""
    leaving = Leaving(table, fields)
    try:
        leaving.feed(body)
    except Leak:
        return _stray(table, leaving.hits, judged, _IN_BODY)
    return frozenset()


def _stray(table: Table, found: dict[str, int], judged: Judged, kinds: frozenset[PlaceKind]) -> frozenset[str]:
    """Those that stand there more often than in their places."""
    placed: Counter[str] = Counter()
    if found and judged is not None:
        request, allow = judged
        for binding in (b for b in allow.bindings if b.place in kinds):
            values = held(request, binding, allow.endpoint).values
            placed[binding.secret] += sum(
                binding.secret in table.found(value.encode(errors="surrogatepass")) for value in values
            )
    return frozenset(Counter(found) - placed)


async def leak_of(table: Table, run: Run, wire: Wire, judged: Judged, body: bytes | None) -> Deny | None:
    """The refusal of a request that holds a secret itself; `body` where it was read whole."""
    names, where = in_head(table, wire, judged), "head"
    if not names and body:
        search, where = partial(in_body, table, wire.headers, body, judged), "body"
        coded = any(fold_name(name) == "content-encoding" for name, _ in wire.headers)
        short = len(body) < (_LONG // RATIO if coded else _LONG)
        names = search() if short else await BODIES.do(run.id, search)
    return misplaced(run.policy, names, where) if names else None


def misplaced(policy: Policy, names: frozenset[str], where: str) -> Deny:
    """The refusal of a request that holds secrets; the hint is for ledger and alarm."""
    found = ", ".join(named(policy, name) for name in sorted(names))
    return deny(Reason.SECRET_MISPLACED, f"{found} in the {where} of a request")


class Leaving:
    """A body on its way out."""

    __slots__ = ("_beside", "_inflater", "_scrubber", "table")

    def __init__(self, table: Table, fields: Fields) -> None:
        codings = [value.strip(b" \t").lower() for name, value in fields if fold_name(name) == "content-encoding"]
        coded = len(codings) == 1 and codings[0] in CODINGS
        self.table = table
        self._scrubber, self._beside = Scrubber(table), Spotter(table)
        self._inflater = Inflater(codings[0]) if coded else None

    def feed(self, data: bytes) -> bytes:
        """What may go on of these bytes and those before them. Raises Leak."""
        out = self._scrubber.feed(data)
        if self._inflater is not None:
            try:
                self._beside.feed(self._inflater.feed(data))
            except NotThat:
                self._inflater = None
        if self.hits:
            raise Leak(frozenset(self.hits))
        return out

    @property
    def hits(self) -> dict[str, int]:
        """What was found so far, and how often."""
        return Counter(self._scrubber.hits) + Counter(self._beside.hits) if self._beside.hits else self._scrubber.hits

    def finish(self) -> bytes:
        """The end of the body: what was held."""
        return self._scrubber.finish()
