"""Lies for the self-test: each changes one honest world so that ledger and targets contradict each other."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from credgate.reconcile import spoil
from credgate.reconcile.classes import Class
from credgate.reconcile.fabricate import AWS, BEGIN, WEB, World, aws_line, s3_line, web_line
from credgate.reconcile.model import SECOND
from credgate.reconcile.times import clf, moment, show

REFUSED = "refused"  # the ledger doesn't verify, and nothing is joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """What is told, how, and what the reconciliation must say."""

    name: str
    words: str
    tell: Callable[[World], None]
    found: str  # a class, or REFUSED
    note: str = ""  # a word of the finding's note, where it has to be more than the class


def _middle(items: list[str]) -> int:
    return len(items) // 2


def _json(world: World, name: str, at: int, **changes: object) -> None:
    record = json.loads(world.exports[name][at])
    world.exports[name][at] = json.dumps(record | changes)


def _outside_web(world: World) -> None:
    lines = world.exports["nginx"]
    t = clf(lines[_middle(lines)].partition("[")[2].partition("]")[0])
    lines.append(web_line(t + 30 * SECOND, "/page/never-asked-for", 200, 77))


def _outside_aws(world: World) -> None:
    lines = world.exports["cloudtrail"]
    t = moment(json.loads(lines[_middle(lines)])["eventTime"])
    lines.append(aws_line(t + 7 * SECOND, "CreateAccessKey", "0f" * 16))


def _removed_record(world: World) -> None:
    del world.exports["s3access"][_middle(world.exports["s3access"])]


def _s3_text(world: World, old: str, new: str) -> None:
    lines = world.exports["s3access"]
    at = _middle(lines)
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new, 1)


def _status(world: World) -> None:
    _s3_text(world, ' HTTP/1.1" 200 ', ' HTTP/1.1" 503 ')


def _path(world: World) -> None:
    _s3_text(world, '"GET /reports/', '"GET /payroll/')


def _size(world: World) -> None:
    lines = world.exports["s3access"]
    at = _middle(lines)
    fields = lines[at].split(" ")
    place = next(i for i, text in enumerate(fields) if text == 'HTTP/1.1"') + 3
    fields[place] = str(int(fields[place]) + 4096)
    lines[at] = " ".join(fields)


def _address(world: World) -> None:
    _s3_text(world, "192.0.2.10", "198.51.100.7")


def _moved_clock(world: World) -> None:
    lines = world.exports["cloudtrail"]
    for at in range(_middle(lines), _middle(lines) + 5):
        _json(world, "cloudtrail", at, eventTime=_later(json.loads(lines[at])["eventTime"], 600))


def _later(text: str, seconds: int) -> str:
    return f"{show(moment(text) + seconds * SECOND)[:19]}Z"


def _wrong_clock(world: World) -> None:
    for at, line in enumerate(world.exports["cloudtrail"]):
        _json(world, "cloudtrail", at, eventTime=_later(json.loads(line)["eventTime"], 7200))


def _denied_yet_seen(world: World) -> None:
    for t, ev, _, fields in world.ledger:
        if ev == "deny" and fields["host"] == WEB and t > BEGIN + 60 * SECOND:
            line = web_line(t, str(fields["path"]), 200, 5).replace('"GET ', '"DELETE ')
            world.exports["nginx"].append(line)
            return


def _replay(world: World) -> None:
    lines = world.exports["cloudtrail"]
    event = json.loads(lines[_middle(lines)])
    lines.append(aws_line(moment(event["eventTime"]) + 20 * SECOND, event["eventName"], "ab" * 16))


def _copied_tag(world: World) -> None:
    lines = world.exports["nginx"]
    line = next(line for line in lines[_middle(lines) :] if "credgate/" in line)
    agent = line.split('"')[5]
    t = clf(line.partition("[")[2].partition("]")[0])
    lines.append(web_line(t + 40 * SECOND, "/page/7", 200, 99, agent))


def _other_credential(world: World) -> None:
    at = _middle(world.exports["cloudtrail"])
    _json(world, "cloudtrail", at, userIdentity={"type": "IAMUser", "accessKeyId": "AKIAI44QH8DHBEXAMPLE"})


def _missing_hour(world: World) -> None:
    lines = world.exports["s3access"]
    begin = clf(lines[_middle(lines)].partition("[")[2].partition("]")[0])
    world.exports["s3access"] = [
        line for line in lines if not 0 <= clf(line.partition("[")[2].partition("]")[0]) - begin < 3600 * SECOND
    ]


def _short_ledger(world: World) -> None:
    final = world.ledger[-1]
    kept = world.ledger[: len(world.ledger) * 9 // 10]
    open_ = {number for _, ev, number, _ in kept if ev == "intent"} - {n for _, ev, n, _ in kept if ev == "outcome"}
    world.ledger = [entry for entry in kept if entry[2] not in open_]
    world.ledger.append((world.ledger[-1][0] + SECOND, final[1], 0, {}))


def _forgotten_request(world: World) -> None:
    later = world.ledger[len(world.ledger) // 2 :]
    number = next(n for _, ev, n, fields in later if ev == "intent" and fields["host"] == AWS)
    world.ledger = [entry for entry in world.ledger if entry[2] != number]


def _invented_request(world: World) -> None:
    at = len(world.ledger) // 2
    t = world.ledger[at][0]
    common = {"run": "r-selftest", "host": AWS, "port": 443, "method": "POST", "path": "/", "verdict": "allow"}
    world.ledger[at:at] = [
        (t, "intent", 10**9, {**common, "secret": "aws"}),
        (t, "outcome", 10**9, {"run": "r-selftest", "status": 200, "ids": {"x-amzn-requestid": "cd" * 16}}),
    ]


def _spoiled(change: Callable[[Path], None]) -> Callable[[World], None]:
    return lambda world: world.spoil.append(change)


def _doubled(world: World) -> None:
    world.exports["cloudtrail"] = [line for line in world.exports["cloudtrail"] for _ in range(2)]


def _more_usage(world: World) -> None:
    lines = world.exports["openai"]
    bucket = json.loads(lines[_middle(lines)])
    bucket["results"][0]["num_model_requests"] += 1
    lines[_middle(lines)] = json.dumps(bucket)


def _torn(world: World) -> None:
    lines = world.exports["nginx"]
    lines[_middle(lines)] = lines[_middle(lines)][:40]


def _s3_outside(world: World) -> None:
    lines = world.exports["s3access"]
    t = clf(lines[_middle(lines)].partition("[")[2].partition("]")[0])
    lines.append(s3_line(t + 11 * SECOND, "reports/all.csv", 4711, "FFFFFFFFFFFFFFFF", "198.51.100.7"))


LIES = (
    Lie(
        name="outside-call",
        words="a request to the web server that went around the gateway",
        tell=_outside_web,
        found=Class.TARGET_ONLY,
    ),
    Lie(
        name="outside-key",
        words="the AWS key used elsewhere",
        tell=_outside_aws,
        found=Class.TARGET_ONLY,
    ),
    Lie(
        name="outside-address",
        words="the bucket read from another address",
        tell=_s3_outside,
        found=Class.TARGET_ONLY,
        note="other-address",
    ),
    Lie(
        name="removed-record",
        words="a line cut out of the target's log",
        tell=_removed_record,
        found=Class.GATEWAY_ONLY,
    ),
    Lie(
        name="altered-status",
        words="another status in the target's log",
        tell=_status,
        found=Class.FIELD_MISMATCH,
        note="status",
    ),
    Lie(
        name="altered-path",
        words="another path in the target's log",
        tell=_path,
        found=Class.FIELD_MISMATCH,
        note="path",
    ),
    Lie(
        name="altered-size",
        words="another size in the target's log",
        tell=_size,
        found=Class.FIELD_MISMATCH,
        note="bytes",
    ),
    Lie(
        name="other-address",
        words="a pair whose record names another source address",
        tell=_address,
        found=Class.FIELD_MISMATCH,
        note="address",
    ),
    Lie(
        name="other-credential",
        words="a pair whose record names another credential",
        tell=_other_credential,
        found=Class.FIELD_MISMATCH,
        note="credential",
    ),
    Lie(
        name="moved-clock",
        words="a clock moved by ten minutes for a while",
        tell=_moved_clock,
        found=Class.OUT_OF_WINDOW,
        note="time",
    ),
    Lie(
        name="wrong-clock",
        words="a clock that is two hours off",
        tell=_wrong_clock,
        found=Class.CLOCK,
    ),
    Lie(
        name="denied-yet-seen",
        words="a refused request that reached its target",
        tell=_denied_yet_seen,
        found=Class.DENY_BUT_SEEN,
    ),
    Lie(
        name="replay",
        words="a request made again later",
        tell=_replay,
        found=Class.TARGET_ONLY,
    ),
    Lie(
        name="copied-tag",
        words="another request under a tag of ours",
        tell=_copied_tag,
        found=Class.TARGET_ONLY,
        note="replayed",
    ),
    Lie(
        name="missing-hour",
        words="an hour missing from the target's log",
        tell=_missing_hour,
        found=Class.COVERAGE_GAP,
    ),
    Lie(
        name="short-ledger",
        words="the end of the ledger cut off, and closed anew",
        tell=_short_ledger,
        found=Class.TARGET_ONLY,
        note="after-ledger",
    ),
    Lie(
        name="forgotten-request",
        words="a request left out of a ledger that was chained anew",
        tell=_forgotten_request,
        found=Class.TARGET_ONLY,
    ),
    Lie(
        name="invented-request",
        words="a request in the ledger that was never made",
        tell=_invented_request,
        found=Class.GATEWAY_ONLY,
    ),
    Lie(
        name="edited-line",
        words="a line of the ledger changed",
        tell=_spoiled(spoil.edited),
        found=REFUSED,
    ),
    Lie(
        name="lost-line",
        words="a line of the ledger removed",
        tell=_spoiled(spoil.lost_line),
        found=REFUSED,
    ),
    Lie(
        name="forged-checkpoint",
        words="a shorter ledger under a checkpoint of another key",
        tell=_spoiled(spoil.forged_checkpoint),
        found=REFUSED,
    ),
    Lie(
        name="old-checkpoint",
        words="a ledger chained anew under the checkpoint of the old one",
        tell=_spoiled(spoil.stale_checkpoint),
        found=REFUSED,
    ),
    Lie(
        name="truncated-ledger",
        words="the end of the ledger cut off",
        tell=_spoiled(spoil.cut),
        found=REFUSED,
    ),
    Lie(
        name="unsigned-ledger",
        words="a ledger without its signatures",
        tell=_spoiled(spoil.unsigned),
        found=REFUSED,
    ),
    Lie(
        name="doubled-export",
        words="each record of an export twice",
        tell=_doubled,
        found=Class.DUPLICATE,
    ),
    Lie(
        name="more-usage",
        words="a call that only the provider's bill knows",
        tell=_more_usage,
        found=Class.TARGET_ONLY,
        note="count",
    ),
    Lie(
        name="torn-line",
        words="a torn line in an export",
        tell=_torn,
        found=Class.UNREADABLE,
    ),
)
