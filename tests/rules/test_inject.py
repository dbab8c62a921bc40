"""What leaves: the client's credentials out, the secret in, in one place."""

import base64
import dataclasses
import traceback
from typing import Any

import pytest

from rules.hosts import HostPattern
from rules.inject import InjectError, authority, basic_text, injected, placements, rewrite
from rules.policy import Binding, Endpoint, Foreign, Mode, PlaceKind
from rules.request import Request, Via
from rules.verdict import Allow

SECRET = "s3cr3t-value-of-the-vault"
DECOY = "ghp_decoydecoydecoydecoy"
SECRETS, DECOYS = {"github": SECRET}, {"gh": DECOY}
ENDPOINT = Endpoint(name="gh", host=HostPattern.parse("api.github.com"), port=443, dial_port=443)

HEADER = Binding(name="gh", secret="github", endpoint="gh", rules=frozenset({"a"}), place=PlaceKind.HEADER)
IN_PLACE = dataclasses.replace(HEADER, mode=Mode.PLACEHOLDER)
BASIC = dataclasses.replace(HEADER, place=PlaceKind.BASIC, format="x-access-token:{secret}")
BASIC_IN_PLACE = dataclasses.replace(BASIC, mode=Mode.PLACEHOLDER)


def request(*headers: tuple[bytes, bytes], **more: Any) -> Request:
    fields: dict[str, Any] = {"http_version": "HTTP/1.1", "scheme": "https", "port": 443} | more
    return Request(
        via=Via.CONNECT,
        method="GET",
        host="api.github.com",
        path="/a",
        target="/a",
        query_names=(),
        headers=((b"Host", b"api.github.com"), *headers),
        **fields,
    )


def allow(*bindings: Binding, **more: Any) -> Allow:
    return Allow(rule="gh.a", endpoint=dataclasses.replace(ENDPOINT, **more), bindings=bindings)


def sent(asked: Request, verdict: Allow, secrets: dict[str, str] = SECRETS) -> dict[bytes, list[bytes]]:
    result: dict[bytes, list[bytes]] = {}
    for name, value in rewrite(asked, verdict, secrets, DECOYS).fields:
        result.setdefault(name.lower(), []).append(value)
    return result


def bearer(token: str) -> tuple[bytes, bytes]:
    return b"Authorization", f"Bearer {token}".encode()


def basic(text: str) -> tuple[bytes, bytes]:
    return b"Authorization", b"Basic " + base64.b64encode(text.encode())


@pytest.mark.parametrize(
    "client", [[], [bearer("attacker")], [bearer(DECOY)], [basic("a:b")], [bearer("a"), bearer("b")]]
)
def test_overwrite_writes_whatever_the_client_sent(client: list[tuple[bytes, bytes]]) -> None:
    headers = sent(request(*client), allow(HEADER))
    assert headers[b"authorization"] == [b"Bearer " + SECRET.encode()]


def test_basic_is_encoded_after_its_format() -> None:
    (value,) = sent(request(basic("a:b")), allow(BASIC))[b"authorization"]
    assert base64.b64decode(value.removeprefix(b"Basic ")) == b"x-access-token:" + SECRET.encode()


@pytest.mark.parametrize(
    ("binding", "header", "written"),
    [
        (IN_PLACE, bearer(DECOY), True),
        (IN_PLACE, (b"authorization", b"token " + DECOY.encode()), True),
        (BASIC_IN_PLACE, basic(f"me:{DECOY}"), True),
        (IN_PLACE, bearer("attacker"), False),
        (IN_PLACE, (b"X-Other", DECOY.encode()), False),
        (IN_PLACE, basic(f"me:{DECOY}"), False),
        (BASIC_IN_PLACE, bearer(DECOY), False),
        (IN_PLACE, bearer(f"{DECOY}{DECOY}"), False),
        (IN_PLACE, (b"Accept", b"*/*"), False),
    ],
)
def test_placeholder_writes_only_where_the_decoy_stands(
    binding: Binding, header: tuple[bytes, bytes], written: bool
) -> None:
    asked, verdict = request(header), allow(binding)
    assert (b"authorization" in sent(asked, verdict)) is written
    assert injected(asked, verdict, DECOYS) == ((binding,) if written else ())


def test_a_placeholder_without_a_decoy_of_the_run_injects_nothing() -> None:
    asked = request(bearer(DECOY))
    assert injected(asked, allow(IN_PLACE), {}) == ()
    assert injected(asked, allow(IN_PLACE), {"gh": ""}) == ()


CLIENT_CREDENTIALS = [
    (b"X-Api-Key", b"attacker"),
    (b"x_api_key", b"attacker"),
    (b"Cookie", b"session=attacker"),
    (b"PRIVATE-TOKEN", b"attacker"),
    (b"Authorization", b"Bearer attacker"),
]


@pytest.mark.parametrize("header", CLIENT_CREDENTIALS)
def test_client_credentials_are_taken_out_with_and_without_a_binding(header: tuple[bytes, bytes]) -> None:
    for verdict in (allow(), allow(HEADER), allow(HEADER, foreign=Foreign.ALLOW), allow(foreign=Foreign.DENY)):
        assert b"attacker" not in repr(sent(request(header), verdict)).encode()
    assert b"attacker" in repr(sent(request(header), allow(foreign=Foreign.ALLOW))).encode()


