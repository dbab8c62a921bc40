"""A child run never gets more than its own role or its parent's: the lists by example, the verdicts for any policy."""

from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.agents import Agent
from rules.agentstate import AgentState
from rules.decide import decide, decide_connect
from rules.hosts import HostPattern
from rules.intersect import child_policy, intersect, least
from rules.paths import PathPattern
from rules.policy import (
    AllowRule,
    Binding,
    Budget,
    DenyRule,
    Endpoint,
    Foreign,
    Limits,
    OnAlarm,
    PlaceKind,
    Policy,
    Role,
    Workdir,
)
from rules.verdict import Allow, Deny, Tunnel
from tests.rules.test_properties import HOST, allow_rules, clean_path, deny_rules, headers, request

FUZZ = settings(max_examples=80)

# Endpoints that overlap in host, differ in rules, denies, treatment of credentials, and now and then in how they dial.
NAMES = ("e1", "e2", "e3")
hosts = st.sampled_from([HOST, "*.good.test", "**.good.test", "other.good.test"]).map(HostPattern.parse)


def an_endpoint(name: str) -> st.SearchStrategy[Endpoint]:
    return st.builds(
        Endpoint,
        name=st.just(name),
        host=hosts,
        port=st.sampled_from([443, 443, 8443]),
        dial_port=st.sampled_from([443, 443, 443, 9443]),
        foreign=st.sampled_from(Foreign),
        allow=allow_rules,
        deny=deny_rules,
    )


bindings = st.fixed_dictionaries(
    {
        name: st.builds(
            Binding,
            name=st.just(name),
            secret=st.just("s"),
            endpoint=st.sampled_from(NAMES),
            rules=st.sets(st.sampled_from(["r1", "r2", "r3"]), min_size=1).map(frozenset),
            place=st.just(PlaceKind.HEADER),
            header=st.sampled_from(["authorization", "x-api-key"]),
            foreign=st.sampled_from([Foreign.STRIP, Foreign.DENY]),
        )
        for name in ("b1", "b2")
    }
)


def a_role(name: str) -> st.SearchStrategy[Role]:
    some = {"max_size": 3, "unique": True}
    return st.builds(
        Role,
        name=st.just(name),
        endpoints=st.lists(st.sampled_from(NAMES), **some).map(tuple),
        bindings=st.lists(st.sampled_from(["b1", "b2"]), max_size=2, unique=True).map(tuple),
        workdir=st.sampled_from(Workdir),
        tools=st.lists(st.sampled_from(["/a", "/a/b", "/a/b/c", "/ab", "~/x"]), **some).map(tuple),
        read=st.lists(st.sampled_from(["/a", "/a/b", "/d"]), **some).map(tuple),
        env=st.lists(st.sampled_from(["TERM", "LANG", "X"]), **some).map(tuple),
        readonly=st.lists(st.sampled_from(["a/", "b"]), **some).map(tuple),
        hide=st.lists(st.sampled_from(["*.x", "y"]), **some).map(tuple),
        show=st.lists(st.sampled_from([".env", "a/.env"]), **some).map(tuple),
        allow_debug=st.booleans(),
        allow_userns=st.booleans(),
        children=st.just(("parent", "child", "grandchild")),
        deadline=st.one_of(st.none(), st.integers(1, 9)),
        limits=st.builds(Limits, memory=st.integers(1, 9), processes=st.integers(1, 9), cpu=st.integers(1, 9)),
        budget=st.builds(Budget, requests=st.none() | st.integers(1, 9), bytes_out=st.none() | st.integers(1, 9)),
        on_alarm=st.sampled_from(OnAlarm),
    )


policies = st.builds(
    lambda ends, bound, roles: Policy(
        sha256="0", endpoints={e.name: e for e in ends}, bindings=bound, roles={r.name: r for r in roles}
    ),
    st.tuples(*(an_endpoint(name) for name in NAMES)),
    bindings,
    st.tuples(*(a_role(name) for name in ("parent", "child", "grandchild"))),
)
asked = st.builds(request, st.sampled_from(["GET", "HEAD", "POST"]), clean_path, sent=headers)


