"""The attack table: each row as cases that are run, or by the test elsewhere that runs it, or why it is not yet.

A case says what is asked in words that both lanes can speak; raw bytes where only HTTP/1.1 has them.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.credgate.gateway_rig import DECOY

type Field = tuple[bytes, bytes]

HERE = b"{host}"  # stands for the host of the lane's endpoint, with its port


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request; `raw` is the HTTP/1.1 spelling where the fields can't express it."""

    method: bytes = b"GET"
    target: bytes = b"/ok/a"
    host: bytes = HERE
    fields: tuple[Field, ...] = ()
    body: bytes = b""
    raw: bytes = b""
    h2: tuple[Field, ...] = ()  # fields of HTTP/2 alone, pseudo-headers too
    lanes: tuple[str, ...] = ("h1", "h2")


@dataclass(frozen=True, kw_only=True)
class Case:
    """`status` 200: it passes, and `sent` is in what the target got."""

    row: str
    name: str
    ask: Ask
    status: int
    code: str = ""
    sent: tuple[bytes, ...] = ()
    absent: tuple[bytes, ...] = field(default=())


def get(row: str, target: bytes, status: int, code: str, **more: Any) -> Case:
    return Case(row=row, name=f"{target!r}", ask=Ask(target=target), status=status, code=code, **more)


def host(row: str, name: bytes, status: int, code: str, **more: Any) -> Case:
    return Case(row=row, name=f"{name!r}", ask=Ask(host=name), status=status, code=code, **more)


def head(row: str, name: bytes, value: bytes, status: int, code: str, **more: Any) -> Case:
    ask = Ask(method=b"POST", fields=((name, value),))
    return Case(row=row, name=f"{name!r}: {value!r}", ask=ask, status=status, code=code, **more)


def raw(row: str, name: str, data: bytes, status: int, code: str) -> Case:
    return Case(row=row, name=name, ask=Ask(raw=data, lanes=("h1",)), status=status, code=code)


def framed(name: str, *lines: bytes, line: bytes = b"POST /ok/a HTTP/1.1", body: bytes = b"") -> Case:
    data = b"\r\n".join((line, b"Host: " + HERE, *lines)) + b"\r\n\r\n" + body
    return raw("16", name, data, 400, "malformed")


def h2(row: str, name: str, fields: tuple[Field, ...], status: int, code: str, **more: Any) -> Case:
    ask = Ask(method=b"POST", h2=fields, lanes=("h2",))
    return Case(row=row, name=name, ask=ask, status=status, code=code, **more)


SMUGGLED = b"GET /smug HTTP/1.1\r\nHost: evil.test\r\n\r\n"
_AMBIGUOUS = (
    *(b"/ok/../admin", b"/ok/%2e%2e/admin", b"/ok/%2E./admin", b"/ok/%252e%252e/admin", b"/ok/..;/admin", b"/ok/."),
    *(b"/ok/./a", b"/ok/..", b"/../ok/a", b"/ok/%2e", b"/ok/%c0%ae%c0%ae/admin", b"/ok/%u002e%u002e/admin"),
)
_AMBIGUOUS_21 = (
    *(b"/ok/..\\admin", b"/ok\\a", b"/ok/%5cadmin", b"/ok/%5Ca", b"/ok//a", b"//ok/a", b"/ok/a#b", b"/ok/a%00"),
    *(b"/ok/\xef\xbc\x8e\xef\xbc\x8e\xef\xbc\x8fadmin", b"/ok/a%2fb", b"/ok/%2f..%2fadmin", b"/ok/a%0d%0aX:b"),
    *(b"/ok/%zz", b"/ok/%", b"/ok/%2", b"/ok/a%09b", b"/ok/a%7f", b"/ok/\xff"),
)
_LITERALS_400 = (
    *(b"2130706433", b"0x7f000001", b"0177.0.0.1", b"127.1", b"0x7f.1", b"127.0.0.1.", b"[::1", b"::1"),
    *(b"[fe80::1%25lo]", b"127.0.0.01", b"1.2.3.4.5", b"256.1.1.1", b"[::ffff:127.0.0.1"),
)
_LITERALS_403 = (
    *(b"127.0.0.1", b"10.0.0.1", b"[::1]", b"[::ffff:7f00:1]", b"[64:ff9b::7f00:1]", b"[2002:7f00:1::]", b"8.8.8.8"),
)
_METADATA = (
    b"169.254.169.254",
    b"[fd00:ec2::254]",
    b"[::ffff:a9fe:a9fe]",
    b"[64:ff9b::a9fe:a9fe]",
    b"[2002:a9fe:a9fe::]",
)
_METADATA_NAMES = (b"metadata.google.internal", b"instance-data", b"metadata")

