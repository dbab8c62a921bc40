"""An honest world for the self-test: a ledger, and what five targets would have recorded of the same requests.

Everything follows from the number of requests: the same numbers give the same bytes. Nothing here is a real host's.
"""

import base64
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from credgate.ledger import keys
from credgate.ledger.chain import Head, link
from credgate.ledger.files import notes_name, segment_name
from credgate.ledger.note import Checkpoint, origin_of
from credgate.ledger.record import Stamp, clean_fields
from credgate.ledger.tree import Tree, leaf_hash
from credgate.reconcile.model import SECOND
from credgate.reconcile.times import show

BEGIN = 1_780_300_800 * SECOND  # 2026-06-01T08:00:00Z
EGRESS = "192.0.2.10"
WEB, API = "wiki.example.test", "api.github.com"
AWS, S3, LLM = "sts.us-east-1.amazonaws.com", "acme-data.s3.us-east-1.amazonaws.com", "api.openai.com"
GITHUB_CRED = base64.b64encode(hashlib.sha256(b"a token that was never valid").digest()).decode()
AWS_CRED = "AKIAIOSFODNN7EXAMPLE"  # the example of AWS's own documentation
S3_CRED = "arn:aws:iam::123456789012:user/agent"
LLM_CRED = "key_selftest"
FORMATS = {"nginx": WEB, "github": API, "cloudtrail": AWS, "s3access": S3, "openai": LLM}
_TARGET_CLOCK = 300_000  # the targets' clocks are this far before ours
_ROUTES = (
    "/repos/:owner/:repo/issues",
    "/repos/:owner/:repo/pulls/:pull_number",
    "/user",
    "/repos/:owner/:repo/contents/:path",
)
_ACTIONS = ("GetCallerIdentity", "AssumeRole", "GetSessionToken")

type Entry = tuple[int, str, int, dict[str, object]]  # time, event, number of the request, fields


@dataclass(slots=True, kw_only=True)
class World:
    """What is written, still changeable: `ledger` in order, `exports` by format, one record each."""

    ledger: list[Entry] = field(default_factory=list)
    exports: dict[str, list[str]] = field(default_factory=dict)
    mapping: str = ""
    spoil: list[Callable[[Path], None]] = field(default_factory=list)  # what is done to the written ledger

    def write(self, directory: Path) -> None:
        """Write `ledger/`, one export a format, and `mapping.toml`."""
        directory.mkdir(parents=True, exist_ok=True)
        write_ledger(directory / "ledger", self.ledger)
        for change in self.spoil:
            change(directory / "ledger")
        for name, records in self.exports.items():
            with (directory / f"{name}.log").open("w", encoding="utf-8") as file:
                file.writelines(f"{record}\n" for record in records)
        (directory / "mapping.toml").write_text(self.mapping, "utf-8")


def write_ledger(directory: Path, entries: list[Entry], *, signed: bool = True) -> None:
    """Link the entries into one closed segment, and sign it, as the writer would have."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    head, tree, origin = Head(), Tree(), ""
    seqs: dict[int, int] = {}
    with (directory / segment_name(1)).open("wb") as file:
        for t, ev, number, given in entries:
            fields = {**given, "intent_seq": seqs[number]} if ev == "outcome" else given
            stamp = Stamp(ts=_ledger_time(t), boot="00000000-0000-4000-8000-000000000000", mono_ns=(t - BEGIN) * 1000)
            line, head = link(head, ev, clean_fields(ev, fields), stamp)
            if ev == "intent":
                seqs[number] = head.seq
            file.write(line)
            if signed:
                tree.push(leaf_hash(line))
                origin = origin or origin_of(line)
    (directory / segment_name(1)).chmod(0o600)
    if signed:
        checkpoint = Checkpoint(origin=origin, size=head.seq, root=tree.root(), extra=("segment 1", "final"))
        sign(directory, checkpoint, signer("ledger"))


def signer(name: str) -> keys.Key:
    """A key that anybody can have: the same for the same name."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  only signers

    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"self-test {name}".encode()).digest())
    return keys.Key(private=private, public=private.public_key().public_bytes_raw())


def sign(directory: Path, checkpoint: Checkpoint, key: keys.Key) -> None:
    """Write the public key, and the only checkpoint."""
    (directory / keys.PUBLIC).write_bytes(keys.public_pem(key.public))
    (directory / notes_name(1)).write_bytes(key.note(checkpoint).data())


def _ledger_time(t: int) -> str:
    return f"{show(t)[:-4]}{t % SECOND:06d}Z"


