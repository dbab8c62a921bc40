"""Real records of targets, which nobody here wrote (samples/ORIGIN.md): they parse, and their join is complete."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from credgate.reconcile.model import Event, Unreadable
from credgate.reconcile.reading import Opened, json_values
from credgate.reconcile.targets import PARSERS, load_mapping, target_of
from credgate.reconcile.times import moment, show
from tests.credgate.reconcile.rig import BEGIN, SECOND, Case

SAMPLES = Path(__file__).parent / "samples"
TRAILS = sorted((SAMPLES / "cloudtrail").glob("*.json"))


def events(name: str, path: Path) -> tuple[list[Event], Counter[str]]:
    found: list[Event] = []
    with Opened(path) as opened:
        for _, value in json_values(opened):
            try:
                found += PARSERS[name](value)
            except Unreadable as error:
                opened.source.lost(str(error))
    return found, opened.source.unreadable


def inner(name: str) -> Iterator[dict[str, object]]:
    """The records of a file that keeps each under `log`."""
    for line in (SAMPLES / name).read_text().splitlines():
        yield json.loads(line)["log"]


@pytest.mark.parametrize("path", TRAILS, ids=lambda path: path.name[:20] + path.name[-12:])
def test_cloudtrail(path: Path) -> None:
    found, unreadable = events("cloudtrail", path)
    assert found
    assert not unreadable
    assert all(event.action and event.service for event in found)


@pytest.mark.parametrize("path", sorted((SAMPLES / "gcp").glob("*.json")), ids=lambda path: path.name[-40:])
def test_gcp(path: Path) -> None:
    found, unreadable = events("gcp", path)
    assert len(found) == 1
    assert not unreadable


def test_apache() -> None:
    lines = (SAMPLES / "apache" / "elastic_apache_combined_head400.log").read_bytes().splitlines()
    found = [PARSERS["apache"](line)[0] for line in lines]
    assert len(found) == 400
    assert all(event.method and event.status for event in found)
    # a real log is not in the order of its times
    assert any(later.t < earlier.t for earlier, later in pairwise(found))


def test_github(tmp_path: Path) -> None:
    """The rule tests also hold webhooks and events without a time: those alone can't be read."""
    records = list(inner("github/github.jsonl"))
    path = tmp_path / "github.jsonl"
    for record in records:
        if "at_sign_timestamp" in record:  # how that product stores the name
            record["@timestamp"] = record.pop("at_sign_timestamp")
    path.write_text("\n".join(json.dumps(record) for record in records))
    found, unreadable = events("github", path)
    timed = [r for r in records if "action" in r and ("@timestamp" in r or "created_at" in r)]
    spoilt = [r for r in timed if str(r.get("created_at")).endswith("00:00:00000000")]  # no time of GitHub's
    assert len(found) == len(timed) - len(spoilt) > 60
    assert sum(unreadable.values()) == len(records) - len(found)
    assert unreadable["time not understood"] == len(spoilt) == 4
    assert [event.cred for event in found if event.cred] == ["0771cae4d170dc02a6ff393d9946cd684d6145c1="]  # redacted


def test_okta(tmp_path: Path) -> None:
    path = tmp_path / "okta.jsonl"
    records = list(inner("okta/okta.jsonl"))
    path.write_text("\n".join(json.dumps(record) for record in records))
    found, _ = events("okta", path)
    assert len(found) == sum("published" in record and "eventType" in record for record in records) >= 2


def test_s3_access_lines_that_others_parsed_come_in_by_a_mapping(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        '[source.s3-parsed]\nformat = "jsonl"\nzone = "UTC"\n[source.s3-parsed.fields]\n'
        'time = "log.time"\nrequest_id = "log.requestid"\nstatus = "log.httpstatus"\nip = "log.remoteip"\n'
        'action = "log.operation"\ncredential = "log.requester"\n'
    )
    target = target_of("s3-parsed", (), load_mapping(mapping))
    found = []
    with Opened(SAMPLES / "s3access" / "panther_parsed.jsonl") as opened:
        for _, value in json_values(opened):
            try:
                found += target.parse(value)
            except Unreadable as error:
                opened.source.lost(str(error))
    timed = [record for record in inner("s3access/panther_parsed.jsonl") if "time" in record]
    assert len(found) == len(timed)
    assert dict(opened.source.unreadable) == {"no time": opened.source.records - len(timed)}
    assert all(event.status in (200, 204, 206, 403, 500, 0) for event in found)


def test_s3_access_lines_put_together_again_are_read() -> None:
    record = next(inner("s3access/panther_parsed.jsonl"))
    line = (
        f"{record['bucketowner']} {record['bucket']} [21/Jun/2020:20:41:25 +0000] {record['remoteip']} - "
        f'{record["requestid"]} {record["operation"]} {record["key"]} "{record["requesturi"]}" {record["httpstatus"]} '
        f'{record["errorcode"]} {record["bytessent"]} - {record["totaltime"]} - "-" "{record["useragent"]}" - '
        f"{record['hostid']} {record['signatureversion']} {record['ciphersuite']} {record['authenticationtype']} "
        f"{record['hostheader']} {record['tlsVersion']}"
    )
    (event,) = PARSERS["s3access"](line.encode())
    assert (event.t, event.status, event.ok) == (moment("2020-06-21T20:41:25Z"), 403, 0)


@pytest.fixture
def trail(tmp_path: Path) -> tuple[Case, list[Event]]:
    """A ledger that made the calls of the real trail, and the trail, moved to the ledger's time."""
    case = Case(directory=tmp_path)
    records = [
        json.loads(json.dumps(r))
        for path in TRAILS
        if "invictus" in path.name
        for r in json.loads(path.read_text())["Records"]
    ]
    begin = min(moment(record["eventTime"]) for record in records)
    for record in records:
        record["eventTime"] = show(moment(record["eventTime"]) - begin + BEGIN + 10 * SECOND)[:19] + "Z"
    found = []
    for record in records:
        (event,) = PARSERS["cloudtrail"](record)
        if event.kind == "request" and record.get("requestID"):
            found.append(event)
            host = event.host or record["eventSource"]
            case.call(
                (event.t - BEGIN) / SECOND, host=host, status=200 if event.ok else 400, method="POST",
                cred_fp=event.cred,
                ids={"x-amzn-requestid": record["requestID"]},
            )  # fmt: skip
    case.export("trail.jsonl", *(json.dumps(record) for record in records))
    case.export(
        "blind.jsonl", *(json.dumps({k: v for k, v in record.items() if k != "requestID"}) for record in records)
    )
    return case, found


def test_with_ids_the_join_of_a_real_trail_is_complete(trail: tuple[Case, list[Event]]) -> None:
    case, found = trail
    said = case.run("cloudtrail=trail.jsonl", until=86400)
    (part,) = said.result.parts
    assert part.gateway == {"matched": len(found)}
    assert part.records["matched"] == len(found)
    assert set(part.records) <= {"matched", "service", "other-credential"}
    assert said.result.checkable == said.result.allowed == len(found) > 10


def test_without_ids_the_share_that_is_ambiguous_is_reported(trail: tuple[Case, list[Event]]) -> None:
    case, found = trail
    said = case.run("cloudtrail=blind.jsonl", until=86400)
    (part,) = said.result.parts
    assert sum(part.gateway.values()) == len(found)
    assert set(part.gateway) <= {"matched", "matched-group", "ambiguous"}
    assert part.gateway.get("matched-group", 0) > 0
    # the report says of how many it can't be said which is which
    assert said.result.grouped == part.gateway["matched-group"] + part.gateway.get("ambiguous", 0)
    assert said.result.checkable == len(found)
