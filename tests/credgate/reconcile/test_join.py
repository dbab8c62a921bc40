"""The join on cases small enough to be counted by hand."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.reconcile.align import align, greedy
from credgate.reconcile.classes import Severity
from credgate.reconcile.fabricate import AWS_CRED, BEGIN, aws_line, github_line
from credgate.reconcile.model import ReconcileError
from tests.credgate.reconcile.rig import SECOND, Case, web


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(directory=tmp_path)


def test_one_to_one_in_a_window(case: Case) -> None:
    case.call(10, path="/a")
    case.export("log", web(10, "/a"))
    said = case.run("nginx=log")
    assert (said.requests, said.records) == (["matched"], ["matched"])
    assert said.result.severity is Severity.FINE


def test_without_the_record_it_is_gateway_only_and_without_the_request_target_only(case: Case) -> None:
    case.call(10, path="/a")
    case.call(500, path="/c")
    case.export("log", web(10, "/b"), web(500, "/c"))
    said = case.run("nginx=log")
    assert said.requests == ["gateway-only", "matched"]
    assert said.records == ["target-only", "matched"]
    assert said.result.severity is Severity.FAIL


def test_alike_and_equal_in_number_is_a_group(case: Case) -> None:
    for at in (10, 10.2, 10.4):
        case.call(at)
    case.export("log", web(10), web(10), web(10))
    said = case.run("nginx=log")
    assert said.requests == ["matched-group"] * 3
    assert said.result.severity is Severity.FINE


def test_one_record_more_than_requests_happened_outside(case: Case) -> None:
    for at in (10, 10.2):
        case.call(at)
    case.export("log", web(10), web(10), web(11))
    said = case.run("nginx=log")
    assert said.records.count("target-only") == 1
    assert "group:2:3" in said.notes[said.records.index("target-only")]


def test_one_request_more_than_records_is_ambiguous(case: Case) -> None:
    for at in (10, 10.2, 10.4):
        case.call(at)
    case.export("log", web(10), web(10))
    said = case.run("nginx=log")
    assert sorted(said.requests) == ["ambiguous", "matched-group", "matched-group"]
    assert said.result.severity is Severity.WARNING


def test_the_tight_round_keeps_two_that_are_seconds_apart_from_being_confused(case: Case) -> None:
    # the first request's record is gone, and a call around the gateway has one 2.5 s later
    case.call(10, path="/x")
    case.call(20, path="/x")
    case.export("log", web(12.6, "/x"), web(20, "/x"))
    assert case.run("nginx=log").requests == ["matched", "matched"]
    case.export("log", web(14.5, "/x"), web(20, "/x"))
    assert case.run("nginx=log").requests == ["gateway-only", "matched"]


def test_another_status_is_a_difference_and_no_other_request(case: Case) -> None:
    case.call(10, path="/a", status=200)
    case.export("log", web(10, "/a", 500))
    said = case.run("nginx=log")
    assert (said.requests, said.notes) == (["field-mismatch"], ["status"])


def test_a_secret_in_a_path_is_what_the_target_logged_there(case: Case) -> None:
    case.call(10, path="/{bot}/send")
    case.call(500, path="/{bot}/send")
    case.call(900, path="/{bot}/read")
    case.export("log", web(10, "/bot123:abc/send"), web(500, "/bot123:abc/send"), web(900, "/bot123:abc/other"))
    assert case.run("nginx=log").requests == ["matched", "matched", "gateway-only"]


@pytest.mark.parametrize(("logged", "said_"), [(100, ""), (130, ""), (99, "bytes"), (5000, "bytes")])
def test_sizes_allow_for_the_framing_of_chunks(case: Case, logged: int, said_: str) -> None:
    case.call(10, path="/a", resp_bytes=100)
    case.export("log", web(10, "/a", 200, logged))
    assert case.run("nginx=log").notes == [said_]


def test_a_refused_request_that_was_seen(case: Case) -> None:
    case.call(5, path="/ok")
    case.deny(10, method="DELETE", path="/a")
    case.export("log", web(5, "/ok"), web(10, "/a", method="DELETE"))
    said = case.run("nginx=log")
    assert said.records == ["matched", "deny-but-seen"]
    assert said.result.severity is Severity.CRITICAL


def test_a_refused_request_that_was_not(case: Case) -> None:
    case.call(5, path="/ok")
    case.deny(10, method="DELETE", path="/a")
    case.export("log", web(5, "/ok"), web(10, "/a", method="GET"))
    assert case.run("nginx=log").records == ["matched", "target-only"]


def test_a_line_with_a_count_stands_for_ten_seconds(case: Case) -> None:
    case.call(5, path="/ok")
    case.deny(20, path="/a", count=7)
    case.export("log", web(5, "/ok"), web(12, "/a"))
    assert case.run("nginx=log").records == ["matched", "deny-but-seen"]


def test_the_last_quarter_of_an_hour_of_a_trail_is_pending(case: Case) -> None:
    for at in (10, 3000):
        case.call(at, host="sts.us-east-1.amazonaws.com", ids={"x-amzn-requestid": f"id-{at}"}, cred_fp=AWS_CRED)
    case.export("log", aws_line(BEGIN + 10 * SECOND, "GetCallerIdentity", "id-10"))
    assert case.run("cloudtrail=log").requests == ["matched", "pending"]
    assert case.run("cloudtrail=log", until=86400).requests == ["matched", "gateway-only"]


def test_no_answer_is_not_known_until_the_target_shows_it(case: Case) -> None:
    case.call(10, path="/a", status=None)
    case.call(100, path="/b")
    case.export("log", web(100, "/b"))
    assert case.run("nginx=log").requests == ["unknown-outcome", "matched"]
    case.export("log", web(10, "/a"), web(100, "/b"))
    assert case.run("nginx=log").requests == ["matched", "matched"]


def test_a_target_that_was_never_reached_can_have_no_record(case: Case) -> None:
    case.call(10, path="/a", status=0, reason="upstream_unreachable")
    case.call(100, path="/b")
    case.export("log", web(100, "/b"))
    assert case.run("nginx=log").requests == ["expected-absent", "matched"]


def test_a_log_whose_zone_was_mistaken_is_still_paired_by_its_tags(case: Case) -> None:
    """An hour before the ledger's begin: left out as that, nothing would say what is wrong."""
    for at in (10, 20, 30):
        case.call(at, path=f"/{at}", ua_tag=f"credgate/r1-{at}")
    case.export("log", *(web(at - 3600, f"/{at}", more=f" credgate/r1-{at}") for at in (10, 20, 30)))
    said = case.run("nginx=log")
    assert said.records == ["outside"] * 3  # no agent holds a tag there
    lines = [web(at - 3600, f"/{at}").replace("curl/8.5", f"curl/8.5 credgate/r1-{at}") for at in (10, 20, 30)]
    case.export("log", *lines)
    said = case.run("nginx=log")
    assert (said.records, said.requests) == (["matched"] * 3, ["matched"] * 3)
    (item,) = said.result.findings
    assert (item.class_, item.words[:29]) == ("clock", "the target's clock is -3600.1")