CASES: tuple[Case, ...] = (
    host("3", b"evil.test", 403, "identity_mismatch"),
    host("3", b"api.good.test.evil.test", 403, "identity_mismatch"),
    raw(
        "6",
        "absolute-form of another host",
        b"GET https://evil.test/a HTTP/1.1\r\nHost: {host}\r\n\r\n",
        403,
        "identity_mismatch",
    ),
    raw(
        "6",
        "absolute-form of the same",
        b"GET https://{host}/ok/a HTTP/1.1\r\nHost: {host}\r\n\r\n",
        403,
        "identity_mismatch",
    ),
    raw("7", "two hosts", b"GET /ok/a HTTP/1.1\r\nHost: {host}\r\nHost: evil.test\r\n\r\n", 400, "host_invalid"),
    raw("7", "the same twice", b"GET /ok/a HTTP/1.1\r\nHost: {host}\r\nhost: {host}\r\n\r\n", 400, "host_invalid"),
    h2("7", "authority and another host", ((b"host", b"evil.test"),), 403, "identity_mismatch"),
    raw("8", "no host", b"GET /ok/a HTTP/1.1\r\n\r\n", 400, "host_invalid"),
    raw("8", "no host in 1.0", b"GET /ok/a HTTP/1.0\r\n\r\n", 400, "host_invalid"),
    raw("8", "an empty host", b"GET /ok/a HTTP/1.1\r\nHost:\r\n\r\n", 400, "host_invalid"),
    host("9", b"api.good.test@evil.test", 400, "host_invalid"),
    host("9", b"evil.test@{host}", 400, "host_invalid"),
    host("9", b"{name}:8443", 403, "identity_mismatch"),
    host("9", b"{name}", 403, "identity_mismatch"),
    host("9", b"{name}..:{port}", 400, "host_invalid"),
    host("9", b"{NAME}:{port}", 200, "", sent=(b"{name}:{port}",)),
    host("9", b"{name}.:{port}", 200, "", sent=(b"{name}:{port}",), absent=(b"{name}.:",)),
    host("9", b"{name}:0{port}", 400, "host_invalid"),
    host("9", b"{name}:+{port}", 400, "host_invalid"),
    host("9", b"{name}:", 400, "host_invalid"),
    host("9", b"{name}:{port},evil.test", 400, "host_invalid"),
    host("11", b"up.good.test:{port}", 403, "identity_mismatch"),
    h2("13", "a request in the path", ((b":path", b"/x HTTP/1.1\r\nHost: evil\r\n\r\nGET /smug"),), 400, "malformed"),
    h2("13", "a request in the method", ((b":method", b"GET /ok/a HTTP/1.1\r\nX: "),), 403, "method_invalid"),
    h2("13", "a request in the authority", ((b":authority", b"{host}\r\nX: y"),), 400, "host_invalid"),
    h2("13", "a request in a value", ((b"x-a", b"b\r\n\r\n" + SMUGGLED),), 400, "malformed"),
    h2("13", "a request in a name", ((b"x-a: b\r\nhost", b"evil.test"),), 400, "malformed"),
    h2("13", "another scheme", ((b":scheme", b"http"),), 403, "identity_mismatch"),
    h2("15", "transfer-encoding", ((b"transfer-encoding", b"chunked"),), 400, "malformed"),
    h2("15", "connection", ((b"connection", b"close"),), 400, "malformed"),
    h2("15", "te", ((b"te", b"gzip"),), 400, "malformed"),
    h2("15", "a length without a body", ((b"content-length", b"3"),), 400, "malformed"),
    framed("length and chunked", b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    framed("chunked and length", b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"0\r\n\r\n" + SMUGGLED),
    framed("two lengths", b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    framed("two other lengths", b"Content-Length: 3", b"Content-Length: 40", body=b"abc" + SMUGGLED),
    framed("a sign", b"Content-Length: +3", body=b"abc"),
    framed("minus", b"Content-Length: -1", body=b"abc"),
    framed("hex", b"Content-Length: 0x3", body=b"abc"),
    framed("a list", b"Content-Length: 3, 3", body=b"abc"),
    framed("an empty length", b"Content-Length:", body=b"abc"),
    framed("xchunked", b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + SMUGGLED),
    framed("chunked twice", b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n" + SMUGGLED),
    framed("chunked in two lines", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    framed("gzip, chunked", b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    framed("identity", b"Transfer-Encoding: identity", b"Content-Length: 3", body=b"abc"),
    framed("a quoted coding", b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    framed("a parameter", b"Transfer-Encoding: chunked;q=1", body=b"0\r\n\r\n"),
    framed("vertical tab", b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    framed("chunked in 1.0", b"Transfer-Encoding: chunked", line=b"POST /ok/a HTTP/1.0", body=b"0\r\n\r\n"),
    framed("space before the colon", b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    framed("tab before the colon", b"Transfer-Encoding\t: chunked", body=b"0\r\n\r\n"),
    framed("an underscore", b"Content_Length: 3", body=b"abc"),
    framed("framing named by connection", b"Connection: content-length", b"Content-Length: 3", body=b"abc"),
    framed("a first line that is a field", line=b"POST /ok/a HTTP/1.1\r\n X: y"),
    raw("18", "bare cr in a value", b"POST /ok/a HTTP/1.1\r\nHost: {host}\r\nX-A: b\rc\r\n\r\n", 400, "malformed"),
    raw("18", "nul in a value", b"POST /ok/a HTTP/1.1\r\nHost: {host}\r\nX-A: b\x00c\r\n\r\n", 400, "malformed"),
    raw("18", "bare lf", b"POST /ok/a HTTP/1.1\nHost: {host}\n\n", 400, "malformed"),
    raw("18", "one bare lf", b"POST /ok/a HTTP/1.1\r\nHost: {host}\nX: y\r\n\r\n", 400, "malformed"),
    raw("18", "a folded line", b"POST /ok/a HTTP/1.1\r\nHost: {host}\r\nX-A: b\r\n\tc\r\n\r\n", 400, "malformed"),
    raw("18", "a field without colon", b"POST /ok/a HTTP/1.1\r\nHost: {host}\r\nX-A\r\n\r\n", 400, "malformed"),
    raw("18", "a field without name", b"POST /ok/a HTTP/1.1\r\nHost: {host}\r\n: x\r\n\r\n", 400, "malformed"),
    head("18", b"x-a", b"b\x01c", 400, "malformed"),
    head("18", b"x-a", b"b\x7fc", 400, "malformed"),
    h2("18", "nul in a value", ((b"x-a", b"b\x00c"),), 400, "malformed"),
    h2("18", "an upper-case name", ((b"X-A", b"b"),), 400, "malformed"),
    *(get("20", target, 403, "path_ambiguous") for target in _AMBIGUOUS),
    *(get("21", target, 403, "path_ambiguous") for target in _AMBIGUOUS_21),
    get("21", b"/pkg/@a%2fb", 200, "", sent=(b"/pkg/@a%2fb",)),
    get("21", b"*", 400, "malformed"),
    get("21", b"ok/a", 400, "malformed"),
    Case(row="23", name="get", ask=Ask(method=b"get"), status=403, code="method_invalid"),
    Case(row="23", name="TRACE", ask=Ask(method=b"TRACE"), status=403, code="method_invalid"),
    Case(row="23", name="PURGE", ask=Ask(method=b"PURGE"), status=403, code="method_invalid"),
    Case(row="23", name="DELETE", ask=Ask(method=b"DELETE"), status=403, code="no_rule"),
    *(
        head("23", name, b"DELETE", 403, "method_invalid")
        for name in (b"x-http-method-override", b"x-http-method", b"x-method-override", b"x_http_method_override")
    ),
    get("23", b"/ok/a?_method=DELETE", 403, "method_invalid"),
    head("23", b"x-original-url", b"/admin", 403, "path_ambiguous"),
    head("23", b"x-rewrite-url", b"/admin", 403, "path_ambiguous"),
    Case(row="24", name="body on GET", ask=Ask(body=SMUGGLED), status=403, code="body_refused"),
    Case(row="24", name="body on HEAD", ask=Ask(method=b"HEAD", body=b"abc"), status=403, code="body_refused"),
    *(
        host("28", name, 400, "host_invalid")
        for name in (b"api_x.good.test", b"api.good\xe3\x80\x82test", b"-a.test", b"a b.test")
    ),
    host("28", b"\xef\xbd\x81pi.good.test:{port}", 400, "host_invalid"),
    host("28", b"xn--pi-0ia.good.test:{port}", 403, "identity_mismatch"),
    *(host("29", name, 400, "host_invalid") for name in _LITERALS_400),
    *(host("29", name, 403, "address_literal") for name in _LITERALS_403),
    *(host("29", name, 403, "metadata") for name in _METADATA),
    Case(
        row="41",
        name="a placeholder in a header that is no credential",
        ask=Ask(method=b"POST", fields=((b"x-note", DECOY.encode()),)),
        status=403,
        code="placeholder_misplaced",
    ),
    get("41", b"/ok/" + DECOY.encode(), 403, "placeholder_misplaced"),
    get("41", b"/ok/a?x=" + DECOY.encode(), 403, "placeholder_misplaced"),
    Case(
        row="41",
        name="a placeholder in a body goes on as it is",
        ask=Ask(method=b"POST", body=b'{"said": "' + DECOY.encode() + b'"}'),
        status=200,
    ),
    Case(
        row="42",
        name="a key of the attacker's",
        ask=Ask(
            method=b"POST",
            fields=((b"authorization", b"Bearer attacker"), (b"x-api-key", b"attacker"), (b"cookie", b"k=attacker")),
        ),
        status=200,
        absent=(b"attacker",),
    ),
    get("42", b"/ok/a?access_token=attacker&x=1", 200, "", sent=(b"/ok/a?x=1",), absent=(b"attacker",)),
    get("43", b"/ok/mint/token", 403, "deny_rule"),
    get("48", b"/no/" + b"a" * 9000, 400, "malformed"),
    get("48", b"/query?page=1&x=canary", 403, "query_refused"),
    raw(
        "48",
        "a header of 70 KiB",
        b"GET /ok/a HTTP/1.1\r\nHost: {host}\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        400,
        "malformed",
    ),
    raw(
        "also: connection",
        "authorization named by connection",
        b"GET /no HTTP/1.1\r\nHost: {host}\r\nConnection: authorization\r\n\r\n",
        403,
        "no_rule",
    ),
    raw(
        "also: upgrade",
        "h2c",
        b"GET /ok/a HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        426,
        "upgrade_refused",
    ),
    raw(
        "also: upgrade",
        "tls",
        b"GET /ok/a HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\nUpgrade: TLS/1.0\r\n\r\n",
        426,
        "upgrade_refused",
    ),
    raw("1967", "h2c prior knowledge", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not_http"),
    raw("2027", "ftp", b"GET ftp://{host}/ok/a HTTP/1.1\r\nHost: {host}\r\n\r\n", 403, "identity_mismatch"),
    raw("2027", "a tab in the path", b"GET /ok/\ta HTTP/1.1\r\nHost: {host}\r\n\r\n", 400, "not_http"),
    raw("2027", "two spaces", b"GET  /ok/a HTTP/1.1\r\nHost: {host}\r\n\r\n", 400, "not_http"),
    raw("2027", "no version", b"GET /ok/a\r\n\r\n", 400, "not_http"),
    raw("2027", "another version", b"GET /ok/a HTTP/1.2\r\nHost: {host}\r\n\r\n", 400, "malformed"),
    raw("2027", "a method that is no token", b"g<t /ok/a HTTP/1.1\r\nHost: {host}\r\n\r\n", 403, "method_invalid"),
    raw(
        "2027",
        "connect in a tunnel",
        b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
        400,
        "malformed",
    ),
    get("2586", b"/free/a/b", 403, "no_rule"),  # `*` stays in its segment
    get("2586", b"/free/a", 200, "", sent=(b"/free/a",)),
    get("2586", b"/ok/a/b/c", 200, "", sent=(b"/ok/a/b/c",)),
    Case(row="1382", name="HEAD goes with GET", ask=Ask(method=b"HEAD"), status=200),
)

# Rows that are run elsewhere (file::test, a test looks them up), or not yet.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "1": ("test_gateway_refuse.py::test_refused_on_the_proxy_port",),
    "2": ("test_gateway_refuse.py::test_names_that_disagree",),
    "5": (
        "test_gateway_refuse.py::test_an_address_in_connect",
        "test_gateway_upstream.py::test_a_peer_that_is_not_the_pin",
    ),
    "25": ("test_gateway_refuse.py::test_connect_itself_is_refused",),
    "26": ("test_gateway_refuse.py::test_neither_tls_nor_http", "test_gateway_refuse.py::test_tls_inside_tls"),
    "27": ("test_gateway_refuse.py::test_connect_itself_is_refused",),
    "30": ("test_gateway_upstream.py::test_an_answer_that_changes_is_judged_again",),
    "31": ("test_gateway_upstream.py::test_addresses_are_judged",),
    "32": ("test_gateway_inject.py::test_redirects_go_to_the_client_and_are_judged_anew",),
    "33": ("test_gateway_scrub.py::test_echoes_are_written_over",),
    "34": (
        "test_gateway_scrub.py::test_echoes_are_written_over",
        "test_gateway_scrub.py::test_it_is_asked_for_whole_and_plain",
    ),
    "35": ("test_gateway_scrub.py::test_what_cannot_be_read_is_withheld",),
    "36": ("test_gateway_scrub.py::test_heads_and_trailers",),
    "37": (
        "test_gateway_scrub.py::test_an_event_with_the_beginning_of_a_secret_does_not_wait",
        "test_socket_secrets.py::test_written_over_at_every_split",
        "test_socket_secrets.py::test_through_the_gateway",
    ),
    "38": ("test_gateway_scrub.py::test_six_megabytes_with_echoes_all_over",),
    "45": ("test_gateway_bodies.py::test_a_server_is_asked_to_fetch_nothing",),
    "47": ("test_gateway_scrub.py::test_a_presigned_address_in_an_answer_leads_nowhere",),
    "also: hook exception": (
        "test_gateway_hooks.py::test_raising_before_the_request_is_sent",
        "test_gateway_hooks.py::test_raising_in_a_step_of_the_strict_lane",
    ),
    "also: not whole": ("test_gateway_runs.py::test_a_missing_hook_is_no_gateway",),
    "also: another run's placeholder": ("test_gateway_runs.py::test_a_run_is_known_by_its_listener",),
    "also: expect": ("test_gateway_lane.py::test_expect_is_answered_when_the_target_is_there",),
    "1169": ("test_gateway_attacks.py::test_a_refused_host_is_not_looked_up",),
    "2353": ("test_gateway_attacks.py::test_a_placeholder_at_another_host",),
    "2161": ("test_gateway_refuse.py::test_a_secret_that_is_not_there",),
    "643": ("test_gateway_attacks.py::test_one_verdict_on_the_forward_path_and_in_a_tunnel",),
    "668": ("test_gateway_places.py::test_each_place",),
    "sbx#300": (
        "test_gateway_minting.py::test_the_target_gets_a_token_and_the_jail_a_decoy",
        "test_minting.py::test_one_call_for_all_who_wait_and_one_for_each_expiry",
    ),
    "342": ("test_gateway_lane.py::test_requests_sent_ahead_are_answered_in_turn",),
    "637": ("test_gateway_attacks.py::test_the_table", "test_framing.py::test_a_requests_framing"),
    "relay": ("test_gateway_attacks.py::test_the_table", "test_gateway_refuse.py::test_names_that_disagree"),
    "2363": ("test_gateway_attacks.py::test_the_table",),
    "878": ("test_gateway_attacks.py::test_the_table",),
    "1118": ("test_gateway_lane.py::test_a_revoked_run_has_no_idle_connections",),
    "829": ("test_gateway_upstream.py::test_a_body_that_is_cut_off",),
    "610": ("test_gateway_lane.py::test_answers_and_what_the_client_gets",),
    "2426": ("test_gateway_grpc.py::test_a_grpc_echo",),
    "docker#574": ("test_gateway_h2.py::test_not_offered_where_the_endpoint_does_not",),
    "opensandbox#1851": ("test_gateway_stream.py::test_a_large_upload_carries_the_secret_first",),
    "opensandbox#1369": ("test_gateway_inject.py::test_an_encoded_slash_is_sent_as_it_was_judged",),
    "onecli#251": ("test_gateway_refuse.py::test_a_refusal_leaves_the_connection_usable",),
}
LATER: dict[str, str] = {}
ROWS = (
    *(
        "1",
        "2",
        "3",
        "5",
        "6",
        "7",
        "8",
        "9",
        "11",
        "13",
        "15",
        "16",
        "18",
        "20",
        "21",
        "23",
        "24",
        "25",
        "26",
        "27",
        "28",
    ),
    *("29", "30", "31", "32", "33", "34", "35", "36", "37", "38", "41", "42", "43", "45", "47", "48"),
)
# Reports from users of a comparable sandbox, those that are about what a gateway judges or passes on.
USERS = (
    *(
        "1169",
        "2353",
        "2161",
        "668",
        "643",
        "342",
        "637",
        "relay",
        "878",
        "2027",
        "1967",
        "2426",
        "2586",
        "1382",
        "1118",
    ),
    *("829", "610", "2363", "docker#574", "opensandbox#1851", "opensandbox#1369", "onecli#251", "sbx#300"),
)
