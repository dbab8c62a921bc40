"""Identity and framing rows of the attack table."""

import dataclasses
from collections.abc import Iterable

import pytest

from rules.parse import METHODS, bracketed, parse_request
from rules.reasons import Reason
from rules.request import Request, Via, Wire
from rules.verdict import Deny

R = Reason
HOST = (b"Host", b"api.good.test")

CONNECT = Wire(
    via=Via.CONNECT,
    http_version="HTTP/1.1",
    method=b"GET",
    target=b"/a?page=1",
    headers=(HOST, (b"Accept", b"*/*")),
    tls=True,
    connect_host=b"api.good.test",
    connect_port=443,
    sni="api.good.test",
    listen_port=3128,
)
DIRECT = dataclasses.replace(CONNECT, via=Via.DIRECT, connect_host=b"", connect_port=0, listen_port=443)
PLAIN = dataclasses.replace(DIRECT, tls=False, sni=None, listen_port=80)
ABSOLUTE = dataclasses.replace(
    CONNECT,
    via=Via.ABSOLUTE,
    tls=False,
    sni=None,
    connect_host=b"",
    connect_port=0,
    authority=b"api.good.test",
    scheme=b"http",
)
H2 = dataclasses.replace(
    CONNECT,
    http_version="HTTP/2.0",
    authority=b"api.good.test",
    scheme=b"https",
    headers=((b"accept", b"*/*"),),
)
EVERY_WAY = {"connect": CONNECT, "direct": DIRECT, "plain": PLAIN, "absolute": ABSOLUTE, "h2": H2}


def with_headers(wire: Wire, *headers: tuple[bytes, bytes]) -> Wire:
    return dataclasses.replace(wire, headers=wire.headers + headers)


def with_hosts(wire: Wire, *hosts: bytes) -> Wire:
    return dataclasses.replace(wire, headers=tuple((b"Host", host) for host in hosts))


def refusal(wire: Wire) -> tuple[Reason, int]:
    match parse_request(wire):
        case Deny() as deny:
            assert len(deny.message) < 80
            return deny.reason, deny.status
        case request:
            pytest.fail(f"taken: {request}")


@pytest.mark.parametrize("wire", EVERY_WAY.values(), ids=EVERY_WAY)
def test_the_same_request_is_the_same_whatever_its_way(wire: Wire) -> None:
    request = parse_request(wire)
    assert isinstance(request, Request)
    assert (request.host, request.path, request.query_names) == ("api.good.test", "/a", ("page",))
    assert (request.scheme, request.port) == (("https", 443) if wire.tls else ("http", 80))
    assert request.target == "/a?page=1"
    assert request.headers == wire.headers


def test_dot_and_case_of_a_host_are_folded() -> None:
    for host in (b"API.Good.Test", b"api.good.test.", b"api.good.test:443", b"API.good.test.:443"):
        request = parse_request(dataclasses.replace(with_hosts(CONNECT, host), connect_host=b"api.GOOD.test."))
        assert isinstance(request, Request)
        assert request.host == "api.good.test"


replace = dataclasses.replace
IDENTITY = {
    "row 1: plain to evil, Host good": replace(ABSOLUTE, authority=b"evil.test"),
    "row 2: CONNECT and SNI evil, Host good": replace(CONNECT, connect_host=b"evil.test", sni="evil.test"),
    "row 3: fronting": with_hosts(CONNECT, b"evil.test"),
    "SNI other": replace(CONNECT, sni="evil.test"),
    "CONNECT other": replace(CONNECT, connect_host=b"evil.test"),
    "direct, SNI other": replace(DIRECT, sni="evil.test"),
    "direct, fronting": with_hosts(DIRECT, b"evil.test"),
    "no SNI": replace(CONNECT, sni=None),
    "empty SNI": replace(DIRECT, sni=""),
    "SNI that is no name": replace(CONNECT, sni="api.good.test:443"),
    "SNI outside ascii": replace(CONNECT, sni="\u24d0pi.good.test"),
    "SNI that is an address": replace(CONNECT, sni="127.0.0.1"),
    "row 6: absolute-form inside TLS": replace(CONNECT, authority=b"evil.test", scheme=b"https"),
    "absolute-form inside TLS, same host": replace(CONNECT, authority=b"api.good.test", scheme=b"https"),
    "absolute-form to the direct port": replace(PLAIN, authority=b"evil.test", scheme=b"http"),
    "absolute-form inside TLS to the proxy": replace(ABSOLUTE, tls=True, sni="api.good.test"),
    "absolute-form without a host": replace(ABSOLUTE, authority=b""),
    "absolute-form of https through the proxy": replace(ABSOLUTE, scheme=b"https"),
    "row 9: another port in Host": with_hosts(CONNECT, b"api.good.test:8443"),
    "row 11: h2 :authority other": replace(H2, authority=b"evil.test"),
    "h2 Host beside :authority": with_headers(H2, (b"host", b"evil.test")),
    "h2 scheme": replace(H2, scheme=b"http"),
    "row 25: CONNECT port other": replace(CONNECT, connect_port=8443),
    "direct port other": replace(DIRECT, listen_port=8443),
    "http port on the tls port": replace(PLAIN, listen_port=443),
}