@pytest.mark.parametrize("binding", [HEADER, IN_PLACE])
@pytest.mark.parametrize("name", [b"X-Odd", b"x_odd"])
def test_the_place_of_a_binding_is_cleared_whatever_its_name(binding: Binding, name: bytes) -> None:
    odd = dataclasses.replace(binding, header="x-odd", format="{secret}")
    headers = sent(request((name, b"attacker")), allow(odd))
    assert [headers.get(b"x-odd"), headers.get(b"x_odd")] == [[SECRET.encode()] if binding is HEADER else None, None]


def test_connection_can_not_take_the_secret_out() -> None:
    headers = sent(request((b"Connection", b"close, Authorization, X-Mine"), (b"X-Mine", b"a")), allow(HEADER))
    assert headers[b"authorization"] == [b"Bearer " + SECRET.encode()]
    assert b"x-mine" not in headers
    assert b"connection" not in headers


@pytest.mark.parametrize(
    "name",
    [
        b"Connection",
        b"Keep-Alive",
        b"Proxy-Connection",
        b"Proxy-Authorization",
        b"Proxy-Anything",
        b"TE",
        b"Upgrade",
        b"HTTP2-Settings",
        b"X-Request-Id",
        b"X-Goog-Request-Reason",
        b"X-MS-Client-Request-Id",
        b"Idempotency-Key",
        b"traceparent",
        b"X-Forwarded-For",
        b"X-Forwarded-Host",
        b"Forwarded",
        b"Via",
        b"X_Forwarded_Host",
    ],
)
def test_headers_of_the_hop_and_about_the_sender_are_taken_out(name: bytes) -> None:
    assert name.lower() not in sent(request((name, b"a")), allow(foreign=Foreign.ALLOW))


def test_the_rest_passes_in_order_byte_for_byte() -> None:
    rest = ((b"Accept", b"a"), (b"X-B", b"\xc3\xa9 "), (b"accept", b"c"), (b"Content-Length", b"3"))
    assert rewrite(request(*rest), allow(), {}, {}).fields == ((b"Host", b"api.github.com"), *rest)
    te = (b"Transfer-Encoding", b"chunked")
    assert te in rewrite(request(te), allow(), {}, {}).fields


def test_the_host_is_sent_in_normal_form() -> None:
    shouted = dataclasses.replace(request(), headers=((b"HOST", b"API.GitHub.com.:443"),))
    assert rewrite(shouted, allow(), {}, {}).fields == ((b"HOST", b"api.github.com"),)
    assert authority(request(port=8443)) == b"api.github.com:8443"
    assert authority(request(port=80, scheme="http")) == b"api.github.com"
    assert authority(request(port=443, scheme="http")) == b"api.github.com:443"


def test_http2_has_no_host_header_and_keeps_te_for_grpc() -> None:
    te = (b"te", b"trailers")
    h2 = dataclasses.replace(request(http_version="HTTP/2.0"), headers=((b"host", b"api.github.com"), te))
    assert rewrite(h2, allow(), {}, {}).fields == (te,)
    assert b"te" not in sent(request(te), allow())


@pytest.mark.parametrize(
    "value", ["a\rSECRETTAIL", "a\nSECRETTAIL", "SECRETTAIL\n", "a\x00SECRETTAIL", "a\x7fSECRETTAIL", "€SECRETTAIL", ""]
)
@pytest.mark.parametrize("binding", [HEADER, BASIC])
def test_a_value_that_can_not_stand_in_a_header_is_an_error_that_does_not_show_it(value: str, binding: Binding) -> None:
    with pytest.raises(InjectError) as caught:
        rewrite(request(), allow(binding), {"github": value}, {})
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "SECRETTAIL" not in shown
    assert "'github'" in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert caught.value.hint


def test_a_missing_secret_is_an_error_only_where_it_is_needed() -> None:
    with pytest.raises(InjectError):
        rewrite(request(), allow(HEADER), {}, {})
    assert b"authorization" not in sent(request(), allow(IN_PLACE), {})


def test_a_brace_in_the_secret_is_text() -> None:
    (value,) = sent(request(), allow(HEADER), {"github": "{secret}{0}%s"})[b"authorization"]
    assert value == b"Bearer {secret}{0}%s"


def test_placements_name_the_place_and_the_secret() -> None:
    key = dataclasses.replace(HEADER, header="x-key", name="key")
    shown = [(p.place, p.secret, p.binding, p.mode) for p in placements(allow(BASIC, key))]
    assert shown == [("basic", "github", "gh", Mode.OVERWRITE), ("header:x-key", "github", "key", Mode.OVERWRITE)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"Basic YTpi", "a:b"),
        (b"basic  YTpi ", "a:b"),
        (b"BASIC YTpiYw", "a:bc"),
        (b"Basic\tYTpi", "a:b"),
        (b"Basically YTpi", ""),
        (b"Basic YTpiYw==", "a:bc"),
        (b"Basic _v86Yg", "\xfe\xff:b"),
        (b"Bearer YTpi", ""),
        (b"Basic", ""),
        (b"Basic Y", ""),
        (b"", ""),
    ],
)
def test_basic_text(value: bytes, text: str) -> None:
    assert basic_text(value) == text
