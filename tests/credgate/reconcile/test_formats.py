"""Each format by the example of its own documentation; whatever else comes, only Unreadable comes out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.reconcile.fabricate import BEGIN, s3_line, web_line
from credgate.reconcile.formats import tokens
from credgate.reconcile.formats.tokens import fields
from credgate.reconcile.model import Event, Unreadable, path_of, tag_of
from credgate.reconcile.targets import MAPPED, PARSERS, formats, target_of
from credgate.reconcile.times import moment

S3_LINE = (
    b"79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be amzn-s3-demo-bucket1 [06/Feb/2019:00:01:00 +0000] "
    b"192.0.2.3 79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be DD6CC733AEXAMPLE REST.PUT.OBJECT "
    b's3-dg.pdf "PUT /amzn-s3-demo-bucket1/s3-dg.pdf HTTP/1.1" 200 - - 4406583 41754 28 "-" "S3Console/0.4 a \\" b" - '
    b"10S62Zv81kBW7BB6SX4XJ48o6kpcl6LPwEoizZQQxJd5qDSCTLX0TgS37kYUBKQW3+bPdrg1234= SigV4 ECDHE-RSA-AES128-SHA AuthHeader "
    b"amzn-s3-demo-bucket1.s3.us-west-1.amazonaws.com TLSV1.2 - - us-east-1"
)
ENVOY_LINE = (
    b'[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" '
    b'"cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"'
)
SQUID_LINE = b"1286536309.586    921 192.168.0.68 TCP_MISS/200 507 POST http://rcv-srv37.example.net/content? alice DIRECT/192.0.2.7 text/plain"
CONNECT_LINE = (
    b"1286536310.100  60000 192.168.0.68 TCP_TUNNEL/200 8112 CONNECT api.example.com:443 - HIER_DIRECT/192.0.2.8 -"
)


def one(name: str, record: object) -> Event:
    (event,) = PARSERS[name](record)
    return event


def test_cloudtrail() -> None:
    event = one(
        "cloudtrail",
        {
            "eventTime": "2023-07-10T12:00:24Z", "eventSource": "s3.amazonaws.com", "eventName": "GetBucketTagging",
            "userIdentity": {"accessKeyId": "AKIAIOSFODNN7EXAMPLE"}, "errorCode": "NoSuchTagSet", "eventID": "e-1",
            "requestID": "FZHCJSWV2M09GWDV", "additionalEventData": {"x-amz-id-2": "aB/c=", "bytesTransferredOut": 319},
            "userAgent": "[aws-cli/2 credgate/1a2b3c4d-z9]", "eventCategory": "Management", "new": {"field": 1},
            "tlsDetails": {"clientProvidedHostHeader": "b.s3.amazonaws.com"}, "sourceIPAddress": "192.0.2.1",
        },
    )  # fmt: skip
    assert (event.service, event.action, event.ok, event.size) == ("s3", "GetBucketTagging", 0, 319)
    assert event.ids == ("fzhcjswv2m09gwdv", "ab/c=")
    assert (event.tag, event.host, event.kind) == ("1a2b3c4d-z9", "b.s3.amazonaws.com", "request")


@pytest.mark.parametrize(
    "own",
    [
        {"userIdentity": {"type": "AWSService", "invokedBy": "ec2.amazonaws.com"}},
        {"userIdentity": {"type": "IAMUser", "invokedBy": "secretsmanager.amazonaws.com"}},
        {"eventType": "AwsServiceEvent"},
    ],
)
def test_what_aws_did_itself_is_no_call_of_a_key(own: dict[str, object]) -> None:
    base = {"eventTime": "2023-07-10T12:00:24Z", "eventSource": "kms.amazonaws.com", "eventName": "Decrypt"}
    assert one("cloudtrail", base).kind == "request"
    assert one("cloudtrail", base | own).kind == "service"


def test_lookup_events_hold_the_event_as_text() -> None:
    inner = {"eventTime": "2023-07-10T12:00:24Z", "eventSource": "iam.amazonaws.com", "eventName": "ListUsers"}
    assert one("cloudtrail", {"EventId": "x", "CloudTrailEvent": json.dumps(inner)}).action == "ListUsers"


def test_s3_access_log() -> None:
    event = one("s3access", S3_LINE)
    assert event.t == moment("2019-02-06T00:01:00Z")
    assert event.t_end - event.t == 41_754_000
    assert (event.method, event.path, event.status) == ("PUT", "/amzn-s3-demo-bucket1/s3-dg.pdf", 200)
    assert event.ids[0] == "dd6cc733aexample"
    assert event.host == "amzn-s3-demo-bucket1.s3.us-west-1.amazonaws.com"


def test_s3_batch_has_no_request_line_and_lifecycle_is_the_targets_own() -> None:
    line = S3_LINE.replace(b'"PUT /amzn-s3-demo-bucket1/s3-dg.pdf HTTP/1.1"', b"-")
    batch = one("s3access", line.replace(b"REST.PUT.OBJECT", b"BATCH.DELETE.OBJECT"))
    assert (batch.path, batch.method, batch.category) == ("/s3-dg.pdf", "", "BATCH")
    assert one("s3access", line.replace(b"REST.PUT.OBJECT", b"S3.EXPIRE.OBJECT")).kind == "service"


def test_s3_access_log_in_cloudwatch() -> None:
    record = {
        "request_time": "2026-06-01T08:00:00.123Z", "request_id": "DD6C", "operation": "REST.GET.OBJECT", "http_status": 200,
        "request_uri": "GET /k?versionId=1 HTTP/1.1", "bytes_sent": 7, "requester": "arn:aws:iam::1:user/a",
    }  # fmt: skip
    event = one("s3access", json.dumps(record).encode())
    assert (event.t % 1_000_000, event.path, event.size) == (123_000, "/k", 7)


def test_github_api_request() -> None:
    event = one(
        "github",
        {
            "@timestamp": 1675191507638, "action": "api.request", "request_method": "GET", "status_code": "200",
            "route": "/repositories/:repository_id/issues", "hashed_token": "EH4L8o6PfCqipALbL+BT62lyqUtnI7ql0SPbkaQnjv8=",
            "user_agent": "octokit credgate/ab-1", "_document_id": "d", "actor_ip": "192.0.2.4",
        },
    )  # fmt: skip
    assert (event.template, event.path, event.status, event.tag) == (
        1,
        "/repositories/:repository_id/issues",
        200,
        "ab-1",
    )


def test_gitlab_request_and_audit_event() -> None:
    line = {
        "time": "2026-06-01T08:00:02.000Z", "duration_s": 1.5, "method": "GET", "path": "/api/v4/projects/1", "status": 200,
        "route": "/api/:version/projects/:id", "remote_ip": "192.0.2.5", "ua": "curl", "correlation_id": "01HX", "token_id": 7,
    }  # fmt: skip
    event = one("gitlab", line)
    assert (event.t_end - event.t, event.cred, event.ids, event.path) == (
        1_500_000,
        "7",
        ("01hx",),
        "/api/v4/projects/1",
    )
    audit = one(
        "gitlab", {"id": "9", "created_at": "2026-06-01T08:00:02Z", "event_type": "project_created", "details": {}}
    )
    assert (audit.category, audit.action) == ("audit", "project_created")


def test_gcp_reason_is_the_clients_id() -> None:
    event = one(
        "gcp",
        {
            "insertId": "a", "timestamp": "2026-06-01T08:00:00.123456789Z", "logName": "p/logs/cloudaudit.googleapis.com%2Factivity",
            "protoPayload": {
                "serviceName": "storage.googleapis.com", "methodName": "storage.buckets.create", "status": {"code": 7},
                "requestMetadata": {"callerIp": "192.0.2.6", "requestAttributes": {"reason": "CG-1", "time": "2026-06-01T08:00:00Z"}},
                "authenticationInfo": {"serviceAccountKeyName": "//iam.googleapis.com/projects/p/serviceAccounts/s/keys/k1"},
            },
        },
    )  # fmt: skip
    assert (event.given, event.cred, event.ok, event.category) == (("cg-1",), "k1", 0, "activity")


def test_azure_both_shapes() -> None:
    exported = {
        "time": "2026-06-01T08:00:00.1234567Z", "operationName": "MICROSOFT.COMPUTE/VIRTUALMACHINES/WRITE", "resultType": "Success",
        "correlationId": "C0", "identity": {"claims": {"appid": "app"}}, "callerIpAddress": "192.0.2.7",
    }  # fmt: skip
    listed = {
        "eventTimestamp": "2026-06-01T08:00:00Z", "operationName": {"value": "Microsoft.Compute/virtualMachines/write"},
        "status": {"value": "Succeeded"}, "correlationId": "C0", "eventDataId": "e", "claims": {"appid": "app"},
        "httpRequest": {"clientRequestId": "CR", "method": "PUT"},
    }  # fmt: skip
    assert (one("azure", exported).ids, one("azure", exported).ok) == (("c0",), 1)
    assert (one("azure", listed).given, one("azure", listed).primary, one("azure", listed).cred) == (
        ("cr",),
        "e",
        "app",
    )


def test_cloudflare_api_logpush_and_version_one() -> None:
    raw = {
        "cf_ray_id": "8a-AMS",
        "method": "POST",
        "status_code": 200,
        "uri": "/client/v4/zones?x=1",
        "user_agent": "go",
    }
    api = one(
        "cloudflare",
        {
            "id": "1",
            "action": {"time": "2026-06-01T08:00:00Z", "type": "create"},
            "actor": {"token_id": "t"},
            "raw": raw,
        },
    )
    pushed = one(
        "cloudflare",
        {"AuditLogID": "1", "ActionTimestamp": 1780300800, "ActionType": "create", "Raw": {"CfRayID": "8a"}},
    )
    first = one(
        "cloudflare", {"id": "1", "when": "2026-06-01T08:00:00Z", "action": {"type": "rec_add", "result": True}}
    )
    assert (api.ids, api.path, api.cred, api.status) == (("8a",), "/client/v4/zones", "t", 200)
    assert pushed.ids == ("8a",)
    assert (first.action, first.ok) == ("rec_add", 1)


def test_stripe_with_and_without_a_request() -> None:
    event = {
        "id": "evt_1",
        "type": "charge.succeeded",
        "created": 1780300800,
        "request": {"id": "req_1", "idempotency_key": "K"},
    }
    assert (one("stripe", event).ids, one("stripe", event).given) == (("req_1",), ("k",))
    assert one("stripe", event | {"request": "req_2"}).ids == ("req_2",)
    assert one("stripe", event | {"request": None}).kind == "service"


def test_slack_and_okta() -> None:
    entry = {
        "id": "s",
        "date_create": 1780300800,
        "action": "user_login",
        "actor": {"user": {"id": "U1"}},
        "context": {"ua": "x"},
    }
    assert one("slack", entry).cred == "U1"
    logged = {
        "uuid": "u", "published": "2026-06-01T08:00:00.123Z", "eventType": "user.lifecycle.create", "outcome": {"result": "SUCCESS"},
        "debugContext": {"debugData": {"requestId": "RQ", "requestUri": "/api/v1/users"}},
        "transaction": {"type": "WEB", "id": "RQ", "detail": {"requestApiTokenId": "00T"}},
    }  # fmt: skip
    event = one("okta", logged)
    assert (event.ids, event.cred, event.ok, event.path) == (("rq",), "00T", 1, "/api/v1/users")


def test_combined_with_escapes_ids_and_virtual_host() -> None:
    line = b'192.0.2.9 - frank [10/Oct/2000:13:55:36 -0700] "GET /a%20b?q=1 HTTP/1.0" 200 2326 "-" "a \\x22b\\x22 credgate/r1-7"'
    event = one("nginx", line)
    assert event.t == moment("2000-10-10T20:55:36Z")
    assert (event.path, event.cred, event.size, event.tag) == ("/a b", "frank", 2326, "r1-7")
    more = one("apache", line.replace(b"r1-7", b'q \\"x\\"') + b" 7f3c2a91d0b84e6f")
    assert more.ids == ("7f3c2a91d0b84e6f",)
    assert one("apache", b"www.example.org:443 " + line).host == "www.example.org"


def test_a_handshake_on_a_plain_port_is_a_line_without_a_request() -> None:
    event = one("nginx", b'192.0.2.9 - - [10/Oct/2000:13:55:36 -0700] "\\x16\\x03\\x01" 400 157 "-" "-"')
    assert (event.method, event.path, event.status) == ("", "", 400)


def test_daylight_saving_is_in_the_offset() -> None:
    before = b'192.0.2.9 - - [25/Oct/2026:02:30:00 +0200] "GET / HTTP/1.1" 200 1 "-" "-"'
    after = before.replace(b"+0200", b"+0100")
    assert one("nginx", after).t - one("nginx", before).t == 3_600_000_000


def test_envoy_line_and_json() -> None:
    event = one("envoy", ENVOY_LINE)
    assert (event.method, event.path, event.status, event.host) == ("POST", "/api/v1/locations", 204, "locations")
    assert (event.t_end - event.t, event.size, event.ids) == (226_000, 0, ("cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2",))
    record = {
        "start_time": "2026-06-01T08:00:00Z",
        "method": "GET",
        "path": "/",
        "response_code": 200,
        "authority": "a.example:443",
    }
    assert one("envoy", json.dumps(record).encode()).host == "a.example"


def test_squid_request_and_session() -> None:
    event = one("squid", SQUID_LINE)
    assert (event.t_end, event.t_end - event.t) == (1286536309_586000, 921_000)
    assert (event.method, event.host, event.path, event.cred) == ("POST", "rcv-srv37.example.net", "/content", "alice")
    assert (one("squid", CONNECT_LINE).kind, one("squid", CONNECT_LINE).host) == ("session", "api.example.com")


COMBINED = b'192.0.2.1 - - [30/Nov/2026:08:55:32 +0000] "GET /v1/a HTTP/1.1" 200 8 "-" "agent/1 credgate/r1-a"'


@pytest.mark.parametrize(
    ("name", "line"), [("nginx", COMBINED), ("squid", SQUID_LINE), ("squid", CONNECT_LINE), ("envoy", ENVOY_LINE)]
)
def test_two_records_in_one_line_are_none(name: str, line: bytes) -> None:
    """A line whose end was lost, or that was torn as the next one was written: the second one must not vanish."""
    assert one(name, line)
    for glued in (line + line, line + b" " + line, line + b"\r" + line, line[: len(line) * 3 // 4] + line):
        with pytest.raises(Unreadable):
            PARSERS[name](glued)


def test_what_a_client_writes_is_no_second_record() -> None:
    r"""Servers escape its quotes: nginx as \x22, Apache as \"."""
    for quote in (rb"\x22", rb"\""):
        agent = b"[30/Nov/2026:08:55:32 +0000] " + quote + b"GET / HTTP/1.1" + quote + b" 200 8"
        assert one("nginx", COMBINED.replace(b"agent/1", agent)).tag == "r1-a"


