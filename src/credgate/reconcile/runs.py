"""What several runs have in common: targets, and contents by their digest. A digest in the ledger is one of an endpoint
with `digest = true` in the policy: of a body as it was sent to the target, or as the client got it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from credgate.reconcile.markup import document, section, table
from credgate.reconcile.store import Store
from credgate.reconcile.times import show

SHOWN = 200
_NAMED = 8  # runs or hosts of a row by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A target that several runs reached. `names`: the first runs by name; times in microseconds."""

    host: str
    runs: int
    requests: int
    first: int
    last: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A body that several runs sent or received. `passed`: one received it, and another sent it later."""

    sha256: str
    size: int
    runs: int
    sent: int
    received: int
    first: int
    names: tuple[str, ...]
    hosts: tuple[str, ...]
    passed: bool


def shared_targets(store: Store) -> list[Shared]:
    """The targets of allowed requests of more than one run, those of most runs first."""
    found = store.rows(
        "SELECT host, count(DISTINCT run) AS k, count(*), min(t0), max(t0), list_sort(list(DISTINCT run))[:$1] "
        "FROM gw WHERE host <> '' AND run <> '' AND ev <> 'deny' GROUP BY host HAVING k > 1 "
        "ORDER BY k DESC, host LIMIT $2",
        _NAMED,
        SHOWN,
    )
    return [
        Shared(host=str(host), runs=_int(runs), requests=_int(n), first=_int(a), last=_int(b), names=_texts(names))
        for host, runs, n, a, b, names in found
    ]


def shared_contents(store: Store) -> list[Content]:
    """The bodies of more than one run, those that went from one to another first."""
    found = store.rows(
        "SELECT b.sha256, max(b.size), count(DISTINCT g.run) AS k, "
        "sum(b.sent), sum(1 - b.sent), min(g.t0), list_sort(list(DISTINCT g.run))[:$1], "
        "list_sort(list(DISTINCT g.host))[:$1], "
        "max(CASE WHEN b.sent = 1 THEN g.t0 END) > min(CASE WHEN b.sent = 0 THEN g.t1 END) AS passed "
        "FROM gbody b JOIN gw g ON g.g = b.g WHERE g.run <> '' GROUP BY b.sha256 HAVING k > 1 "
        "ORDER BY passed DESC NULLS LAST, k DESC, b.sha256 LIMIT $2",
        _NAMED,
        SHOWN,
    )
    return [
        Content(
            sha256=str(sha256), size=_int(size), runs=_int(runs), sent=_int(sent), received=_int(received),
            first=_int(first), names=_texts(names), hosts=_texts(hosts), passed=passed is True,
        )
        for sha256, size, runs, sent, received, first, names, hosts, passed in found
    ]  # fmt: skip


def _int(value: object) -> int:
    return int(str(value))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, Sequence) else ()


def runs_page(targets: Sequence[Shared], contents: Sequence[Content], digests: int, about: str) -> str:
    """The page. `digests`: bodies of which the ledger holds one."""
    return document("What several runs shared", "".join(_parts(targets, contents, digests)), escape(about))


def _parts(targets: Sequence[Shared], contents: Sequence[Content], digests: int) -> Iterator[str]:
    passed = sum(content.passed for content in contents)
    yield "<h1>What several runs shared</h1>"
    yield (
        f"<p>{len(targets)} targets and {len(contents)} contents; {passed} of these were received in one run, and "
        "sent in another later.</p>"
    )
    head = [("Host", ""), ("Runs", "n"), ("Requests", "n"), ("First", ""), ("Last", ""), ("Which", "")]
    rows = [
        [escape(t.host), str(t.runs), str(t.requests), show(t.first), show(t.last), _some(t.names, t.runs)]
        for t in targets
    ]
    yield section("Targets", table(head, rows) if rows else "<p>None.</p>")
    if not digests:
        yield section("Contents", "<p>The ledger holds no digest of a body: no endpoint has <code>digest</code>.</p>")
        return
    head = [("SHA-256", ""), ("Bytes", "n"), ("Runs", "n"), ("Sent", "n"), ("Received", "n"), ("Hosts", ""), ("", "")]
    rows = [_row(content) for content in contents]
    note = f'<p class="soft">Of {digests} bodies with a digest in the ledger.</p>'
    yield section("Contents", note + (table(head, rows, "files") if rows else "<p>None.</p>"))


def _row(content: Content) -> list[str]:
    mark = '<span class="tag warning">passed on</span><br>' if content.passed else ""
    hosts = escape(", ".join(content.hosts))
    which = f"{mark}first {show(content.first)}<br>{_some(content.names, content.runs)}"
    numbers = [str(number) for number in (content.size, content.runs, content.sent, content.received)]
    return [f"<code>{escape(content.sha256)}</code>", *numbers, hosts, which]


def _some(names: Sequence[str], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f'<span class="mono">{escape(", ".join(names))}</span>{more}'
