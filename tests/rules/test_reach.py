"""Ten thousand endpoints: a request, a name and the load look at those that share a host, and at no others.

Counted, not timed: what is looked at doesn't grow with the file.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules import ceiling, decide, load_refs
from rules.covers import overlaps
from rules.decide import decide as judge
from rules.decide import decide_connect, endpoint_for
from rules.hostindex import HostIndex
from rules.hosts import HostPattern, labels_of
from rules.load import load_policy
from rules.policy import Policy
from rules.problems import PolicyError
from rules.request import Request
from rules.verdict import Allow, Deny, Tunnel
from tests.rules.tunnelled import tunnelled

label = st.sampled_from(["a", "b", "c"])
host = st.lists(label, min_size=1, max_size=4).map(".".join)
pattern = st.builds(
    lambda wild, name: HostPattern.parse(f"{wild}{name}.test"), st.sampled_from(["", "", "*.", "**."]), host
)


@given(patterns=st.lists(pattern, max_size=12), name=host.map(lambda text: f"{text}.test"), other=pattern)
def test_an_index_finds_what_looking_at_all_finds(patterns: list[HostPattern], name: str, other: HostPattern) -> None:
    index = HostIndex((p, number) for number, p in enumerate(patterns))
    assert index.matching(labels_of(name)) == [n for n, p in enumerate(patterns) if p.matches(name)]
    near = index.near(other)
    assert near == sorted(near)
    assert {n for n, p in enumerate(patterns) if overlaps(p, other)} <= set(near)


def text(count: int, extra: str = "") -> bytes:
    one = '[endpoint.e{0}]\nhost = "h{0}.good.test"\n'
    one += '[[endpoint.e{0}.allow]]\nid = "r"\nmethods = ["GET"]\npaths = ["/**"]\n'
    bound = '[binding.b{0}]\nsecret = "s"\nendpoint = "e{0}"\nrules = ["r"]\nplace = "header:authorization"\n'
    names = ", ".join(f'"e{n}"' for n in range(count))
    bindings = ", ".join(f'"b{n}"' for n in range(count))
    parts = (one.format(n) + bound.format(n) for n in range(count))
    role = f"[role.dev]\nendpoints = [{names}]\nbindings = [{bindings}]\n"
    head = 'version = 1\ndefault_role = "dev"\n[secret.s]\nsource = "keyring:credgate/s"\n'
    return (head + "".join(parts) + extra + role).encode()


def loaded(count: int, extra: str = "") -> Policy:
    return load_policy(text(count, extra), packs={}, base_dir="/")


def request(name: str) -> Request:
    return tunnelled("GET /a", name)


class Counted:
    """Counts the calls of some functions while a test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: tuple[object, str]) -> None:
        self.calls = 0
        for module, name in places:
            real = getattr(module, name)

            def call(*args: object, _real: Any = real, **kw: Any) -> object:
                self.calls += 1
                return _real(*args, **kw)

            monkeypatch.setattr(module, name, call)


def judged(policy: Policy, name: str) -> list[object]:
    found = judge(policy, "dev", request(name))
    opened = decide_connect(policy, "dev", name.encode(), 443)
    return [found, opened, endpoint_for(policy, "dev", name, 443, tls=True)]


def test_a_request_looks_at_its_own_hosts_endpoints_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = [loaded(50), loaded(5000)]
    seen = []
    for policy in policies:
        judged(policy, "h7.good.test")  # what is computed once
        with monkeypatch.context() as patch:
            counted = Counted(patch, (decide, "_is_at"), (decide, "_names"), (HostPattern, "matches_labels"))
            found, opened, endpoint = judged(policy, "h49.good.test")
            assert isinstance(found, Allow) and [b.name for b in found.bindings] == ["b49"]
            assert isinstance(opened, Tunnel) and endpoint == policy.endpoints["e49"]
            assert isinstance(judged(policy, "nobody.good.test")[0], Deny)
            seen.append(counted.calls)
    assert seen[0] == seen[1] < 20


def test_a_load_compares_those_that_share_something(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, (load_refs, "_one_target"), (load_refs, "overlap"))
    loaded(2000)
    assert counted.calls == 0
    twice = '[endpoint.again]\nhost = "h3.good.test"\nalpn = ["h2"]\n'
    with pytest.raises(PolicyError, match="e3 and again are one target"):
        load_policy(text(2000, twice).replace(b"endpoints = [", b'endpoints = ["again", '), packs={}, base_dir="/")
    assert counted.calls == 1


def test_a_ceiling_compares_those_that_share_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = loaded(1000)
    counted = Counted(monkeypatch, (ceiling, "_same_target"), (ceiling, "overlaps"))
    assert len(ceiling.narrow(policy, loaded(1000)).endpoints) == 1000
    assert counted.calls <= 4 * 1000  # each endpoint, each binding, each deny list


def test_what_a_policy_computed_is_not_taken_over_by_one_that_is_made_of_it() -> None:
    policy = loaded(3)
    judged(policy, "h2.good.test")
    changed = replace(policy, endpoints={"e1": policy.endpoints["e1"]})
    assert [e.name for e in changed.endpoints_of("dev")] == ["e1"]
    assert policy == loaded(3)
    with pytest.raises(KeyError):
        policy.reach("nobody")


def test_the_order_of_the_file_and_of_the_role_is_kept() -> None:
    policy = loaded(12, '[endpoint.w]\nhost = "*.good.test"\n')
    assert [e.name for e in policy.reach("dev").at(("h11", "good", "test"))] == ["e11"]
    assert [b.name for b in policy.reach("dev").bindings(["e9", "e10", "e2", "e9"])] == ["b2", "b9", "b10"]