@settings(max_examples=250)
@given(policies, asked)
def test_what_a_child_may_send_its_own_role_and_its_parents_may_send(policy, sent) -> None:
    verdict = decide(child_policy(policy, "parent", "child"), "child", sent)
    alone = [decide(policy, role, sent) for role in ("child", "parent")]
    if isinstance(verdict, Deny):
        return
    assert all(isinstance(each, Allow) for each in alone)
    for each in alone:
        assert set(verdict.bindings) <= set(each.bindings)  # no secret that one of the two would not get
        assert verdict.endpoint.dial_port == each.endpoint.dial_port


@FUZZ
@given(policies, asked)
def test_what_both_may_send_without_overlap_the_child_may_send(policy, sent) -> None:
    """The other direction, so that refusing everything does not pass: with one endpoint there is nothing to overlap."""
    one = Policy(
        sha256="0",
        endpoints={"e1": policy.endpoints["e1"]},
        roles={name: Role(name=name, endpoints=("e1",)) for name in ("parent", "child")},
    )
    both = all(isinstance(decide(one, role, sent), Allow) for role in ("parent", "child"))
    assert isinstance(decide(child_policy(one, "parent", "child"), "child", sent), Allow) is both


@FUZZ
@given(policies, asked)
def test_a_grandchild_lies_within_all_three(policy, sent) -> None:
    first = child_policy(policy, "parent", "child")
    second = child_policy(first, "child", "grandchild")
    if isinstance(decide(second, "grandchild", sent), Allow):
        for each, role in ((policy, "parent"), (policy, "child"), (policy, "grandchild"), (first, "child")):
            assert isinstance(decide(each, role, sent), Allow)


@FUZZ
@given(policies, asked)
def test_a_child_of_its_own_role_has_its_own_rights(policy, sent) -> None:
    again = child_policy(policy, "parent", "parent")
    assert type(decide(again, "parent", sent)) is type(decide(policy, "parent", sent))


@FUZZ
@given(policies, st.sampled_from([443, 8443, 22]))
def test_a_tunnel_of_the_child_is_one_of_both(policy, port: int) -> None:
    if isinstance(decide_connect(child_policy(policy, "parent", "child"), "child", HOST.encode(), port), Tunnel):
        for role in ("child", "parent"):
            assert isinstance(decide_connect(policy, role, HOST.encode(), port), Tunnel)


