"""What follows from a head that the rules allow, and from nothing else: made once for all requests with the same one.

Kept here is what is pure: the verdict, the request as it will be sent with these very secrets, the words of its ledger
line. Never kept is whether it may go now: revocation, pause, budgets, uses and rates are asked each time, a secret's
value is fetched each time, and the head is searched anew once there are other secrets to be found.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING

from credgate.gateway import standing
from credgate.gateway.clientcert import certificate_of
from credgate.ledger.form import Form
from credgate.ledger.linking import Given
from credgate.runs import Run
from credgate.secretvalue import Secret
from rules.correlate import DEFAULT, Correlate, Marks, base36
from rules.grants import Use
from rules.inject import path_for_records
from rules.policy import Binding
from rules.queries import names_of
from rules.request import Outgoing, Request, Wire
from rules.scrub import Table
from rules.verdict import Allow

if TYPE_CHECKING:
    from credgate.gateway.again import Again

MOST = 128  # heads that one run's requests are known by
MAX_HEAD = 8 << 10  # bytes of one of them
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"expect", b"trailer"})


class Spelt(Outgoing, frozen=True, kw_only=True):
    """What is sent, and its head as bytes: `lines` is all of it but what frames the body, each line with its end."""

    lines: bytes


@dataclass(slots=True, kw_only=True, eq=False)
class Sent:
    """A request with the secrets in it."""

    secrets: Mapping[str, Secret]  # by their names
    names: Mapping[str, str]  # of the bindings whose secret is in it, and of those
    out: Outgoing = field(repr=False)  # without what the ledger's number decides
    cred_fp: str
    marks: Marks
    query_names: tuple[str, ...]
    rest: tuple[tuple[bytes, bytes], ...] = field(repr=False)  # the fields beside the User-Agent
    lines: bytes = field(repr=False)  # likewise, spelt; b"" where they can't be beforehand
    agent: bytes  # the User-Agent but for its end, the number; b"": none is ours
    # of the ledger's intent: what else decides it, its form, and values of its own
    form: tuple[tuple[str, ...], Form, Given] | None = None
    again: "Again | None" = None  # of the last answer's head

    @classmethod
    def of(
        cls,
        request: Request,
        out: Outgoing,
        *,
        secrets: Mapping[str, Secret],
        names: Mapping[str, str],
        cred_fp: str,
        marks: Marks,
    ) -> "Sent":
        """Spell what is known by now."""
        tagged = Correlate.USER_AGENT in marks.names
        rest = tuple(f for f in out.fields if f[0].lower() != b"user-agent") if tagged else out.fields
        known = marks.names <= DEFAULT and out.body is None
        return cls(
            secrets=secrets,
            names=names,
            out=out,
            cred_fp=cred_fp,
            marks=marks,
            query_names=names_of(out.target.partition("?")[2]),
            rest=rest,
            lines=lines_of(request, out.target, rest) if known else b"",
            agent=marks.agent_begin,
        )

    def holds(self, secrets: Mapping[str, Secret]) -> bool:
        """Whether these very values are in it."""
        return self.secrets.keys() == secrets.keys() and all(
            one is secrets[name] or one.reveal() == secrets[name].reveal() for name, one in self.secrets.items()
        )

    def numbered(self, seq: int) -> Outgoing:
        """What is sent as request `seq` of the ledger."""
        marks, out = self.marks, self.out
        if not self.lines:
            return Outgoing(target=out.target, fields=marks.put(out.fields, seq), body=out.body)
        if not marks.names:
            return Spelt(target=out.target, fields=self.rest, lines=self.lines)
        agent = self.agent + base36(seq).encode("ascii")
        fields = (*self.rest, (b"user-agent", agent))
        return Spelt(target=out.target, fields=fields, lines=b"%buser-agent: %b\r\n" % (self.lines, agent))


def lines_of(request: Request, target: str, fields: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """A head but for what frames its body."""
    first = f"{request.method} {target} {request.http_version}\r\n".encode("ascii")
    return first + b"".join([b"%b: %b\r\n" % field for field in fields if field[0].lower() not in _FRAMING])


@dataclass(slots=True, kw_only=True, eq=False)
class Prepared:
    """One allowed request. `asked` as Exchange.asked."""

    request: Request
    allow: Allow
    path: str  # for the ledger
    use: Use
    names: tuple[str, ...]  # of the bindings that it is allowed with
    shows: Binding | None  # the one whose certificate the target is shown
    asked: str = ""
    bound: tuple[Binding, ...] | None = None  # the bindings whose secret it gets, once that was asked
    clean: Table | None = None  # what the head was searched for, and had nothing of
    sent: Sent | None = None  # the last one; None where it isn't the same each time

    @classmethod
    def of(cls, request: Request, allow: Allow) -> "Prepared":
        """`request` is the one that was judged."""
        asked = "" if allow.sent is None else f"{request.host}:{request.port}"
        request = allow.sent or request  # of several targets: from here on it is the one that its target gets
        path, use = path_for_records(request, allow), standing.use_of(allow, request)
        names = tuple([binding.name for binding in allow.bindings])
        return cls(
            request=request, allow=allow, path=path, use=use, names=names, shows=certificate_of(allow), asked=asked
        )

    @property
    def is_steady(self) -> bool:
        """Whether the same head is prepared in the same way: a body or a route's target has no say in it."""
        allow = self.allow
        return not (allow.body_max or allow.messages or self.request.upgrade or allow.sent is not None)

    @property
    def is_spelt_alike(self) -> bool:
        """Whether the same secrets make the same request of it: a signature holds the time."""
        return all(binding.sign is None for binding in self.allow.bindings)


type _Given = tuple[object, ...]


def given(run: Run, others: Collection[str]) -> _Given:
    """What the rules are given beside the head. By identity: each is replaced, and never changed."""
    return (run.policy, run.role, run.decoys, others)


class Heads:
    """Prepared requests of all runs by their heads, the least used ones forgotten. Not thread-safe.

    The key is the whole Wire, so that two requests that differ in anything that the rules could see are two; beside it
    counts the identity of all else that they are given: policy, role, the run's placeholders and all others'.
    """

    def __init__(self) -> None:
        self._runs: dict[str, tuple[_Given, OrderedDict[Wire, Prepared]]] = {}

    def find(self, run: Run, others: Collection[str], wire: Wire) -> Prepared | None:
        """What was prepared for this head under these rules."""
        known = self._of(run, others)
        found = known.get(wire)
        if found is not None:
            known.move_to_end(wire)
        return found

    def keep(self, run: Run, others: Collection[str], wire: Wire, prepared: Prepared) -> None:
        """Remember it, where it is worth it."""
        if not prepared.is_steady or prepared.use.head > MAX_HEAD:
            return
        known = self._of(run, others)
        known[wire] = prepared
        if len(known) > MOST:
            known.popitem(last=False)

    def drop(self, run_id: str) -> None:
        """A run has ended."""
        self._runs.pop(run_id, None)

    def _of(self, run: Run, others: Collection[str]) -> OrderedDict[Wire, Prepared]:
        now = given(run, others)
        known = self._runs.get(run.id)
        if known is None or not all(map(is_, known[0], now)):
            known = self._runs[run.id] = (now, OrderedDict())
        return known[1]