def test_a_line_that_is_there_twice_is_said_to_be(case: Case) -> None:
    case.call(10, path="/a", ua_tag="credgate/r1-a")
    case.call(20, path="/b")
    case.export("log", tagged(10, "a"), tagged(10, "a"), web(20, "/b"), web(20, "/b"), web(21, "/b", 404))
    said = case.run("nginx=log")
    assert said.records == ["matched", "target-only", "matched-group", "target-only", "target-only"]
    assert [said.notes[at].split(";")[-1] for at in (1, 3, 4)] == ["twin", "twin", ""]
    assert any("kept twice as a log was rotated, or made twice" in row.words for row in said.findings)


def tagged(at: float, number: str) -> str:
    return web(at, "/a").replace("curl/8.5", f"curl/8.5 credgate/r1-{number}")


def test_a_sending_that_was_done_again_may_be_in_the_log_or_not(case: Case) -> None:
    case.call(10, path="/a", status=0, reason="upstream_resent", ua_tag="credgate/r1-a")
    case.call(11, path="/a", ua_tag="credgate/r1-c")
    case.export("log", tagged(11, "c"))
    assert case.run("nginx=log").requests == ["expected-absent", "matched"]
    case.export("log", tagged(10, "a"), tagged(11, "c"))
    assert case.run("nginx=log").requests == ["matched", "matched"]