def honest(requests: int, seed: int = 1, pace: int = 1) -> World:
    """A world of that many requests, a twentieth of them refused, `pace` times 0.9 s apart in the mean."""
    chance = random.Random(seed)  # noqa: S311  it has to be repeatable
    world = World(exports={name: [] for name in FORMATS}, mapping=_mapping())
    world.ledger.append((BEGIN, "run.start", 0, {"run": "r-selftest", "role": "dev"}))
    at = BEGIN + SECOND
    counts: dict[int, int] = {}
    for number in range(1, requests + 1):
        at += chance.randrange(200_000, 1_600_000) * pace
        name = tuple(FORMATS)[chance.randrange(len(FORMATS))]
        if chance.randrange(20) == 0:
            _refuse(world, at, number, FORMATS[name])
        else:
            made = _Made(number=number, start=at, end=at + chance.randrange(5_000, 180_000), chance=chance)
            _MAKERS[name](world, made)
            if name == "openai":
                minute = made.start // (60 * SECOND)
                counts[minute] = counts.get(minute, 0) + 1
    for minute, count in sorted(counts.items()):
        world.exports["openai"].append(_bucket(minute, count))
    world.ledger.sort(key=lambda entry: entry[0])
    world.ledger.append((at + 3 * SECOND, "final", 0, {}))
    return world


def _mapping() -> str:
    return (
        f'[source.nginx]\nhosts = ["{WEB}"]\negress = ["{EGRESS}"]\ndelay_s = 0\n'
        f'[source.github]\negress = ["{EGRESS}"]\ndelay_s = 0\n'
        f'[source.cloudtrail]\negress = ["{EGRESS}"]\ndelay_s = 0\n'
        f'[source.cloudtrail.credentials]\naws = "{AWS_CRED}"\n'
        f'[source.s3access]\negress = ["{EGRESS}"]\ndelay_s = 0\nbest_effort = false\n'
        f'[source.s3access.credentials]\ns3 = "{S3_CRED}"\n'
        f'[source.openai]\ndelay_s = 0\n[source.openai.credentials]\nllm = "{LLM_CRED}"\n'
    )


@dataclass(slots=True, kw_only=True)
class _Made:
    number: int
    start: int
    end: int
    chance: random.Random

    @property
    def tag(self) -> str:
        return f"selftest-{self.number:x}"

    def stamp(self) -> int:
        """When the target's clock says that it was over."""
        return self.end + _TARGET_CLOCK - 2_000

    def id(self) -> str:
        return hashlib.sha256(f"id {self.number}".encode()).hexdigest()[:32]


def _both(world: World, made: _Made, intent: dict[str, object], outcome: dict[str, object]) -> None:
    common = {"run": "r-selftest", "verdict": "allow", "port": 443, "scheme": "https", "via": "tls"}
    world.ledger.append((made.start, "intent", made.number, {**common, **intent}))
    ms = (made.end - made.start) // 1000
    world.ledger.append((made.end, "outcome", made.number, {"run": "r-selftest", "ms": ms, **outcome}))


def _refuse(world: World, at: int, number: int, host: str) -> None:
    fields = {
        "run": "r-selftest",
        "verdict": "deny",
        "reason": "no_rule",
        "host": host,
        "port": 443,
        "method": "DELETE",
    }
    world.ledger.append((at, "deny", number, {**fields, "path": f"/refused/{number % 50}", "status": 403}))


def _web(world: World, made: _Made) -> None:
    path, size = f"/page/{made.chance.randrange(200)}", made.chance.randrange(90_000)
    status = made.chance.choice((200, 200, 200, 404))
    _both(
        world,
        made,
        {"host": WEB, "method": "GET", "path": path, "secret": "wiki", "rule": "pages"},
        {"status": status, "resp_bytes": size},
    )
    agent = f"curl/8.5 credgate/{made.tag}" if made.number % 2 else "curl/8.5"
    if made.number % 2:
        world.ledger[-2][3]["ua_tag"] = f"credgate/{made.tag}"
    world.exports["nginx"].append(web_line(made.stamp(), path, status, size, agent))


def web_line(t: int, path: str, status: int, size: int, agent: str = "curl/8.5", ip: str = EGRESS) -> str:
    """A line of the combined format."""
    when = show(t)
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    date = f"{when[8:10]}/{months[int(when[5:7]) - 1]}/{when[:4]}:{when[11:19]} +0000"
    return f'{ip} - - [{date}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"'