@pytest.mark.parametrize("wire", IDENTITY.values(), ids=IDENTITY)
def test_two_targets_in_one_request_are_refused(wire: Wire) -> None:
    assert refusal(wire) == (R.IDENTITY_MISMATCH, 403)


def test_a_port_that_agrees_everywhere_passes() -> None:
    wire = replace(with_hosts(CONNECT, b"api.good.test:8443"), connect_port=8443)
    request = parse_request(wire)
    assert isinstance(request, Request)
    assert request.port == 8443


HOSTS = {
    "row 7: two": with_hosts(CONNECT, b"api.good.test", b"evil.test"),
    "two alike": with_hosts(CONNECT, b"api.good.test", b"api.good.test"),
    "row 8: none": with_hosts(CONNECT),
    "1.0 without": replace(with_hosts(PLAIN), http_version="HTTP/1.0"),
    "h2 without any": replace(H2, authority=b""),
    "list": with_hosts(CONNECT, b"api.good.test, evil.test"),
    "row 9: userinfo": with_hosts(CONNECT, b"good@evil.test"),
    "row 27: userinfo in the target": replace(ABSOLUTE, authority=b"user:pw@api.good.test"),
    "userinfo in CONNECT": replace(CONNECT, connect_host=b"user@api.good.test"),
    "two dots": with_hosts(CONNECT, b"api.good.test.."),
    "brackets": with_hosts(CONNECT, b"[api.good.test]"),
    "empty": with_hosts(CONNECT, b""),
    "port that is no number": with_hosts(CONNECT, b"api.good.test:x"),
    "port 0": with_hosts(CONNECT, b"api.good.test:0"),
    "port padded": with_hosts(CONNECT, b"api.good.test:0443"),
    "port too large": with_hosts(CONNECT, b"api.good.test:65979"),
    "empty port": with_hosts(CONNECT, b"api.good.test:"),
    "row 29: decimal": with_hosts(CONNECT, b"2130706433"),
    "octal": with_hosts(CONNECT, b"0177.0.0.1"),
    "hex": with_hosts(CONNECT, b"0x7f.1"),
    "zone id": with_hosts(CONNECT, b"[fe80::1%25eth0]"),
    "full-width": with_hosts(CONNECT, "\uff41pi.good.test".encode()),
    "row 28: underscore": with_hosts(CONNECT, b"api_good.test"),
}


@pytest.mark.parametrize("wire", HOSTS.values(), ids=HOSTS)
def test_a_host_that_is_no_name_is_a_bad_request(wire: Wire) -> None:
    assert refusal(wire) == (R.HOST_INVALID, 400)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (b"127.0.0.1", R.ADDRESS_LITERAL),
        (b"8.8.8.8:443", R.ADDRESS_LITERAL),
        (b"[::1]", R.ADDRESS_LITERAL),
        (b"[::1]:443", R.ADDRESS_LITERAL),
        (b"[::ffff:7f00:1]", R.ADDRESS_LITERAL),
        (b"169.254.169.254", R.METADATA),
        (b"168.63.129.16", R.METADATA),
        (b"[fd00:ec2::254]", R.METADATA),
        (b"[64:ff9b::a9fe:a9fe]", R.METADATA),
        (b"[2002:a9fe:a9fe::1]", R.METADATA),
    ],
)
def test_a_canonical_address_is_refused_as_such_with_or_without_sni(host: bytes, reason: Reason) -> None:
    bare = host.removesuffix(b":443")
    for wire in (
        replace(with_hosts(CONNECT, host), connect_host=bare, sni=None),
        replace(with_hosts(CONNECT, host), connect_host=bare.strip(b"[]"), sni=None),
        replace(with_hosts(DIRECT, host), sni=None),
        replace(with_hosts(ABSOLUTE, bare), authority=bare),
    ):
        assert refusal(wire) == (reason, 403)


