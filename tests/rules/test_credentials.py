import pytest

from rules.credentials import (
    CORRELATION_HEADERS,
    CREDENTIAL_HEADERS,
    CREDENTIAL_QUERY,
    PROVENANCE_HEADERS,
    Credential,
    credentials_of,
    fold_name,
    is_credential_header,
    is_credential_query,
)
from rules.request import Request, Via


def request(query_names: tuple[str, ...], *headers: tuple[bytes, bytes]) -> Request:
    return Request(
        via=Via.DIRECT,
        http_version="HTTP/1.1",
        method="GET",
        scheme="https",
        host="a.example",
        port=443,
        path="/",
        target="/",
        query_names=query_names,
        headers=headers,
    )


@pytest.mark.parametrize(
    "name",
    [
        b"Authorization",
        b"PROXY-AUTHORIZATION",
        b"X-Api-Key",
        b"X_Api_Key",
        b"api-key",
        b"X-Goog-Api-Key",
        b"PRIVATE-TOKEN",
        b"JOB-TOKEN",
        b"X-Amz-Security-Token",
        b"X-Auth-Token",
        b"Cookie",
        b"x-vault-token",
    ],
)
def test_headers_that_are_credentials(name: bytes) -> None:
    assert is_credential_header(name)


@pytest.mark.parametrize("name", [b"accept", b"user-agent", b"x-amz-date", b"content-type", b"author", b"\xff"])
def test_headers_that_are_none(name: bytes) -> None:
    assert not is_credential_header(name)


@pytest.mark.parametrize("name", ["key", "access_token", "Access-Token", "api_key", "token", "sig", "X-Amz-Signature"])
def test_query_names_that_are_credentials(name: str) -> None:
    assert is_credential_query(name)


@pytest.mark.parametrize("name", ["q", "page", "page_token", "key-marker", "X-Amz-Date", "keyword", ""])
def test_query_names_that_are_none(name: str) -> None:
    assert not is_credential_query(name)


def test_credentials_are_listed_by_place_without_their_values() -> None:
    found = credentials_of(
        request(("page", "api_key"), (b"Accept", b"x"), (b"X_Api_Key", b"VALUE"), (b"Cookie", b"a=VALUE"))
    )
    assert found == (
        Credential(place="header", name="x-api-key"),
        Credential(place="header", name="cookie"),
        Credential(place="query", name="api_key"),
    )
    assert "VALUE" not in repr(found)


def test_the_tables_are_spelled_as_names_are_folded_and_do_not_overlap() -> None:
    tables = (CREDENTIAL_HEADERS, CREDENTIAL_QUERY, CORRELATION_HEADERS, PROVENANCE_HEADERS)
    assert all(fold_name(name.encode()) == name for table in tables for name in table)
    headers = CREDENTIAL_HEADERS, CORRELATION_HEADERS, PROVENANCE_HEADERS
    assert sum(map(len, headers)) == len(frozenset().union(*headers))