def test_usage_buckets() -> None:
    result = {
        "object": "organization.usage.completions.result",
        "num_model_requests": 5,
        "api_key_id": "key_1",
        "model": None,
    }
    page = {"object": "bucket", "start_time": 1730419200, "end_time": 1730505600, "results": [result, result]}
    events = PARSERS["openai"](page)
    assert [(event.kind, event.n, event.cred) for event in events] == [("bucket", 5, "key_1")] * 2
    other = page | {"results": [result | {"object": "organization.usage.embeddings.result"}]}
    assert PARSERS["openai"](other) == ()
    used = {"uncached_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 0, "api_key_id": None}
    (event,) = PARSERS["anthropic"](
        {"starting_at": "2026-06-01T08:00:00Z", "ending_at": "2026-06-01T09:00:00Z", "results": [used]}
    )
    assert (event.n, event.cred) == (1, "")


WITHOUT = [
    ("cloudtrail", {"eventTime": "2023-07-10T12:00:24Z", "eventSource": "x"}),
    ("cloudtrail", {"eventSource": "x", "eventName": "y"}),
    ("s3access", S3_LINE[:60]),
    ("s3access", S3_LINE.replace(b"[06/Feb", b"[66/Feb")),
    ("github", {"action": "x"}),
    ("github", {"action": "x", "created_at": "yesterday"}),
    ("gitlab", {"time": "2026-06-01T08:00:00Z"}),
    ("gcp", {"timestamp": "2026-06-01T08:00:00Z"}),
    ("azure", {"operationName": "x"}),
    ("cloudflare", {"id": "x"}),
    ("stripe", {"id": "evt", "type": "x", "created": -1}),
    ("slack", {"action": "x", "date_create": True}),
    ("okta", {"eventType": "x", "published": "2026-13-01"}),
    ("nginx", b"a line of something else"),
    ("nginx", b'192.0.2.9 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" - 1 "-" "-"'),
    ("envoy", ENVOY_LINE[:50]),
    ("squid", b"1286536309.586 921 192.168.0.68"),
    ("openai", {"start_time": 1730419200, "end_time": 1730505600, "results": [{}]}),
    ("anthropic", {"starting_at": "2026-06-01T08:00:00Z", "ending_at": "2026-06-01T08:00:00Z", "results": [{}]}),
]


@pytest.mark.parametrize(("name", "record"), WITHOUT)
def test_what_is_needed_and_missing_is_unreadable(name: str, record: object) -> None:
    with pytest.raises(Unreadable):
        PARSERS[name](record)


def test_every_format_has_a_parser_and_facts() -> None:
    assert sorted(formats()) == sorted([*PARSERS, *MAPPED])
    for name in PARSERS:
        assert target_of(name, (), {}).format == name


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "eventTime",
        "eventSource",
        "eventName",
        "userIdentity",
        "requestID",
        "CloudTrailEvent",
        "action",
        "created_at",
        "@timestamp",
        "time",
        "method",
        "details",
        "protoPayload",
        "httpRequest",
        "timestamp",
        "requestMetadata",
        "operationName",
        "status",
        "identity",
        "when",
        "raw",
        "Raw",
        "AuditLogID",
        "ActionTimestamp",
        "id",
        "type",
        "created",
        "request",
        "date_create",
        "actor",
        "context",
        "eventType",
        "published",
        "debugContext",
        "transaction",
        "start_time",
        "end_time",
        "results",
        "starting_at",
        "ending_at",
        "route",
        "duration_s",
        "client",
        "outcome",
        "correlationId",
        "claims",
        "logName",
    ]
)
RECORDS = st.dictionaries(NAMES, JSON, max_size=10)
LINE_FORMATS = ("nginx", "apache", "envoy", "squid", "s3access")