def inside(paths: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    return all(any(path == tree or path.startswith(tree + "/") for tree in outer) for path in paths)


@FUZZ
@given(policies)
def test_every_other_right_is_in_both(policy) -> None:
    both = policy.roles["child"], policy.roles["parent"]
    got = intersect(*both, policy)
    reached = {e.name for e in Policy(**{**vars_of(policy), "roles": {"x": got}}).endpoints_of("x")}
    for role in both:
        assert reached <= {e.name for e in policy.endpoints_of(role.name)}
        assert set(got.bindings) <= set(role.bindings)
        assert set(got.env) <= set(role.env)
        assert set(got.show) <= set(role.show)
        assert set(got.readonly) >= set(role.readonly)  # these close
        assert set(got.hide) >= set(role.hide)
        assert got.publish == ()  # a child run has none
        assert inside(got.tools, role.tools)
        assert inside(got.read, role.read)
        assert set(got.switches()) <= set(role.switches())
        assert list(Workdir).index(got.workdir) <= list(Workdir).index(role.workdir)
        assert role.deadline is None or (got.deadline is not None and got.deadline <= role.deadline)
        for bound in fields(Limits):
            assert getattr(got.limits, bound.name) <= getattr(role.limits, bound.name)
        for bound in fields(Budget):
            mine, limit = getattr(got.budget, bound.name), getattr(role.budget, bound.name)
            assert limit is None or (mine is not None and mine <= limit)
        assert list(OnAlarm).index(got.on_alarm) >= list(OnAlarm).index(role.on_alarm)


def vars_of(policy: Policy) -> dict[str, object]:
    return {f.name: getattr(policy, f.name) for f in fields(Policy) if f.init}


def test_every_field_of_a_role_is_thought_of() -> None:
    """A right that is added to Role and forgotten in intersect fails here: it has to be one of these."""
    known = "name bindings endpoints workdir tools read env allow_debug allow_userns children deadline limits within"
    more = "budget on_alarm publish route readonly hide show agent state agent_state"
    assert {f.name for f in fields(Role)} == {*known.split(), *more.split()}


def test_least_takes_each_bound() -> None:
    small = Limits(**dict.fromkeys((f.name for f in fields(Limits)), 1))
    assert least(small, Limits()) == least(Limits(), small) == small


# The pairs: what the parent closes is closed although the child's own role opens it


def of(**keys: tuple[str, ...]) -> Policy:
    every = (PathPattern.parse("/**"),)
    open_ = Endpoint(
        name="open",
        host=HostPattern.parse(HOST),
        port=443,
        dial_port=443,
        allow=(AllowRule(id="r1", methods=frozenset({"GET"}), paths=every),),
    )
    closing = Endpoint(
        name="closing",
        host=HostPattern.parse("*.good.test"),
        port=443,
        dial_port=443,
        deny=(DenyRule(id="d", methods=None, paths=(PathPattern.parse("/secret"),)),),
    )
    roles = {name: Role(name=name, endpoints=ends) for name, ends in keys.items()}
    return Policy(sha256="0", endpoints={"open": open_, "closing": closing}, roles=roles)


def test_a_deny_rule_of_the_parents_alone_counts_for_the_child() -> None:
    policy = of(parent=("open", "closing"), child=("open",))
    sent = request("GET", "/secret")
    assert isinstance(decide(policy, "child", sent), Allow)  # the control: by itself the child's role allows it
    refused = decide(child_policy(policy, "parent", "child"), "child", sent)
    assert isinstance(refused, Deny)
    assert refused.rule == "closing.d"
    assert isinstance(decide(child_policy(policy, "parent", "child"), "child", request("GET", "/plain")), Allow)


def test_an_endpoint_of_the_childs_alone_is_not_reached() -> None:
    policy = of(parent=("closing",), child=("open",))
    sent = request("GET", "/plain")
    assert isinstance(decide(policy, "child", sent), Allow)
    assert isinstance(decide(child_policy(policy, "parent", "child"), "child", sent), Deny)
    assert child_policy(policy, "parent", "child").endpoints_of("child") == ()


def test_trees_that_nest_become_the_inner_one() -> None:
    mine = Role(name="c", tools=("/a", "/b/c", "~/.cargo"), read=("/x",))
    above = Role(name="p", tools=("/a/b", "/b", "/home/u/.cargo"))
    got = intersect(mine, above, Policy(sha256="0", roles={"c": mine, "p": above}))
    assert (got.tools, got.read) == (("/a/b", "/b/c"), ())


def test_an_agents_own_files_are_a_childs_only_where_both_have_that_agent() -> None:
    acme, other = Agent(name="acme"), Agent(name="other")
    parent = Role(name="p", agent=acme, agent_state=AgentState.COPY, state=("~/.config",))
    for agent, state, got in (
        (acme, AgentState.COPY, AgentState.COPY),
        (acme, AgentState.FRESH, AgentState.FRESH),
        (other, AgentState.COPY, AgentState.FRESH),
    ):
        child = Role(name="c", agent=agent, agent_state=state, state=("~/.config/gh", "~/.ssh"))
        both = intersect(child, parent, Policy(sha256="0", roles={"c": child, "p": parent}))
        assert (both.agent_state, both.state) == (got, ("~/.config/gh",))
    alone = intersect(parent, Role(name="q", agent=acme), Policy(sha256="0"))
    assert (alone.agent_state, alone.state) == (AgentState.FRESH, ())
