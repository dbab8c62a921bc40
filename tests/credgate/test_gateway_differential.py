"""One judgement, however a request comes in: properties of the rules, and the lanes compared over sockets."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.decide import decide
from rules.inject import rewrite
from rules.load import load_policy
from rules.parse import parse_request
from rules.policy import Policy
from rules.request import Request, Via, Wire
from rules.verdict import Allow, Deny
from tests.credgate.gateway_rig import DECOY, POLICY, SECRET, Rig, rig
from tests.credgate.h2_rig import H2Client

BOTH = POLICY.replace('alpn = ["http/1.1"]', 'alpn = ["h2", "http/1.1"]', 1)
LOADED = load_policy(
    POLICY.format(ca="/ca.pem", good=1, plain=2, h2=3, direct=443, cleartext=80).encode(), packs={}, base_dir="/"
)
DECOYS = {"swap": DECOY}

SEGMENTS = ("ok", "a", "mint", "free", "pkg", "ph", "query", "..", ".", "%2e%2e", "%2f", "", "A", "a%20b", "é", "a;b")
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"get", b"TRACE")
QUERIES = (b"", b"?page=1", b"?page=1&x=2", b"?access_token=a", b"?a=b#c", b"?" + DECOY.encode(), b"?_method=PUT")
FIELDS: tuple[tuple[bytes, bytes], ...] = (
    (b"accept", b"*/*"),
    (b"authorization", b"Bearer mine"),
    (b"authorization", b"token " + DECOY.encode()),
    (b"x-api-key", b"mine"),
    (b"cookie", b"a=b"),
    (b"x-note", DECOY.encode()),
    (b"x-http-method-override", b"DELETE"),
    (b"x-original-url", b"/admin"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"x-bad", b"a\x01b"),
    (b"user-agent", b"x"),
)
HOSTS = ("api.good.test", "API.Good.Test", "api.good.test.", "evil.test", "127.0.0.1", "up.good.test")

GOOD = (b"/ok/a", b"/ok/a%20b/A?page=1", b"/free/a", b"/ph/a", b"/query?page=1", b"/pkg/a%2fb")
odd_targets = st.builds(
    lambda parts, query: b"/" + "/".join(parts).encode() + query,
    st.lists(st.sampled_from(SEGMENTS), max_size=4),
    st.sampled_from(QUERIES),
)
targets = st.one_of(st.sampled_from(GOOD), odd_targets)
hosts = st.one_of(st.just(HOSTS[0]), st.sampled_from(HOSTS))
methods = st.one_of(st.just(b"GET"), st.sampled_from(METHODS))
fields = st.lists(st.sampled_from(FIELDS), max_size=3, unique_by=lambda f: f[0]).map(tuple)


def wire(method: bytes, target: bytes, host: str, more: tuple[tuple[bytes, bytes], ...], version: str) -> Wire:
    h2, name = version == "HTTP/2.0", host.encode()
    return Wire(
        via=Via.CONNECT,
        http_version=version,
        method=method,
        target=target,
        headers=more if h2 else ((b"Host", name), *more),
        tls=True,
        authority=name if h2 else b"",
        scheme=b"https" if h2 else b"",
        connect_host=b"api.good.test",
        connect_port=443,
        sni="api.good.test",
        listen_port=1,
    )


def judged(wired: Wire, policy: Policy = LOADED) -> tuple[Request | None, Allow | Deny]:
    request = parse_request(wired)
    if isinstance(request, Deny):
        return None, request
    return request, decide(policy, "dev", request, DECOYS)


def said(verdict: Allow | Deny) -> str:
    return verdict.rule if isinstance(verdict, Allow) else verdict.reason.value


wires = st.builds(wire, methods, targets, hosts, fields, st.sampled_from(("HTTP/1.1", "HTTP/2.0")))


@settings(max_examples=400, deadline=None)
@given(wires)
def test_the_versions_agree(one: Wire) -> None:
    host = next(v for n, v in ((*one.headers, (b"host", one.authority))) if n.lower() == b"host").decode()
    more = tuple(f for f in one.headers if f[0].lower() != b"host")
    both = [judged(wire(one.method, one.target, host, more, v))[1] for v in ("HTTP/1.1", "HTTP/2.0")]
    assert said(both[0]) == said(both[1])


@settings(max_examples=400, deadline=None)
@given(wires)
def test_the_ways_in_agree(one: Wire) -> None:
    direct = replace(one, via=Via.DIRECT, connect_host=b"", connect_port=0, listen_port=443)
    assert said(judged(one)[1]) == said(judged(direct)[1])


@settings(max_examples=400, deadline=None)
@given(wires)
def test_the_normal_form_of_a_normal_form_is_itself(one: Wire) -> None:
    """What is sent, taken as a request, is judged as it was, and would be sent as it is."""
    request, verdict = judged(one)
    if request is None or not isinstance(verdict, Allow):
        return
    sent = rewrite(request, verdict, {"token": SECRET, "other": SECRET}, DECOYS).fields
    authority = f"{request.host}:{request.port}" if request.port != 443 else request.host
    h2 = request.http_version == "HTTP/2.0"
    again = replace(
        one,
        target=request.target.encode(),
        method=request.method.encode(),
        headers=sent,
        authority=authority.encode() if h2 else b"",
    )
    second, anew = judged(again)
    assert second is not None
    assert (second.method, second.host, second.path, second.target) == (
        request.method,
        request.host,
        request.path,
        request.target,
    )
    assert said(anew) == said(verdict)
    assert request.target.encode() == one.target
    if isinstance(anew, Allow):  # what was swapped for a placeholder is none the second time, and is taken out
        more = rewrite(second, anew, {"token": SECRET, "other": SECRET}, DECOYS).fields
        assert [f for f in more if f[0] != b"authorization"] == [f for f in sent if f[0] != b"authorization"]


@settings(max_examples=400, deadline=None)
@given(wires, st.sampled_from(FIELDS), st.sampled_from(("&x=1", "?x=1", "/a", "/mint/x")))
def test_widening_a_request_never_widens_its_verdict(one: Wire, extra: tuple[bytes, bytes], more: str) -> None:
    """A header more, or a query name more, makes of a refusal no permission, and no secret more is given out."""
    _, before = judged(one)
    wider = [replace(one, headers=(*one.headers, extra))]
    if b"?" in one.target or more.startswith("?"):
        wider.append(replace(one, target=one.target + (more.encode() if b"?" not in one.target else b"&x=1")))
    for wired in wider:
        _, after = judged(wired)
        if isinstance(before, Deny):
            assert isinstance(after, Deny), (said(before), said(after))
        elif isinstance(after, Allow):
            assert set(after.bindings) <= set(before.bindings)


def shuffled(policy: Policy, seed: int) -> Policy:
    """The same rules in another order, of endpoints too."""
    rng, endpoints = Random(seed), list(policy.endpoints.items())
    rng.shuffle(endpoints)
    mixed = {}
    for name, endpoint in endpoints:
        allow, deny = list(endpoint.allow), list(endpoint.deny)
        rng.shuffle(allow)
        rng.shuffle(deny)
        mixed[name] = replace(endpoint, allow=tuple(allow), deny=tuple(deny))
    return replace(policy, endpoints=mixed)


@settings(max_examples=400, deadline=None)
@given(wires, st.integers(0, 1000))
def test_deny_wins_in_any_order(one: Wire, seed: int) -> None:
    _, here = judged(one)
    _, there = judged(one, shuffled(LOADED, seed))
    assert isinstance(here, Allow) == isinstance(there, Allow)
    if isinstance(here, Deny):
        assert said(here) == said(there)


@settings(max_examples=300, deadline=None)
@given(wires, st.sampled_from(("/ok/**", "/**", "/free/*")))
def test_a_deny_rule_more_never_allows_more(one: Wire, pattern: str) -> None:
    source = next(r for r in LOADED.endpoints["good"].deny)
    allowed = next(p for r in LOADED.endpoints["good"].allow for p in r.paths)
    endpoint = LOADED.endpoints["good"]
    stricter = replace(endpoint, deny=(*endpoint.deny, replace(source, id="more", paths=(allowed,))))
    policy = replace(LOADED, endpoints={**LOADED.endpoints, "good": stricter})
    _, before = judged(one)
    _, after = judged(one, policy)
    if isinstance(after, Allow):
        assert isinstance(before, Allow)
        assert said(after) == said(before)
    assert pattern


# -- over sockets ---------------------------------------------------------------------------------------------------


def some(rng: Random) -> tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...]]:
    """A request of a grammar both versions can carry."""
    path = b"/" + "/".join(rng.choices(SEGMENTS[:11] + SEGMENTS[12:14], k=rng.randrange(4))).encode()
    if rng.randrange(2):
        path = rng.choice([target for target in GOOD if b"?" not in target])
    more = tuple(dict(rng.sample([f for f in FIELDS if f[0] != b"x-bad"], rng.randrange(3))).items())
    return rng.choice((b"GET", *METHODS)), path + rng.choice([q for q in QUERIES if b"#" not in q]), more


@pytest.mark.parametrize("seed", range(3))
def test_the_lanes_agree_over_sockets(seed: int, tmp_path: Path) -> None:
    """The same requests through HTTP/1.1 in a tunnel, directly, and HTTP/2: same verdict, same bytes at the target."""

    async def main() -> None:
        async with rig(tmp_path, policy=BOTH, alpn=("h2", "http/1.1")) as r:
            rng, differ, allowed = Random(seed), [], 0
            for _ in range(40):
                ask = some(rng)
                all_said = [await over(way, ask, r) for way in ("connect", "direct", "h2")]
                allowed += all_said[0][0] == "intent"
                if len({repr(one) for one in all_said}) > 1:
                    differ.append((ask, all_said))
            assert differ == []
            assert allowed > 2

    asyncio.run(main())


async def over(
    way: str, ask: tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...]], r: Rig
) -> tuple[str, int, str, list[tuple[bytes, bytes]]]:
    """Event, status, reason or rule, and the request as the target got it, names in lower case."""
    method, target, more = ask
    r.good.seen, r.good.sessions = [], []
    host = b"api.good.test:%d" % r.direct
    if way == "h2":
        opened = await r.tunnel(alpn=("h2", "http/1.1"))
        pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", host), (b":path", target)]
        answer = await H2Client(opened.reader, opened.writer).ask([*pseudo, *more])
        opened.close()
        status, seen = answer.status, [f for session in r.good.sessions for s in session.seen for f in s.fields]
        seen = [f for f in seen if not f[0].startswith(b":")]
    else:
        client = await (r.tunnel() if way == "connect" else r.tls())
        lines = [b"%s %s HTTP/1.1" % (method, target), b"Host: " + host, *(n + b": " + v for n, v in more)]
        status = (await client.ask(b"\r\n".join(lines) + b"\r\n\r\n")).status
        client.close()
        heads = [s.raw.split(b"\r\n")[1:-2] for s in r.good.seen]
        pairs = [line.partition(b": ") for lines in heads for line in lines]
        seen = [(n.lower(), v) for n, _, v in pairs if n.lower() != b"host"]
    line = r.records("intent", "deny")[-1]
    told = line.get("reason") or line.get("rule")
    if line["ev"] == "intent":
        assert json.dumps(line["path"])[1:-1].encode() == target.partition(b"?")[0]
        agent = next(value for name, value in seen if name == b"user-agent")
        assert agent.endswith(line["ua_tag"].encode())  # the one thing in which equal requests differ
        seen = [f if f[0] != b"user-agent" else (f[0], agent.removesuffix(line["ua_tag"].encode())) for f in seen]
    return line["ev"], status, str(told), sorted(seen)
