"""A run's refusals as the ledger has them, and what the end of a run says of them."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from credgate.gateway.floods import LINES, Floods
from credgate.ledger.settings import Settings
from credgate.ledger.writer import Ledger
from credgate.prepare import CHECK_NAME
from credgate.refusals import KINDS, NAMES, OWN, Refusals, RunUnknown, refusals_of
from credgate.refusedsummary import SHOWN, summarised
from jail import fdpass
from rules.asked import Asked
from rules.learn import PATHS, TARGETS, learn
from rules.learn_toml import document, url_of
from rules.packhosts import known_hosts
from tests.rules.policies import PACKS, load

REQUEST = {"via": "connect", "scheme": "https", "host": "api.example", "port": 443, "method": "GET", "path": "/a"}
RUN = "r0123456789ab"


def deny(ledger: Ledger, run: str = RUN, **more: object) -> int:
    fields = {**REQUEST, "reason": "no_rule", **more}
    return ledger.append("deny", run=run, role="dev", verdict="deny", **fields)


def test_alike_ones_are_one_with_their_count_and_names(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l") as ledger:
        start = ledger.append("run.start", run=RUN, role="dev", program="/usr/bin/agent")
        deny(ledger, query_names=("q",))
        deny(ledger, query_names=("page", "q"))
        deny(ledger, count=7)  # of a flood
        deny(ledger, path="/b")
        deny(ledger, run="rother")
        deny(ledger, host=CHECK_NAME)  # our own look from inside
        deny(ledger, run="rother", path=f'/"run":"{RUN}"')  # a jail that would be counted elsewhere
        ledger.append("dns", run=RUN, reason="dns.deny", host="x.example", qtype="A")
    found = refusals_of(tmp_path / "l", RUN, start)
    assert found.start is not None
    assert found.start["program"] == "/usr/bin/agent"
    assert [(a.path, a.count, sorted(a.query)) for a in found.asked] == [("/a", 9, ["page", "q"]), ("/b", 1, [])]
    assert found.asked[0].first < found.asked[0].last
    assert [a.host for a in found.names] == ["x.example"]
    assert found.count == 10
    assert frozenset({CHECK_NAME}) == OWN


def test_the_counts_of_a_flood_add_up(tmp_path: Path) -> None:
    floods, fields = Floods(), {"ev": "deny", "run": RUN, "verdict": "deny", "reason": "no_rule", **REQUEST}
    with Ledger.open(tmp_path / "l") as ledger:
        for number in range(500):
            if not floods.hold(RUN, {**fields, "query_names": (f"n{number}",)}, number / 100):
                deny(ledger, query_names=(f"n{number}",))
        for line in floods.end(RUN):
            ledger.append("deny", **{name: value for name, value in line.items() if name != "ev"})
    [asked] = refusals_of(tmp_path / "l", RUN).asked
    assert asked.count == 500
    assert len(asked.query) == LINES


def test_older_segments_are_not_read(tmp_path: Path) -> None:
    settings = Settings(max_bytes=4096)
    with Ledger.open(tmp_path / "l", settings=settings) as ledger:
        for _ in range(40):
            deny(ledger, run="rearlier")
        start = ledger.append("run.start", run=RUN, role="dev")
        for _ in range(40):
            deny(ledger)
    first = tmp_path / "l/seg-000001.jsonl"
    first.write_bytes(b"")  # whoever reads it sees no run there
    assert refusals_of(tmp_path / "l", RUN, start).count == 40
    assert len(list((tmp_path / "l").glob("seg-*.jsonl"))) > 3


def test_a_damaged_line_is_counted_and_not_believed(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l") as ledger:
        deny(ledger)
        deny(ledger, path="/b")
    path = tmp_path / "l/seg-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"path":"/b"', b'"path":"/c"'))
    found = refusals_of(tmp_path / "l", RUN)
    assert ([a.path for a in found.asked], found.damaged) == (["/a"], 1)


@pytest.mark.parametrize("run", ["rnone", "", "../x", 'r"', "r\n", "é"])
def test_a_run_that_is_none(tmp_path: Path, run: str) -> None:
    with Ledger.open(tmp_path / "l") as ledger:
        deny(ledger)
    with pytest.raises(RunUnknown):
        refusals_of(tmp_path / "l", run)


def test_a_large_ledger_is_searched_and_not_parsed(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l") as ledger:
        deny(ledger)
    path = tmp_path / "l/seg-000001.jsonl"
    line = path.read_bytes().splitlines(keepends=True)[0]
    with path.open("ab") as file:
        file.write(line.replace(RUN.encode(), b"relsewhere") * 40_000)  # 25 MB; each would be damaged if it were parsed
    began = time.process_time()
    found = refusals_of(tmp_path / "l", RUN)
    assert (found.count, found.damaged) == (1, 0)
    assert time.process_time() - began < 2.0  # 0.1 s measured


def test_of_a_run_without_end_the_first_lines_are_read_and_the_others_counted(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l") as ledger:
        for number in range(30):
            deny(ledger, path=f"/{number}x")
    found = refusals_of(tmp_path / "l", RUN, most=10)
    assert (len(found.asked), found.beyond, found.count) == (10, 20, 30)
    assert refusals_of(tmp_path / "l", RUN).beyond == 0


def test_a_hostile_run_costs_a_bounded_time() -> None:
    """As many kinds as are kept apart, each of another host or path: this is done while a launcher waits."""
    asked = [one(host=f"h{n}.example.org", reason="host_unlisted") for n in range(KINDS // 2)]
    asked += [one(path=f"/w{'x' * (n % 50)}y{n}z") for n in range(KINDS // 2)]
    began = time.process_time()
    learned = learn(POLICY, "dev", asked, known_hosts(PACKS))
    assert time.process_time() - began < 10.0  # 1.2 s measured
    assert len(learned.proposals) == TARGETS - 1 + PATHS
    assert sum(told.count for told in learned.told) == KINDS - len(learned.proposals)


# the summary

POLICY = load(
    'version = 1\n[endpoint.api]\nhost = "api.example"\n[[endpoint.api.allow]]\nid = "a"\nmethods = ["GET"]\n'
    'paths = ["/x"]\n[role.dev]\nendpoints = ["api"]\n'
)


def summary(*asked: Asked, beyond: int = 0) -> str:
    refusals = Refusals(run=RUN, asked=list(asked), beyond=beyond)
    learned = learn(POLICY, "dev", asked, known_hosts(PACKS))
    return "\n".join(summarised("dev", refusals, learned).lines)


def one(host: str = "api.example", path: str = "/a", count: int = 1, reason: str = "no_rule") -> Asked:
    return Asked(reason=reason, method="GET", scheme="https", host=host, port=443, path=path, count=count)


def test_the_most_frequent_comes_first_with_the_rule_that_would_allow_it() -> None:
    said = summary(one(count=2), one(host="new.example.org", count=12, reason="host_unlisted"))
    assert said == (
        "refused 12 times: GET https://new.example.org/a (host_unlisted), would be allowed by\n"
        "    [endpoint.new-example-org]\n"
        '    host = "new.example.org"\n'
        "    [[endpoint.new-example-org.allow]]\n"
        '    id = "learned-1"\n'
        '    methods = ["GET"]\n'
        '    paths = ["/a"]\n'
        "    query = { allow = [] }\n"
        '    # and in [role.dev]: endpoints = [..., "new-example-org"]\n'
        "refused 2 times: GET https://api.example/a (no_rule), would be allowed by\n"
        "    [[endpoint.api.allow]]\n"
        '    id = "learned-1"\n'
        '    methods = ["GET"]\n'
        '    paths = ["/a"]\n'
        "    query = { allow = [] }\n"
        f"one by one, and to write them into the policy: credgate policy learn {RUN}"
    )


def test_a_host_that_an_agent_asks_by_itself_and_does_without_is_said_to_be_one() -> None:
    policy = load(
        "version = 1\n[agent.acme]\nside_hosts = ['stats.example.org']\n[role.dev]\nagent = 'acme'\n",
    )
    asked = [one(host=f"{name}.example.org", reason="host_unlisted") for name in ("stats", "else")]
    learned = learn(policy, "dev", asked, {})
    said = "\n".join(summarised("dev", Refusals(run=RUN, asked=asked), learned).lines)
    assert (
        "GET https://stats.example.org/a (host_unlisted): acme asks for this host by itself, and does without" in said
    )
    assert "[endpoint.stats-example-org]" not in said
    assert "[endpoint.else-example-org]" in said  # the control
    assert "acme asks for this host by itself" in "\n".join(document(learned.proposals))


def test_what_no_rule_allows_says_why() -> None:
    said = summary(
        Asked(reason="metadata", method="GET", scheme="http", host="metadata.google.internal", port=80, path="/")
    )
    assert said == (
        "refused once: GET http://metadata.google.internal/ (metadata): "
        "metadata names and addresses stay closed, whatever the policy says"
    )


def test_many_kinds_are_cut_short() -> None:
    said = summary(*(one(path=f"/x{'y' * n}") for n in range(1, 10)), beyond=3)
    assert said.count("refused once") == SHOWN
    assert "and 4 more kinds of refusals, and 3 beyond" in said


def test_whatever_a_jail_asks_for_the_summary_fits_into_its_message() -> None:
    label = "h" * 63
    asked = [
        one(host=f"{label}.{label}.{label}.example.org", path="/" + f"{n}" * 1400, reason="host_unlisted")
        for n in range(5)
    ]
    asked += [replace(one(path="\u202e" * 2000, reason="path_ambiguous"), method="\u202e" * 60, rule="r" * 250)] * 3
    learned = learn(POLICY, "dev", asked, known_hosts(PACKS))
    found = summarised("dev", Refusals(run=RUN, asked=asked), learned, policy="/" + "p" * 4000)
    told = json.dumps({"lines": found.lines, "entries": found.entries})
    assert 2000 < len(told) < fdpass.MAX_BYTES // 2


def test_long_and_hostile_paths_are_cut_and_stay_text() -> None:
    said = summary(one(path="/" + "y" * 4000), one(path="/\x1b]0;x\x07\nrun", reason="path_ambiguous"))
    assert len(said) < 2500
    assert "too long to be shown" in said


def test_the_names_of_one_kind_are_bounded(tmp_path: Path) -> None:
    """A jail makes them up: 20,000 lines of one kind with 32 of their own each took 120 MB of the daemon."""
    with Ledger.open(tmp_path) as ledger:
        for number in range(40):
            deny(ledger, query_names=tuple(f"n{number}-{each}" for each in range(32)))
    (asked,) = refusals_of(tmp_path, RUN).asked
    assert asked.count == 40
    assert NAMES < len(asked.query) <= NAMES + 32
    learned = learn(POLICY, "dev", [asked], known_hosts(PACKS))
    assert not learned.proposals, "no rule lists that many"


def test_a_name_with_a_blank_does_not_end_the_url() -> None:
    """What would follow reads as words of ours."""
    said = url_of(Asked(reason="no_rule", method="GET", scheme="https", host="a.example", port=443, path="/a",
                        query=frozenset({"x (host_unlisted), would be allowed by"})))  # fmt: skip
    assert said == "GET https://a.example/a?x%20(host_unlisted),%20would%20be%20allowed%20by"
