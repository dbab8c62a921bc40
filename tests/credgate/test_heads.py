"""What is remembered of a head is what would be found anew: verdict, bytes that are sent, ledger line, cost."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from ipaddress import ip_address
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from credgate.gateway import prepared
from credgate.gateway.atonce import at_once
from credgate.gateway.capture import Fingerprints
from credgate.gateway.dial import Dialler
from credgate.gateway.exchange import ClientState, Exchange, Key, Target
from credgate.gateway.judge import Judge
from credgate.gateway.pins import Pins
from credgate.gateway.prepared import MOST, Heads, Spelt, lines_of
from credgate.gateway.records import Records
from credgate.known import KnownValues
from credgate.ledger.chain import GENESIS, Head, link
from credgate.ledger.form import Form
from credgate.ledger.linking import Given, chain_of
from credgate.ledger.record import Stamp, clean_fields
from credgate.ledger.tree import Tree
from credgate.runs import Listener, Run
from rules.grants import Use
from rules.load import load_policy
from rules.policy import Address, Policy
from rules.request import Outgoing, Via, Wire
from rules.verdict import Deny
from tests.credgate.gateway_rig import SECRET, FakeVault

STAMP = Stamp(ts="2026-01-01T00:00:00.000000Z", boot="b", mono_ns=1)
OWN = "ghp_ownOwnOwnOwnOwnOwnOwnOwnOwnOwnOwnOwn12"
THEIRS = "ghp_theirsTheirsTheirsTheirsTheirsTheirs12"
TEXT = """
version = 1
[secret.token]
source = "keyring:credgate/token"
[secret.other]
source = "keyring:credgate/other"
[endpoint.good]
host = "api.good.test"
address = ["127.0.0.1"]
correlate = CORRELATE
[[endpoint.good.allow]]
id = "ok"
methods = ["GET", "POST"]
paths = ["/ok/**"]
[[endpoint.good.allow]]
id = "free"
methods = ["GET", "POST"]
paths = ["/free/*"]
[[endpoint.good.allow]]
id = "placeholder"
methods = ["GET"]
paths = ["/ph/*"]
[[endpoint.good.allow]]
id = "body"
methods = ["POST"]
paths = ["/body"]
body = { type = "json", max = "1KiB", keys = ["a"] }
[[endpoint.good.deny]]
id = "minting"
paths = ["/ok/mint/**"]
[endpoint.plain]
host = "plain.good.test"
port = 80
tls = false
address = ["127.0.0.1"]
[[endpoint.plain.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
[binding.token]
secret = "token"
endpoint = "good"
rules = ["ok"]
place = "header:authorization"
format = "Bearer {secret}"
[binding.swap]
secret = "other"
endpoint = "good"
rules = ["placeholder"]
place = "header:authorization"
format = "token {secret}"
mode = "placeholder"
placeholder = { env = "TOKEN", shape = "ghp_{36}" }
[role.dev]
bindings = ["token", "swap"]
endpoints = ["plain"]
[role.narrow]
endpoints = ["plain"]
"""


def policy(correlate: str = '["user-agent"]', text: str = TEXT) -> Policy:
    return load_policy(text.replace("CORRELATE", correlate).encode(), packs={}, base_dir="/")


POLICIES = [
    policy(),
    policy('["user-agent", "x-request-id"]'),
    policy("[]"),
    policy(text=TEXT.replace("/ok/**", "/ok/a")),
]


class Lines:
    """Stands for the ledger: what it would write."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.chain = chain_of((0, GENESIS), Tree())

    def put(self, form: Form, values: Given, *, held: bool = False) -> int:
        form.put(self.chain, values, STAMP)
        self.lines.append(self.chain.take())
        return self.chain.seq

    def append(self, ev: str, **given: object) -> int:
        self.chain.add(link(Head.of(self.chain.end), ev, clean_fields(ev, given), STAMP)[0])
        self.lines.append(self.chain.take())
        return self.chain.seq

    async def durable(self, seq: int) -> None:
        assert seq == self.chain.seq


class Nobody:
    """No other run's placeholders, or these."""

    def __init__(self) -> None:
        self.all: frozenset[str] = frozenset()

    def others(self, _run: Run) -> Collection[str]:
        return self.all


class Never(Heads):
    """Remembers nothing."""

    def find(self, *_: object) -> None:
        return None


async def unasked(*_: object) -> tuple[()]:
    raise OSError


class Side:
    """One judge with a run and a ledger of its own."""

    def __init__(self, heads: Heads) -> None:
        self.vault = FakeVault({"token": SECRET, "other": SECRET[::-1]})
        self.ledger, self.others, known = Lines(), Nobody(), KnownValues()
        self.targets: dict[Key, Target] = {}
        self.listening: frozenset[Address] = frozenset()
        self.at_once = 0
        self.judge = Judge(
            records=Records(cast("Any", self.ledger), known),
            fingerprints=Fingerprints(key=b"k" * 32),
            vault=cast("Any", self.vault),
            dialler=Dialler(
                pins=Pins(unasked, keep=1),
                own_addresses=frozenset,
                listeners=lambda: self.listening,
                resolve_timeout=30,
                connect_timeout=30,
            ),
            known=known,
            minter=cast("Any", None),
            decoys=cast("Any", self.others),
            heads=heads,
        )
        self.run = Run(
            id="run-1",
            policy=POLICIES[0],
            role="dev",
            gateway_ip="127.0.0.99",
            proxy_port=1,
            decoys={"swap": OWN},
            proof="p",
        )

    def ask(self, wire: Wire, *, quick: bool = False) -> dict[str, object]:
        """All that is seen of the judgement of one request; `quick`: at once, where that is taken."""
        exchange = Exchange(has_body=wire.has_body)
        state = ClientState(run=self.run, listener=Listener(sock=cast("Any", None), port=443, proxy=False))
        state.targets, open_to = self.targets, frozenset(self.targets)
        noted = at_once(self.judge, state, exchange, wire, open_to) if quick else None
        if isinstance(noted, Use) and exchange.sent is not None:
            self.at_once += 1
            out = exchange.sent.numbered(exchange.intent_seq)
        else:
            assert noted is None
            out = asyncio.run(self.judge.judge(state, exchange, wire, open_to))
        self.targets = state.targets
        kept = exchange.target and (exchange.target.key, exchange.target.addresses)
        head = b""
        if isinstance(out, Outgoing) and exchange.request is not None:
            head = out.lines if isinstance(out, Spelt) else lines_of(exchange.request, out.target, out.fields)
        return {
            "out": (out.target, out.fields, out.body, head) if isinstance(out, Outgoing) else out,
            "exchange": (exchange.request, exchange.allow, exchange.path, exchange.cred_fp, exchange.query_names, kept),
            "leaving": exchange.leaving is None,
            "quoted": exchange.quoted is None,
            "bindings": state.bindings,
            "spent": structs.replace(self.run.spent, started=0),
            "lines": list(self.ledger.lines),
        }


USUAL = Wire(
    via=Via.CONNECT,
    http_version="HTTP/1.1",
    method=b"GET",
    target=b"/ok/a?page=1",
    headers=((b"Host", b"api.good.test"), (b"User-Agent", b"agent/1"), (b"Accept", b"*/*")),
    tls=True,
    connect_host=b"api.good.test",
    connect_port=443,
    sni="api.good.test",
    listen_port=3128,
)
PLAIN = Wire(
    via=Via.ABSOLUTE,
    http_version="HTTP/1.1",
    method=b"GET",
    target=b"/a",
    headers=((b"Host", b"plain.good.test"),),
    tls=False,
    authority=b"plain.good.test",
    scheme=b"http",
    listen_port=3128,
)
header = st.sampled_from(
    [
        (b"X-A", b"1"),
        (b"X-A", b"2"),
        (b"Authorization", b"Bearer client"),
        (b"Authorization", f"token {OWN}".encode()),
        (b"authorization", f"token {THEIRS}".encode()),
        (b"X-Note", OWN.encode()),
        (b"X-Note", THEIRS.encode()),
        (b"X-Note", SECRET.encode()),
        (b"User-Agent", b"agent/2 credgate/x"),
        (b"Content-Length", b"0"),
        (b"Content-Length", b"7"),
        (b"Connection", b"x-a"),
        (b"Upgrade", b"websocket"),
        (b"X-Request-Id", b"client"),
        (b"Cookie", b"a=b"),
        (b"Range", b"bytes=0-1"),
    ]
)
wires = st.builds(
    lambda wire, method, target, more, changed: replace(
        wire, method=method, target=target, headers=(*wire.headers, *more), **changed
    ),
    st.sampled_from([USUAL, PLAIN]),
    st.sampled_from([b"GET", b"GET", b"POST", b"HEAD"]),
    st.sampled_from([b"/ok/a", b"/ok/a", b"/ok/b?key=1", b"/free/a", b"/ph/a", b"/body", b"/ok/mint/x", b"/ok//a"]),
    st.lists(header, max_size=2),
    st.sampled_from(
        [{}, {}, {}, {"sni": "evil.test"}, {"has_body": True}, {"tls": False}, {"http_version": "HTTP/1.0"}]
    ),
)
NEW = ("connection", "listener")
steps = st.lists(
    st.tuples(
        wires,
        st.sampled_from(["", "", "", "", "policy", "role", "decoys", "others", "value", "revoke", "proof", *NEW]),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=8,
)


def change(side: Side, what: str, number: int) -> None:
    match what:
        case "policy":
            side.run.policy = POLICIES[number]
        case "role":
            side.run.role = ("dev", "narrow")[number % 2]
        case "decoys":
            side.run.decoys = ({"swap": OWN}, {"swap": THEIRS}, {})[number % 3]
        case "others":
            side.others.all = (frozenset(), frozenset({THEIRS}))[number % 2]
        case "value":
            side.vault.values["token"] = f"{SECRET}{number}"
        case "revoke":
            side.run.revoked_bindings = set(("token", "swap")[: number % 3])
        case "connection":
            side.targets = {}
        case "listener":
            side.targets, side.listening = {}, (frozenset(), frozenset({ip_address("127.0.0.1")}))[number % 2]
        case "proof":
            side.run.proof = ("p", "q", "")[number % 3]


@settings(max_examples=150, deadline=None)
@given(steps=steps)
@example(steps=[(USUAL, "", 0), (USUAL, "value", 1), (USUAL, "policy", 2), (USUAL, "", 0)])
def test_what_is_remembered_is_what_would_be_found(steps: list[tuple[Wire, str, int]]) -> None:
    kept, fresh = Side(Heads()), Side(Never())
    for wire, what, number in steps:
        for side in (kept, fresh):
            change(side, what, number)
        for _ in range(2):
            assert kept.ask(wire) == fresh.ask(wire)


@settings(max_examples=150, deadline=None)
@given(steps=steps)
@example(steps=[(USUAL, "", 0), (USUAL, "value", 1), (USUAL, "policy", 2), (USUAL, "revoke", 2), (USUAL, "", 0)])
@example(steps=[(USUAL, "", 0), (USUAL, "connection", 0), (USUAL, "listener", 1), (USUAL, "connection", 0)])
def test_what_is_judged_at_once_is_what_would_be_found(steps: list[tuple[Wire, str, int]]) -> None:
    quick, fresh = Side(Heads()), Side(Never())
    for wire, what, number in steps:
        for side in (quick, fresh):
            change(side, what, number)
        for _ in range(3):
            assert quick.ask(wire, quick=True) == fresh.ask(wire)


def unsearched(side: Side) -> None:
    side.judge.known.add("late", "a-secret-that-nothing-was-searched-for")


def paused(side: Side) -> None:
    side.run.paused = True


def revoked(side: Side) -> None:
    side.run.revoked = True


def closed(side: Side) -> None:
    """A new connection, and its target's address has become the gateway's own."""
    change(side, "listener", 1)


def apart(side: Side) -> None:
    side.judge = Elsewhere(**{field.name: getattr(side.judge, field.name) for field in fields(side.judge)})


class Elsewhere(Judge):
    """As a worker's."""

    is_here = False


CHANGES = [
    *(lambda side, what=what: change(side, what, 1) for what in ("policy", "others", "decoys", "value", "revoke")),
    lambda side: change(side, "proof", 2),
    *(unsearched, paused, revoked, closed, apart),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_only_what_is_known_is_judged_at_once(changed: Any) -> None:
    side = Side(Heads())
    for count in (0, 1, 2):
        side.ask(USUAL, quick=True)
        assert side.at_once == count
    changed(side)
    side.ask(USUAL, quick=True)
    assert side.at_once == 2


def test_a_bound_that_is_reached_is_found_once_and_nothing_is_spent() -> None:
    side = Side(Heads())
    side.run.policy = policy(text=TEXT.replace("[role.dev]", "[role.dev]\nbudget = { requests = 2 }"))
    side.ask(USUAL)
    assert not isinstance(side.ask(USUAL, quick=True)["out"], Deny)
    spent, lines = side.run.spent, len(side.ledger.lines)
    assert isinstance(side.ask(USUAL, quick=True)["out"], Deny)
    assert (side.run.spent, len(side.ledger.lines), side.at_once) == (spent, lines, 1)


# For each thing that the rules are given: a request before, one that differs in it alone, and has another verdict.
PAIRS: Mapping[str, tuple[Wire, dict[str, Any]]] = {
    "via": (USUAL, {"via": Via.DIRECT, "listen_port": 444}),
    "http_version": (USUAL, {"http_version": "HTTP/1.0"}),
    "method": (USUAL, {"method": b"PUT"}),
    "target": (USUAL, {"target": b"/no"}),
    "headers": (USUAL, {"headers": (*USUAL.headers, (b"Host", b"evil.test"))}),
    "tls": (USUAL, {"tls": False}),
    "authority": (PLAIN, {"authority": b"evil.test"}),
    "scheme": (PLAIN, {"scheme": b"https"}),
    "connect_host": (USUAL, {"connect_host": b"evil.test"}),
    "connect_port": (USUAL, {"connect_port": 444}),
    "sni": (USUAL, {"sni": "evil.test"}),
    "listen_port": (replace(USUAL, via=Via.DIRECT, listen_port=443), {"listen_port": 444}),
    "has_body": (USUAL, {"has_body": True}),
}
GIVEN = ("policy", "role", "decoys", "others")


def after(heads: Heads, name: str) -> tuple[object, object]:
    """Verdicts on the second one of a pair, behind the first one: remembered, and anew."""
    first, changed = PAIRS.get(name, (USUAL, {}))
    if name in ("decoys", "others"):
        first = replace(first, target=b"/ph/a", headers=(*first.headers, (b"Authorization", f"token {OWN}".encode())))
    found = []
    for side in (Side(heads), Side(Never())):
        side.ask(first)
        if name == "policy":
            side.run.policy = policy(text=TEXT.replace("/ok/**", "/other/**"))
        elif name in GIVEN:
            change(side, name, 1)
            if name == "others":
                side.others.all = frozenset({OWN})
        found.append(side.ask(replace(first, **changed))["out"])
    return found[0], found[1]


@pytest.mark.parametrize("name", [*PAIRS, *GIVEN])
def test_nothing_that_decides_is_missing_from_the_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, fresh = after(Heads(), name)
    assert kept == fresh

    class Less(Heads):
        """Without this one thing in its key."""

        def find(self, run: Run, others: Collection[str], wire: Wire) -> Any:
            return super().find(run, others, self.less(wire))

        def keep(self, run: Run, others: Collection[str], wire: Wire, prepared: Any) -> None:
            super().keep(run, others, self.less(wire), prepared)

        def less(self, wire: Wire) -> Wire:
            gone = {key: getattr(USUAL, key) for key in PAIRS.get(name, (USUAL, {}))[1]}
            return replace(wire, **gone)

    real = prepared.given
    if name in GIVEN:
        at = GIVEN.index(name)
        monkeypatch.setattr(prepared, "given", lambda *a: (*real(*a)[:at], *real(*a)[at + 1 :]))
    kept, fresh = after(Less(), name)
    assert kept != fresh, "the test would not see it missing"


def test_every_field_of_a_wire_has_a_pair() -> None:
    assert {field.name for field in fields(Wire)} == set(PAIRS)


def test_what_is_kept_is_bounded_and_goes_with_its_run() -> None:
    heads = Heads()
    side = Side(heads)
    for number in range(MOST + 20):
        side.ask(replace(USUAL, target=b"/ok/%d" % number))
    side.ask(replace(USUAL, headers=(*USUAL.headers, (b"X-Long", b"x" * 9000))))
    ((_, known),) = heads._runs.values()
    assert len(known) == MOST
    assert heads.find(side.run, side.others.all, replace(USUAL, target=b"/ok/1")) is None
    assert heads.find(side.run, side.others.all, replace(USUAL, target=b"/ok/%d" % MOST)) is not None
    heads.drop(side.run.id)
    assert not heads._runs


def test_a_verdict_that_waits_for_a_body_is_not_kept() -> None:
    heads = Heads()
    side = Side(heads)
    length = (b"Content-Length", b"7")
    side.ask(replace(USUAL, method=b"POST", target=b"/body", has_body=True, headers=(*USUAL.headers, length)))
    assert [known for _, known in heads._runs.values()] == [{}]


def test_bounds_and_revocation_are_asked_for_each_time() -> None:
    text = TEXT.replace('format = "Bearer {secret}"', 'format = "Bearer {secret}"\nmax_uses = 2')
    side = Side(Heads())
    side.run.policy = policy(text=text)
    found = [side.ask(USUAL)["out"] for _ in range(3)]
    assert [type(one) for one in found] == [tuple, tuple, Deny]
    assert cast("Deny", found[2]).reason == "uses_exhausted"
    side = Side(Heads())
    side.ask(USUAL)
    side.run.revoked_bindings.add("token")
    assert cast("Deny", side.ask(USUAL)["out"]).reason == "revoked"


def test_a_new_connection_is_judged_at_once_too() -> None:
    """Whose target's addresses are known: it is remembered with the connection, as by the judgement that waits."""
    quick, fresh = Side(Heads()), Side(Heads())
    for count in range(4):
        change(quick, "connection", 0)
        change(fresh, "connection", 0)
        assert quick.ask(USUAL, quick=True) == fresh.ask(USUAL)
        assert quick.at_once == count
        assert list(quick.targets) == list(fresh.targets) and len(quick.targets) == 1