def headers(name: bytes, *values: bytes) -> Wire:
    return with_headers(CONNECT, *((name, value) for value in values))


MALFORMED = {
    "row 16: CL and TE": with_headers(CONNECT, (b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")),
    "two CL": headers(b"Content-Length", b"3", b"4"),
    "two CL alike": headers(b"Content-Length", b"3", b"3"),
    "CL list": headers(b"Content-Length", b"3, 3"),
    "CL signed": headers(b"Content-Length", b"+3"),
    "CL empty": headers(b"Content-Length", b""),
    "CL endless": headers(b"Content-Length", b"9" * 30),
    "TE unknown": headers(b"Transfer-Encoding", b"xchunked"),
    "TE twice": headers(b"Transfer-Encoding", b"chunked, chunked"),
    "TE two lines": headers(b"Transfer-Encoding", b"chunked", b"chunked"),
    "TE identity": headers(b"Transfer-Encoding", b"identity"),
    "1.0 and TE": replace(headers(b"Transfer-Encoding", b"chunked"), http_version="HTTP/1.0"),
    "TE, blank before the colon": headers(b"Transfer-Encoding ", b"chunked"),
    "CL by underscore": headers(b"Content_Length", b"3"),
    "TE by underscore": headers(b"Transfer_Encoding", b"chunked"),
    "connection names CL": headers(b"Connection", b"close, content-length"),
    "connection names Host": headers(b"Connection", b"Host"),
    "row 18: bare CR": headers(b"X-A", b"a\rb"),
    "bare LF": headers(b"X-A", b"a\nb"),
    "NUL": headers(b"X-A", b"a\x00b"),
    "folded line": headers(b"X-A", b"a\r\n b"),
    "DEL": headers(b"X-A", b"a\x7f"),
    "escape": headers(b"X-A", b"\x1b[0m"),
    "empty name": headers(b"", b"a"),
    "name with a blank": headers(b"X A", b"a"),
    "name with a colon": headers(b":path", b"/x"),
    "name outside ascii": headers("X-Ä".encode(), b"a"),
    "row 13: h2 path splits": replace(H2, target=b"/x HTTP/1.1\r\nHost:evil\r\n\r\nGET /smug"),
    "blank in the target": replace(H2, target=b"/x?a b"),
    "row 15: h2 connection": with_headers(H2, (b"connection", b"close")),
    "h2 TE": with_headers(H2, (b"transfer-encoding", b"chunked")),
    "h2 te": with_headers(H2, (b"te", b"gzip")),
    "h2 upgrade": with_headers(H2, (b"upgrade", b"websocket")),
    "h2 upper case": with_headers(H2, (b"X-A", b"b")),
    "h2 pseudo-header as a header": with_headers(H2, (b":authority", b"evil.test")),
    "201 headers": with_headers(CONNECT, *[(b"X-A", b"b")] * 199),
    "header of 16 KiB": headers(b"X-A", b"b" * (16 << 10)),
    "64 KiB of headers": headers(b"X-A", *[b"b" * (15 << 10)] * 5),
    "target of 8 KiB": replace(CONNECT, target=b"/" + b"a" * (8 << 10)),
    "asterisk": replace(CONNECT, method=b"OPTIONS", target=b"*"),
    "authority-form": replace(CONNECT, target=b"evil.test:443"),
    "absolute-form left in the target": replace(CONNECT, target=b"https://evil.test/a"),
    "empty target": replace(CONNECT, target=b""),
    "version": replace(CONNECT, http_version="HTTP/0.9"),
    "HTTP/3": replace(CONNECT, http_version="HTTP/3"),
}


@pytest.mark.parametrize("wire", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_plain_http_is_a_bad_request(wire: Wire) -> None:
    assert refusal(wire) == (R.MALFORMED, 400)


def test_200_headers_and_a_long_one_pass() -> None:
    wire = with_headers(CONNECT, *[(b"X-A", b"b")] * 197, (b"X-B", b"b" * (15 << 10)))
    assert isinstance(parse_request(wire), Request)


@pytest.mark.parametrize(
    "target",
    [
        b"/ok/../admin",
        b"/%2e%2e",
        b"/%252e",
        b"/..;/",
        b"/a\\b",
        b"//",
        b"/a%00",
        "/\uff0f".encode(),
        b"/a#b",
        b"/a?b#c",
    ],
)
def test_rows_20_and_21_are_ambiguous(target: bytes) -> None:
    for wire in EVERY_WAY.values():
        assert refusal(replace(wire, target=target)) == (R.PATH_AMBIGUOUS, 403)


def test_raw_bytes_in_the_query_are_ambiguous() -> None:
    assert refusal(replace(CONNECT, target="/a?b=é".encode())) == (R.PATH_AMBIGUOUS, 403)


@pytest.mark.parametrize(
    "method", [b"get", b"Get", b"CONNECT", b"TRACE", b"TRACK", b"", b"GET ", b"G\xc3\x89T", b"PRI"]
)
def test_row_23_methods_outside_the_table(method: bytes) -> None:
    assert refusal(replace(CONNECT, method=method)) == (R.METHOD_INVALID, 403)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods_of_the_table_pass(method: str) -> None:
    request = parse_request(replace(CONNECT, method=method.encode()))
    assert isinstance(request, Request)
    assert request.method == method


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (headers(b"X-HTTP-Method-Override", b"DELETE"), R.METHOD_INVALID),
        (headers(b"x_http_method_override", b"DELETE"), R.METHOD_INVALID),
        (headers(b"X-HTTP-Method", b"DELETE"), R.METHOD_INVALID),
        (headers(b"X-Method-Override", b"DELETE"), R.METHOD_INVALID),
        (replace(CONNECT, target=b"/a?_method=DELETE"), R.METHOD_INVALID),
        (replace(CONNECT, target=b"/a?%5fmethod=DELETE"), R.METHOD_INVALID),
        (headers(b"X-Original-URL", b"/admin"), R.PATH_AMBIGUOUS),
        (headers(b"X-Rewrite-URL", b"/admin"), R.PATH_AMBIGUOUS),
    ],
)
def test_row_23_a_second_method_or_path(wire: Wire, reason: Reason) -> None:
    assert refusal(wire) == (reason, 403)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_row_24_a_body_on_get(method: bytes) -> None:
    for wire in (
        replace(CONNECT, method=method, has_body=True),
        replace(headers(b"Content-Length", b"3"), method=method),
        replace(headers(b"Transfer-Encoding", b"chunked"), method=method),
    ):
        assert refusal(wire) == (R.BODY_REFUSED, 403)
    assert isinstance(parse_request(replace(headers(b"Content-Length", b"0"), method=method)), Request)


def test_a_body_on_post_passes() -> None:
    for wire in (headers(b"Content-Length", b"3"), headers(b"Transfer-Encoding", b"Chunked")):
        assert isinstance(parse_request(replace(wire, method=b"POST", has_body=True)), Request)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (b"", ()),
        (b"?", ()),
        (b"?a", ("a",)),
        (b"?a=1&b=2&a=3", ("a", "b", "a")),
        (b"?a=1;b=2", ("a", "b")),
        (b"?%61=1&b+c=2", ("a", "b c")),
        (b"?a%26b=1", ("a&b",)),
        (b"?&&=1", ("",)),
        (b"?a=b=c?d", ("a",)),
        (b"?%zz=%", ("%zz",)),
    ],
)
def test_query_names(query: bytes, names: Iterable[str]) -> None:
    request = parse_request(replace(CONNECT, target=b"/a" + query))
    assert isinstance(request, Request)
    assert request.query_names == names
    assert request.target == "/a" + query.decode()


