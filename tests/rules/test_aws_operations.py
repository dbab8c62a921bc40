"""Operations of AWS where one path serves all: what is signed, and every way of naming a second one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules import aws_operations
from rules.policy import Mode, Signing
from rules.reasons import Reason
from rules.verdict import Allow, Deny
from tests.rules.test_sigv4 import CONTENT, aws_request, client, digest, judged

LISTED = Signing(operations=("DynamoDB_20120810.GetItem", "DynamoDB_20120810.Query*", "GetCallerIdentity", "Kms.Sign"))
FORM = (b"Content-Type", b"application/x-www-form-urlencoded; charset=utf-8")
JSON = (b"Content-Type", b"application/x-amz-json-1.0")


def target(name: str) -> tuple[bytes, bytes]:
    return b"X-Amz-Target", name.encode()


def verdict(*headers: tuple[bytes, bytes], **more: Any) -> Allow | Deny:
    return judged(aws_request(client(), *headers, **{"method": "POST", "target": "/", **more}), sign=LISTED)


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ([target("DynamoDB_20120810.GetItem"), JSON], {"body": b"{}"}),
        ([target("DynamoDB_20120810.QueryAll"), JSON], {"body": b'{"Action": "DeleteTable"}'}),
        ([FORM], {"body": b"Version=1&Action=GetCallerIdentity"}),
        ([], {"target": "/?Action=GetCallerIdentity", "has_body": False}),
        ([], {"target": "/service/Kms/operation/Sign", "body": b"\xa0"}),
    ],
)
def test_what_is_listed_is_signed(headers: list[tuple[bytes, bytes]], more: dict[str, Any]) -> None:
    assert isinstance(verdict(*headers, **more), Allow)


@pytest.mark.parametrize(
    ("headers", "more", "word"),
    [
        ([target("DynamoDB_20120810.DeleteTable"), JSON], {"body": b"{}"}, "DeleteTable"),
        ([target("DynamoDB_20120810.getitem"), JSON], {"body": b"{}"}, "getitem"),
        ([target("DynamoDB_20120810.GetItem"), target("Other.X")], {"body": b"{}"}, "one operation"),
        ([target("DynamoDB_20120810.GetItem"), FORM], {"body": b"Action=DeleteTable"}, "one operation"),
        ([target("DynamoDB_20120810.GetItem")], {"target": "/?Action=X", "body": b"{}"}, "one operation"),
        ([target("DynamoDB_20120810.GetItem")], {"target": "/?%41ction=X", "body": b"{}"}, "one operation"),
        ([FORM], {"body": b"Action=AssumeRole"}, "AssumeRole"),
        ([FORM], {"body": b"Action=GetCallerIdentity&Action=AssumeRole"}, "one operation"),
        ([FORM], {"body": b"Action=GetCallerIdentity&action=AssumeRole"}, "one operation"),
        ([FORM], {"target": "/?Action=AssumeRole", "body": b"Action=GetCallerIdentity"}, "one operation"),
        ([FORM], {"body": b"&".join([b"a=b"] * 5000 + [b"Action=GetCallerIdentity"])}, "one operation"),
        ([JSON], {"body": b"Action=AssumeRole"}, "AssumeRole"),
        ([JSON], {"body": b"{}"}, "one operation"),
        ([], {"has_body": False}, "one operation"),
        ([], {"target": "/service/Kms/operation/Decrypt", "body": b""}, "Kms.Decrypt"),
        ([target("Kms.Sign")], {"target": "/service/Kms/operation/Sign", "body": b""}, "one operation"),
    ],
)
def test_what_is_not_listed_is_not(headers: list[tuple[bytes, bytes]], more: dict[str, Any], word: str) -> None:
    found = verdict(*headers, **more)
    assert isinstance(found, Deny)
    assert found.reason is Reason.SIGNATURE_REFUSED
    assert word in found.hint


@pytest.mark.parametrize("hashed", [False, True])
def test_a_form_is_read_whatever_the_client_says_of_it(hashed: bool) -> None:
    said = [(CONTENT, digest(b"Action=GetCallerIdentity").encode())] if hashed else []
    asked = verdict(FORM, *said)
    assert isinstance(asked, Allow)
    assert asked.body_max == LISTED.max


def test_a_json_request_whose_hash_is_said_streams() -> None:
    asked = verdict(target("DynamoDB_20120810.GetItem"), JSON, (CONTENT, digest(b"{}").encode()))
    assert isinstance(asked, Allow)
    assert asked.body_max == 0


def test_without_a_list_every_operation_is_the_rules_to_judge() -> None:
    request = aws_request(client(), target("DynamoDB_20120810.DeleteTable"), method="POST", target="/", body=b"{}")
    assert isinstance(judged(request, mode=Mode.OVERWRITE), Allow)


@given(st.binary(max_size=300), st.binary(max_size=40), st.booleans())
def test_no_bytes_of_a_body_break_it(body: bytes, kind: bytes, told: bool) -> None:
    headers = [(b"content-type", kind), *([target("Kms.Sign")] if told else [])]
    assert isinstance(verdict(*headers, body=body), Allow | Deny)
    request = aws_request(*headers, body=body)
    assert isinstance(aws_operations.missing(request, LISTED), str)