def test_one_id_shared_by_many_events_is_one_request(case: Case) -> None:
    case.call(
        10, host="sts.us-east-1.amazonaws.com", method="POST", ids={"x-amzn-requestid": "shared-id"}, cred_fp=AWS_CRED
    )
    lines = [aws_line(BEGIN + 10 * SECOND, f"Action{n}", "shared-id") for n in range(45)]
    case.export("log", *lines)
    said = case.run("cloudtrail=log", until=86400)
    assert said.records == ["matched"] * 45
    assert said.requests == ["matched"]


def test_an_event_that_is_there_twice_counts_once(case: Case) -> None:
    case.call(10, host="sts.us-east-1.amazonaws.com", ids={"x-amzn-requestid": "an-id"}, cred_fp=AWS_CRED)
    line = aws_line(BEGIN + 10 * SECOND, "GetCallerIdentity", "an-id")
    case.export("log", line, line)
    said = case.run("cloudtrail=log", until=86400)
    assert said.records == ["matched", "duplicate"]
    assert said.result.severity is Severity.WARNING


def test_one_file_given_under_two_names_counts_once(case: Case) -> None:
    case.call(10, path="/a")
    case.export("one.log", web(10, "/a"))
    case.export("two.log", web(10, "/a"))
    said = case.run("nginx=*.log")
    assert said.records == ["matched", "duplicate"]


def test_records_of_other_credentials_are_none_of_ours(case: Case) -> None:
    case.call(10, host="api.github.com", cred_fp="ours=", path="/user")
    at = BEGIN + 10 * SECOND
    case.export("log", github_line(at, "/user", 200, "d1", "ours="), github_line(at, "/user", 200, "d2", "theirs="))
    said = case.run("github=log", until=86400)
    assert said.records == ["matched", "other-credential"]


def test_a_fingerprint_of_our_own_making_sets_no_record_aside(case: Case) -> None:
    """Where a target logs names of its own, every record of it may be one of ours, unless a mapping says more."""
    at = BEGIN + 10 * SECOND
    case.call(10, host="api.github.com", cred_fp="hmac:00112233445566778899aabbccddeeff", path="/user")
    case.export("log", github_line(at + 9 * SECOND, "/repos", 200, "d2", "token-7"))
    assert case.run("github=log", until=86400).records == ["target-only"]
    case.export("log", github_line(at, "/user", 200, "d1", "token-7"), github_line(at, "/user", 200, "d2", "token-8"))
    case.mapping('[source.github.credentials]\n"hmac:00112233445566778899aabbccddeeff" = "token-7"\n')
    assert case.run("github=log", until=86400).records == ["matched", "other-credential"]


def test_a_mapping_says_what_a_secret_is_called_at_the_target(case: Case) -> None:
    case.call(10, host="api.github.com", secret="github", path="/user")
    at = BEGIN + 10 * SECOND
    case.export("log", github_line(at, "/user", 200, "d1", "mine="), github_line(at, "/user", 200, "d2", "theirs="))
    case.mapping('[source.github.credentials]\ngithub = "mine="\n')
    said = case.run("github=log", until=86400)
    assert said.records == ["matched", "other-credential"]


def test_route_templates_take_paths(case: Case) -> None:
    case.call(10, host="api.github.com", cred_fp="c=", path="/repos/acme/app/issues")
    case.call(40, host="api.github.com", cred_fp="c=", path="/repos/acme/app/pulls/3")
    lines = [
        github_line(BEGIN + 10 * SECOND, "/repos/:owner/:repo/issues", 200, "a", "c="),
        github_line(BEGIN + 40 * SECOND, "/repos/:owner/:repo/pulls/:pull_number", 200, "b", "c="),
        github_line(BEGIN + 70 * SECOND, "/repos/:owner/:repo/pulls/:pull_number/merge", 200, "c", "c="),
    ]
    case.export("log", *lines)
    assert case.run("github=log", until=86400).records == ["matched", "matched", "target-only"]


def test_without_streamed_api_requests_github_could_not_have_shown_them(case: Case) -> None:
    case.call(10, host="api.github.com", path="/user")
    case.export("log", '{"action": "repo.create", "created_at": 1780300900000, "actor": "x"}')
    said = case.run("github=log", until=86400)
    assert said.requests == ["expected-absent"]
    assert said.result.checkable == 0