def _github(world: World, made: _Made) -> None:
    route = made.chance.choice(_ROUTES)
    path = "/".join("acme" if part.startswith(":") else part for part in route.split("/"))
    status = made.chance.choice((200, 200, 200, 404))
    _both(
        world,
        made,
        {"host": API, "method": "GET", "path": path, "secret": "github", "cred_fp": GITHUB_CRED, "rule": "issues"},
        {"status": status, "resp_bytes": 512, "ids": {"x-github-request-id": f"AB12:{made.number:x}:0:0"}},
    )
    world.exports["github"].append(github_line(made.start + _TARGET_CLOCK + 2_000, route, status, made.id()))


def github_line(t: int, route: str, status: int, doc: str, cred: str = GITHUB_CRED, ip: str = EGRESS) -> str:
    """An api.request event."""
    return json.dumps(
        {
            "@timestamp": t // 1000, "action": "api.request", "actor": "agent", "actor_ip": ip, "hashed_token": cred,
            "request_method": "GET", "route": route, "status_code": status, "user_agent": "gh/2.60",
            "_document_id": doc,
        }
    )  # fmt: skip


def _aws(world: World, made: _Made) -> None:
    ok = made.chance.randrange(10) > 0
    _both(
        world,
        made,
        {"host": AWS, "method": "POST", "path": "/", "secret": "aws", "cred_fp": AWS_CRED, "rule": "sts"},
        {"status": 200 if ok else 403, "resp_bytes": 800, "ids": {"x-amzn-requestid": made.id()}},
    )
    action = made.chance.choice(_ACTIONS)
    world.exports["cloudtrail"].append(aws_line(made.stamp(), action, made.id(), ok=ok))


def aws_line(t: int, action: str, request: str, *, ok: bool = True, cred: str = AWS_CRED, ip: str = EGRESS) -> str:
    """A management event of STS."""
    event: dict[str, object] = {
        "eventVersion": "1.11", "eventTime": f"{show(t)[:19]}Z", "eventSource": "sts.amazonaws.com",
        "eventName": action, "awsRegion": "us-east-1", "sourceIPAddress": ip, "userAgent": "aws-cli/2.17",
        "userIdentity": {"type": "IAMUser", "accessKeyId": cred}, "requestID": request, "readOnly": True,
        "eventID": hashlib.sha256(f"event {request} {action}".encode()).hexdigest()[:32], "eventType": "AwsApiCall",
        "eventCategory": "Management", "tlsDetails": {"clientProvidedHostHeader": AWS},
    }  # fmt: skip
    return json.dumps(event if ok else event | {"errorCode": "AccessDenied"})


def _s3(world: World, made: _Made) -> None:
    key, size = f"reports/{made.chance.randrange(500)}.csv", made.chance.randrange(1, 90_000)
    _both(
        world,
        made,
        {"host": S3, "method": "GET", "path": f"/{key}", "secret": "s3", "rule": "reports"},
        {"status": 200, "resp_bytes": size, "ids": {"x-amz-request-id": made.id()[:16].upper()}},
    )
    world.exports["s3access"].append(s3_line(made.start + _TARGET_CLOCK + 2_000, key, size, made.id()[:16].upper()))


def s3_line(t: int, key: str, size: int, request: str, ip: str = EGRESS) -> str:
    """A line of S3's server access log."""
    date = web_line(t, "", 200, 0).partition("[")[2].partition("]")[0]
    return (
        f"79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be acme-data [{date}] {ip} {S3_CRED} {request} "
        f'REST.GET.OBJECT {key} "GET /{key} HTTP/1.1" 200 - {size} {size} 12 11 "-" "aws-cli/2.17" - hostid= SigV4 '
        f"TLS_AES_128_GCM_SHA256 AuthHeader {S3} TLSv1.3 - -"
    )


def _llm(world: World, made: _Made) -> None:
    _both(
        world,
        made,
        {"host": LLM, "method": "POST", "path": "/v1/responses", "secret": "llm", "rule": "responses"},
        {"status": 200, "resp_bytes": 2048, "ids": {"x-request-id": f"req_{made.id()}"}},
    )


def _bucket(minute: int, count: int) -> str:
    result = {
        "object": "organization.usage.completions.result", "input_tokens": 10 * count, "output_tokens": 5 * count,
        "num_model_requests": count, "api_key_id": LLM_CRED, "model": "a-model",
    }  # fmt: skip
    return json.dumps(
        {"object": "bucket", "start_time": minute * 60, "end_time": minute * 60 + 60, "results": [result]}
    )


_MAKERS: dict[str, Callable[[World, _Made], None]] = {
    "nginx": _web,
    "github": _github,
    "cloudtrail": _aws,
    "s3access": _s3,
    "openai": _llm,
}