def test_an_upgrade_and_an_encoded_slash_are_told() -> None:
    request = parse_request(replace(headers(b"Upgrade", b"WebSocket"), target=b"/@a%2fb"))
    assert isinstance(request, Request)
    assert (request.upgrade, request.encoded_slash) == ("websocket", True)


@pytest.mark.parametrize(
    ("host", "full"), [(b"::1", b"[::1]"), (b"[::1]", b"[::1]"), (b"a.b", b"a.b"), (b"1.1.1.1", b"1.1.1.1")]
)
def test_brackets_come_back(host: bytes, full: bytes) -> None:
    assert bracketed(host) == full


@pytest.mark.parametrize("named", [b"close, X-Amz-Target", b"x_amz_target", b"keep-alive,X-AMZ-TARGET ,a"])
def test_what_connection_names_is_not_judged_by_as_it_is_not_sent(named: bytes) -> None:
    target = (b"X-Amz-Target", b"DynamoDB_20120810.ListTables")
    kept = parse_request(with_headers(CONNECT, target, (b"Connection", b"close, Upgrade")))
    gone = parse_request(with_headers(CONNECT, target, (b"Connection", named)))
    assert isinstance(kept, Request)
    assert isinstance(gone, Request)
    assert target in kept.headers
    assert target not in gone.headers
    assert HOST in gone.headers
