"""Signatures beside the ones that AWS publishes, and beside botocore's: what leaves is what a target of AWS takes."""

import dataclasses
import datetime
import hashlib
import json
from typing import Any
from unittest import mock

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from rules import sigv4
from rules.decide import decide
from rules.hosts import HostPattern
from rules.inject import rewrite
from rules.paths import PathPattern
from rules.policy import AllowRule, Binding, Endpoint, Mode, PlaceKind, Policy, Role, Signing
from rules.problems import InjectError
from rules.reasons import Reason
from rules.request import Request, Via
from rules.verdict import Allow, Deny

# Both pairs are those of AWS's own examples.
SUITE = sigv4.Keys(access_key_id="AKIDEXAMPLE", secret_access_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
S3_DOCS = sigv4.Keys(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
SERVICE = sigv4.Scope(region="us-east-1", service="service")
S3 = sigv4.Scope(region="us-east-1", service="s3")
SUITE_HEADERS = ((b"Host", b"example.amazonaws.com"), (b"X-Amz-Date", b"20150830T123600Z"))
BUCKET = (b"Host", b"examplebucket.s3.amazonaws.com")
S3_DATE = (b"x-amz-date", b"20130524T000000Z")


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def signature(value: bytes) -> str:
    return value.decode().rpartition("Signature=")[2]


@pytest.mark.parametrize(
    ("method", "target", "headers", "expected"),
    [
        ("GET", "/", SUITE_HEADERS, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", SUITE_HEADERS, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            SUITE_HEADERS,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
    ],
)
def test_the_published_suite(method: str, target: str, headers: Any, expected: str) -> None:
    """AWS's signature version 4 test suite: get-vanilla, post-vanilla, get-vanilla-query-order-key-case."""
    made = sigv4.authorization(method, target, headers, SERVICE, SUITE, sigv4.EMPTY_HASH, "20150830T123600Z")
    assert signature(made) == expected
    assert b"Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date," in made


@pytest.mark.parametrize(
    ("method", "target", "headers", "body", "expected"),
    [
        (
            "GET",
            "/test.txt",
            ((b"Range", b"bytes=0-9"),),
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            ((b"Date", b"Fri, 24 May 2013 00:00:00 GMT"), (b"x-amz-storage-class", b"REDUCED_REDUNDANCY")),
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        ("GET", "/?lifecycle", (), b"", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("GET", "/?max-keys=2&prefix=J", (), b"", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_examples_of_the_s3_reference(method: str, target: str, headers: Any, body: bytes, expected: str) -> None:
    fields = (BUCKET, *headers, (b"x-amz-content-sha256", digest(body).encode()), S3_DATE)
    made = sigv4.authorization(method, target, fields, S3, S3_DOCS, digest(body), "20130524T000000Z")
    assert signature(made) == expected


# --- beside botocore

NOW = datetime.datetime(2026, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
STAMP = "20260203T040506Z"


def by_botocore(
    method: str, url: str, headers: dict[str, str], body: bytes, where: sigv4.Scope, keys: sigv4.Keys
) -> tuple[str, str]:
    """Authorization and the header with the body's hash, as botocore makes them."""
    kind = S3SigV4Auth if where.service == "s3" else SigV4Auth
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    credentials = Credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW):
        kind(credentials, where.service, where.region).add_auth(request)
    return str(request.headers["Authorization"]), request.headers.get("X-Amz-Content-SHA256", "")


def signed_names(authorization: str) -> set[str]:
    return set(authorization.partition("SignedHeaders=")[2].partition(",")[0].split(";"))


# no dot segments and no empty ones: the gateway refuses both before anything is signed
KEY_PATHS = st.text(alphabet=st.sampled_from("abAB01-._~ /!*'()@:+,=&$%äé"), min_size=1, max_size=20).filter(
    lambda text: "//" not in text and text != "/" and not {".", ".."} & set(text.split("/"))
)
PARTS = st.text(alphabet=st.sampled_from("abC0-._~ /!*'():+=&%ä"), max_size=8)


@given(
    key=KEY_PATHS, query=st.dictionaries(PARTS.filter(bool), PARTS, max_size=4), token=st.booleans(), s3=st.booleans()
)
def test_what_botocore_signs_is_signed_alike(key: str, query: dict[str, str], token: bool, s3: bool) -> None:
    from urllib.parse import quote

    where = S3 if s3 else sigv4.Scope(region="eu-central-1", service="dynamodb")
    keys = dataclasses.replace(SUITE, session_token="FwoGZXIvYXdzEXAMPLE==" if token else "")
    path = "/" + quote(key.lstrip("/"), safe="/~")
    target = path + (
        "?" + "&".join(f"{quote(n, safe='~')}={quote(v, safe='~')}" for n, v in query.items()) if query else ""
    )
    headers = {"Content-Type": "text/plain;  charset=x", "X-Amz-Target": "A.B", "User-Agent": "u"}
    theirs, said = by_botocore("POST", f"https://h.test{target}", headers, b"body", where, keys)
    body_hash = digest(b"body")
    sent = [(n.encode(), v.encode()) for n, v in headers.items()] + [(b"Host", b"h.test")]
    if said:
        sent.append((b"X-Amz-Content-SHA256", said.encode()))
        body_hash = said
    request = aws_request(*sent, method="POST", target=target, has_body=True)
    fields = sigv4.sign(request, request.headers, where, keys, body_hash, STAMP)
    ours = dict(fields)[b"authorization"].decode()
    assert bool(said) == s3
    assert ours == theirs


# --- what is refused, and what is read first

HOST = "s3.eu-central-1.amazonaws.com"
DECOY = "AKIADECOYDECOYDECOY1"


def aws_request(*headers: tuple[bytes, bytes], target: str = "/bucket/key", **more: Any) -> Request:
    fields: dict[str, Any] = {"method": "PUT", "http_version": "HTTP/1.1", "has_body": True} | more
    query = target.partition("?")[2]
    return Request(
        via=Via.CONNECT,
        scheme="https",
        host=HOST,
        port=443,
        path=target.partition("?")[0],
        target=target,
        query_names=tuple(part.partition("=")[0] for part in query.split("&") if part),
        headers=headers,
        **fields,
    )


def client(region: str = "eu-central-1", service: str = "s3", key: str = DECOY) -> tuple[bytes, bytes]:
    said = f"AWS4-HMAC-SHA256 Credential={key}/20260101/{region}/{service}/aws4_request, "
    return b"Authorization", f"{said}SignedHeaders=host;x-amz-date;if-none-match, Signature={'0' * 64}".encode()


CLIENTS_OWN = Signing()


def policy(sign: Signing = CLIENTS_OWN, mode: Mode = Mode.PLACEHOLDER) -> Policy:
    rule = AllowRule(id="a", methods=frozenset({"GET", "PUT", "POST"}), paths=(PathPattern.parse("/**"),))
    endpoint = Endpoint(name="s3", host=HostPattern.parse(HOST), port=443, dial_port=443, allow=(rule,))
    binding = Binding(
        name="s3",
        secret="aws",
        endpoint="s3",
        rules=frozenset({"a"}),
        place=PlaceKind.SIGV4,
        mode=mode,
        sign=sign,
    )
    return Policy(
        sha256="0",
        endpoints={"s3": endpoint},
        bindings={"s3": binding},
        roles={"dev": Role(name="dev", bindings=("s3",))},
    )


def judged(request: Request, **kw: Any) -> Allow | Deny:
    return decide(policy(**kw), "dev", request, {"s3": DECOY})


CONTENT = b"x-amz-content-sha256"


@pytest.mark.parametrize(
    ("headers", "target", "word"),
    [
        ([(b"Authorization", f"AWS {DECOY}:sig".encode())], "/b/k", "version 2"),
        ([], "/b/k?AWSAccessKeyId=AKIA&Signature=x&Expires=1", "version 2"),
        ([], "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a&X-Amz-Signature=b", "presigned"),
        ([(b"Authorization", b"AWS4-ECDSA-P256-SHA256 Credential=a")], "/b/k", "4A"),
        ([client(), (b"X-Amz-Region-Set", b"*")], "/b/k", "4A"),
        ([client(), (b"x-amz-s3session-token", b"t")], "/b/k", "Express"),
        ([client(), (CONTENT, b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD")], "/b/k", "one by one"),
        ([client(), (CONTENT, b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")], "/b/k", "one by one"),
        ([client(), (CONTENT, b"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD")], "/b/k", "one by one"),
        ([client(), (CONTENT, b"SOMETHING")], "/b/k", "SHA-256 in hex"),
        ([client(), (CONTENT, b"UNSIGNED-PAYLOAD"), (CONTENT, b"UNSIGNED-PAYLOAD")], "/b/k", "SHA-256 in hex"),
        ([client("us-east-1")], "/b/k", "no label"),
        ([client(service="iam")], "/b/k", "no label"),
    ],
)
def test_what_is_not_signed_anew_is_named(headers: list[tuple[bytes, bytes]], target: str, word: str) -> None:
    for mode in (Mode.PLACEHOLDER, Mode.OVERWRITE):
        verdict = judged(aws_request(*headers, target=target), mode=mode)
        assert isinstance(verdict, Deny)
        assert verdict.reason is Reason.SIGNATURE_REFUSED
        assert word in verdict.hint


def test_a_copy_reads_an_object_that_no_rule_has_judged() -> None:
    copying = aws_request(client(), (b"X-Amz-Copy-Source", b"/secret-bucket/key"))
    refused = judged(copying)
    assert isinstance(refused, Deny)
    assert "copy = true" in refused.hint
    assert isinstance(judged(copying, sign=Signing(copy=True)), Allow)


def test_the_scope_is_the_policys() -> None:
    fixed = Signing(service="s3", region="us-east-1")
    refused = judged(aws_request(client("eu-central-1")), sign=fixed)
    assert isinstance(refused, Deny)
    assert refused.hint == "the region us-east-1 of the binding; the client signs for eu-central-1"
    assert isinstance(judged(aws_request(client("us-east-1")), sign=fixed), Allow)
    assert isinstance(judged(aws_request(), sign=fixed, mode=Mode.OVERWRITE), Allow)
    nothing = judged(aws_request(), mode=Mode.OVERWRITE)
    assert isinstance(nothing, Deny)
    assert "names none" in nothing.hint


def test_without_its_decoy_nothing_is_signed() -> None:
    verdict = judged(aws_request(client(key="AKIASOMEBODYELSES001")))
    assert isinstance(verdict, Allow)
    assert verdict.body_max == 0
    fields = rewrite(aws_request(client(key="AKIASOMEBODYELSES001")), verdict, {}, {"s3": DECOY})
    assert b"authorization" not in {name.lower() for name, _ in getattr(fields, "fields", fields)}


@pytest.mark.parametrize(
    ("headers", "more", "need"),
    [
        ([], {}, 1 << 20),
        ([], {"has_body": False}, 0),
        ([], {"body": b"whole"}, 0),
        ([(CONTENT, digest(b"x").encode())], {}, 0),
        ([(CONTENT, b"UNSIGNED-PAYLOAD")], {}, 0),
        ([(CONTENT, b"STREAMING-UNSIGNED-PAYLOAD-TRAILER")], {}, 0),
    ],
)
def test_a_body_is_read_where_nobody_says_its_hash(
    headers: list[tuple[bytes, bytes]], more: dict[str, Any], need: int
) -> None:
    verdict = judged(aws_request(client(), *headers, **more))
    assert isinstance(verdict, Allow)
    assert verdict.body_max == need


def test_what_leaves_is_dated_by_us_and_signed_over_what_leaves() -> None:
    request = aws_request(
        client(), (b"Host", HOST.encode()), (b"X-Amz-Date", b"19990101T000000Z"), (b"Date", b"old"),
        (b"If-None-Match", b"*"), (b"User-Agent", b"Boto3"), (CONTENT, b"UNSIGNED-PAYLOAD"),
        (b"X-Amz-Security-Token", b"decoy"),
    )  # fmt: skip
    keys = dataclasses.replace(SUITE, session_token="real")
    fields = sigv4.sign(request, request.headers, S3, keys, "UNSIGNED-PAYLOAD", STAMP)
    values = {name.lower(): [v for n, v in fields if n.lower() == name.lower()] for name, _ in fields}
    assert values[b"x-amz-date"] == [STAMP.encode()]
    assert values[b"x-amz-security-token"] == [b"real"]
    assert b"date" not in values
    assert len(values[b"authorization"]) == 1
    names = signed_names(values[b"authorization"][0].decode())
    assert names == {"host", "if-none-match", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}
    assert DECOY.encode() not in b"".join(values[b"authorization"])


def test_http2_signs_the_authority() -> None:
    request = aws_request(client(), http_version="HTTP/2.0")
    with_host = dataclasses.replace(request, headers=(*request.headers, (b"host", HOST.encode())))
    one, other = (sigv4.sign(r, r.headers, S3, SUITE, sigv4.EMPTY_HASH, STAMP) for r in (request, with_host))
    assert dict(one)[b"authorization"] == dict(other)[b"authorization"]
    assert b"host" not in dict(one)


# --- the secret's value


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        json.dumps({"Version": 1, "AccessKeyId": S3_DOCS.access_key_id, "SecretAccessKey": S3_DOCS.secret_access_key}),
    ],
)
def test_a_key_pair(text: str) -> None:
    assert sigv4.parse_keys("aws", text) == S3_DOCS
    assert S3_DOCS.secret_access_key not in repr(S3_DOCS)


def test_a_session() -> None:
    text = f"{SUITE.access_key_id}AAAAA:{SUITE.secret_access_key}:tok/en=="
    assert sigv4.parse_keys("aws", text).session_token == "tok/en=="


@pytest.mark.parametrize(
    "text",
    ["", "AKIA", "a:b:c:d", "AKIAIOSFODNN7EXAMPLE:short", "{", "[]", '{"AccessKeyId": 1}', "x" * 40 + ":" + "é" * 40],
)
def test_what_is_no_key_pair_is_not_shown(text: str) -> None:
    with pytest.raises(InjectError) as caught:
        sigv4.parse_keys("aws", text)
    assert caught.value.detail == "secret 'aws' is no AWS key pair"
    assert not text or text not in str(caught.value)


@given(st.binary(max_size=200), st.binary(max_size=80))
def test_hostile_headers_end_in_a_verdict(authorization: bytes, content: bytes) -> None:
    request = aws_request((b"authorization", authorization), (CONTENT, content), client())
    for mode in (Mode.PLACEHOLDER, Mode.OVERWRITE):
        assert isinstance(judged(request, mode=mode), Allow | Deny)