@settings(max_examples=300)
@given(name=st.sampled_from(sorted(set(PARSERS) - set(LINE_FORMATS))), record=RECORDS | JSON)
def test_no_record_gets_anything_but_events_or_unreadable(name: str, record: object) -> None:
    try:
        events = PARSERS[name](record)
    except Unreadable:
        return
    for event in events:
        assert all(text.isprintable() for text in event if isinstance(text, str))


@settings(max_examples=300)
@given(
    name=st.sampled_from(LINE_FORMATS), line=st.binary(max_size=200), cut=st.integers(0, 400), at=st.integers(0, 400)
)
def test_no_line_gets_anything_but_events_or_unreadable(name: str, line: bytes, cut: int, at: int) -> None:
    combined = b'192.0.2.9 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1 "-" "-"'
    good = {"s3access": S3_LINE, "envoy": ENVOY_LINE, "squid": SQUID_LINE}.get(name, combined)
    for hostile in (line, good[:cut], good[:at] + line + good[at:]):
        try:
            events = PARSERS[name](hostile)
        except Unreadable:
            continue
        for event in events:
            assert all(text.isprintable() for text in event if isinstance(text, str))


def test_fields_of_a_hostile_line_take_no_long_time() -> None:
    with pytest.raises(Unreadable):
        fields('"' + 'a"b\\"' * 50_000)
    assert len(fields(" ".join(['"a"b"'] * 20_000))) == 20_000


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/a/b?c=d#e", "/a/b"),
        ("https://host.example/a%2Fb?x", "/a/b"),
        ("https://host.example", "/"),
        ("/caf%C3%A9", "/café"),
        ("/bad%ff", "/bad\ufffd"),
        ("/line%0Abreak", "/line\\x0abreak"),
    ],
)
def test_paths_are_compared_in_one_spelling(target: str, path: str) -> None:
    assert path_of(target) == path


def test_of_several_tags_the_last_is_ours() -> None:
    assert tag_of("credgate/aa-1 curl/8 credgate/bb-2") == "bb-2"
    assert tag_of("notcredgate/aa-1") == ""
    assert tag_of("curl/8") == ""


@given(
    st.lists(
        st.sampled_from(['"', " ", "[", "]", "a", "\\", "\t", "é", "GET /x", "-", '" "', " [", '] "']), max_size=14
    )
)
def test_the_short_way_through_a_line_is_the_long_one(parts: list[str]) -> None:
    line = "".join(parts)
    short = tokens._plain(line)
    assert short is None or short == tokens._any(line)


def test_the_short_way_takes_what_logs_hold() -> None:
    for line in (web_line(BEGIN, "/a", 200, 5), s3_line(BEGIN, "k", 5, "ABCDEF0123456789")):
        assert tokens._plain(line) == tokens._any(line)