def test_a_connect_of_a_proxy_covers_the_requests_within(case: Case) -> None:
    for at in (10, 20, 30):
        case.call(at, path=f"/{at}")
    when = f"{BEGIN // SECOND + 35}.000"
    line = f"{when}  30000 192.0.2.1 TCP_TUNNEL/200 900 CONNECT a.example:443 - HIER_DIRECT/x -"
    lone = line.replace("a.example", "b.example")
    case.export("log", line, lone)
    said = case.run("squid=log")
    assert said.requests == ["matched-group"] * 3
    assert said.records == ["matched-group", "target-only"]


def test_the_hosts_of_a_log_without_names_must_be_clear(case: Case) -> None:
    case.call(10, host="a.example", path="/a")
    case.call(20, host="b.example", path="/b")
    case.export("log", web(10, "/a"))
    with pytest.raises(ReconcileError, match="which hosts"):
        case.run("nginx=log")
    said = case.run("nginx@a.example=log")
    assert said.requests == ["matched", "unchecked"]
    assert (said.result.checkable, said.result.allowed, said.result.unchecked) == (1, 2, 1)


def test_a_date_header_measures_a_clock_without_ids(case: Case) -> None:
    # the target is five minutes ahead, which no window would bridge
    for n in range(4):
        date = f"Mon, 01 Jun 2026 08:{n + 5:02d}:10 GMT"
        case.call(n * 60 + 10, path=f"/{n}", ids={"date": date})
    case.export("log", *(web(n * 60 + 310, f"/{n}") for n in range(4)))
    said = case.run("nginx=log")
    assert said.requests == ["matched"] * 4
    assert [str(item.class_) for item in said.result.findings] == ["clock"]


def test_from_and_to_leave_out_both_sides(case: Case) -> None:
    for at in (10, 1000, 2000):
        case.call(at, path=f"/{at}")
    case.export("log", web(10, "/10"), web(1000, "/1000"), web(2000, "/other"))
    said = case.run("nginx=log", until=1500, since=BEGIN + 500 * SECOND)
    assert said.requests == ["matched", "outside"]
    assert said.records == ["outside", "matched", "outside"]
    assert said.result.severity is Severity.FINE


def test_what_is_later_than_the_ledger_says_so(case: Case) -> None:
    case.call(10, path="/a")
    case.export("log", web(10, "/a"), web(900, "/late"))
    said = case.run("nginx=log", until=None)
    assert said.notes == ["", "after-ledger"]


def test_several_runs_at_one_target_are_named(case: Case) -> None:
    case.call(10, path="/a", run="r-1")
    case.call(20, path="/b", run="r-2")
    case.export("log", web(10, "/a"), web(20, "/b"))
    (shared,) = case.run("nginx=log").result.shared
    assert (shared.host, shared.runs, shared.requests, shared.names) == ("a.example", 2, 2, ("r-1", "r-2"))


def best_by_trying(a: list[int], b: list[int], window: int) -> tuple[int, int]:
    """Most pairs, then least distance, of all ways to pair in order."""
    for size in range(min(len(a), len(b)), 0, -1):
        costs = [
            sum(abs(x - y) for x, y in zip(left, right, strict=True))
            for left in combinations(a, size)
            for right in combinations(b, size)
            if all(abs(x - y) <= window for x, y in zip(left, right, strict=True))
        ]
        if costs:
            return size, min(costs)
    return 0, 0


TIMES = st.lists(st.integers(0, 30), max_size=5).map(sorted)


@settings(max_examples=300)
@given(a=TIMES, b=TIMES, window=st.integers(0, 8))
def test_alignment_is_the_best_there_is(a: list[int], b: list[int], window: int) -> None:
    chosen = align(a, b, window)
    assert chosen == sorted(chosen)
    assert (len(chosen), sum(abs(a[i] - b[j]) for i, j in chosen)) == best_by_trying(a, b, window)


@settings(max_examples=200)
@given(a=TIMES, b=TIMES, window=st.integers(0, 8))
def test_long_lists_get_as_many_pairs(a: list[int], b: list[int], window: int) -> None:
    assert len(greedy(a, b, window)) == best_by_trying(a, b, window)[0]
