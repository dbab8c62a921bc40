"""Rows of the table of host spellings, through the parser of traffic and the parser of the policy file."""

from ipaddress import ip_address

import pytest

from rules.hosts import METADATA_NAMES, AddressLiteral, HostError, HostPattern, is_metadata_name, normalize_host

REFUSED = {
    "short": b"127.1",
    "zero": b"0",
    "hex and decimal": b"0x7f.1",
    "hex": b"0x7f000001",
    "decimal": b"2130706433",
    "octal": b"017700000001",
    "octal parts": b"0177.0.0.1",
    "padded": b"127.000.000.001",
    "hex prefix alone": b"0x",
    "hex metadata": b"0xA9.0xFE.0xA9.0xFE",
    "decimal metadata": b"2852039166",
    "octal metadata": b"0251.0376.0251.0376",
    "three parts": b"169.254.43518",
    "overflowing parts": b"425.510.425.510",
    "overflowing": b"7147006462",
    "canonical with a root dot": b"127.0.0.1.",
    "circled digits": "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460".encode(),
    "ideographic stops": "127\u30020\u30020\u30021".encode(),
    "circled letters": "\u24d4\u24e7\u24d0\u24dc\u24df\u24db\u24d4.com".encode(),
    "soft hyphen": "ex\u00adample.com".encode(),
    "label of 64": b"a" * 64 + b".com",
    "two dots at the end": b"api.github.com..",
    "a dot alone": b".",
    "empty": b"",
    "empty label": b"api..github.com",
    "leading dot": b".github.com",
    "brackets round a name": b"[api.github.com]",
    "brackets round IPv4": b"[127.0.0.1]",
    "open bracket": b"[::1",
    "scope id": b"[fe80::1%25lo]",
    "bare scope id": b"[fe80::1%lo]",
    "bare IPv6": b"::1",
    "userinfo": b"user@evil.com",
    "port and userinfo": b"api.github.com:443@evil.com",
    "fragment": b"evil.com#api.github.com",
    "ampersand": b"1.1.1.1&@2.2.2.2",
    "escaped NUL": b"api.github.com%00.evil.com",
    "NUL": b"api.github.com\x00.evil.com",
    "backslash": b"evil.com\\.api.github.com",
    "blank": b"api.github.com evil.com",
    "tab": b"api.github.com\t",
    "comma list": b"api.github.com, evil.com",
    "slash": b"api.github.com/x",
    "underscore": b"my_host.example.com",
    "hyphen first": b"-a.example.com",
    "hyphen last": b"a-.example.com",
    "254 characters": b".".join([b"a" * 49] * 5) + b".bcde",
    "xn-- that is ascii": b"xn--example-.com",
    "xn-- that is empty": b"xn--.com",
    "xn-- that overflows": b"xn--99999999999.com",
    "number last": b"example.1",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
def test_a_spelling_that_is_no_name_is_refused(raw: bytes) -> None:
    with pytest.raises(HostError) as caught:
        normalize_host(raw)
    assert caught.value.detail


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"api.github.com", "api.github.com"),
        (b"api.github.com.", "api.github.com"),
        (b"API.GitHub.COM", "api.github.com"),
        (b"api.github.com.evil.com", "api.github.com.evil.com"),
        (b"127.0.0.1.nip.io", "127.0.0.1.nip.io"),
        (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
        (b"r3---sn-x.example.com", "r3---sn-x.example.com"),
        (b"a" * 63 + b".com", "a" * 63 + ".com"),
        (b".".join([b"a" * 49] * 5) + b".bcd", ".".join(["a" * 49] * 5) + ".bcd"),
        (b"0x7g.example", "0x7g.example"),
        (b"localhost", "localhost"),
    ],
)
def test_a_name_has_one_normal_form(raw: bytes, name: str) -> None:
    assert normalize_host(raw) == name
    assert normalize_host(name.encode()) == name


@pytest.mark.parametrize("text", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "255.255.255.255", "8.8.8.8"])
def test_a_canonical_ipv4_address_is_told_apart(text: str) -> None:
    assert normalize_host(text.encode()) == AddressLiteral(address=ip_address(text))


@pytest.mark.parametrize("text", ["::1", "2001:db8::1", "::ffff:127.0.0.1", "::FFFF:A9FE:A9FE", "64:ff9b::a9fe:a9fe"])
def test_an_ipv6_address_in_brackets_is_told_apart(text: str) -> None:
    assert normalize_host(f"[{text}]".encode()) == AddressLiteral(address=ip_address(text))


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (
            "api.github.com",
            ["api.github.com"],
            ["github.com", "x.api.github.com", "api.github.com.evil.com", "evilapi.github.com", "com"],
        ),
        (
            "*.github.com",
            ["api.github.com", "x.github.com"],
            ["github.com", "a.b.github.com", "evilgithub.com", "github.com.attacker.net", "com", "x.com"],
        ),
        (
            "**.github.com",
            ["api.github.com", "a.b.github.com"],
            ["github.com", "evilgithub.com", "a.github.com.evil.com", "com"],
        ),
    ],
)
def test_patterns_compare_whole_labels(pattern: str, inside: list[str], outside: list[str]) -> None:
    parsed = HostPattern.parse(pattern)
    assert [host for host in inside if not parsed.matches(host)] == []
    assert [host for host in outside if parsed.matches(host)] == []
    assert parsed.exact is ("*" not in pattern)
    assert parsed.text == pattern


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("*", '"*.example.com"'),
        ("**", '"*.example.com"'),
        ("*.com", "at least two labels"),
        ("**.com", "at least two labels"),
        ("api.*.com", '"*.example.com"'),
        ("*api.github.com", '"**.example.com"'),
        ("*.*.github.com", '"**.example.com"'),
        ("API.github.com", 'write "api.github.com"'),
        ("api.github.com.", 'write "api.github.com"'),
        ("bücher.example", 'write "xn--bcher-kva.example"'),
        ("https://api.github.com/x", 'write the host alone: "api.github.com"'),
        ("api.github.com:8443", "port = 8443"),
        ("127.0.0.1", 'address = ["127.0.0.1"]'),
        ("[::1]", 'address = ["::1"]'),
        ("::1", 'address = ["::1"]'),
        ("0x7f.1", 'address = ["a.b.c.d"]'),
        ("*.10.0.0.1", "address ="),
        ("2130706433", "address ="),
        ("metadata.google.internal", "remove the endpoint"),
        ("x.metadata.goog", "remove the endpoint"),
        ("localhost", "127.0.0.1"),
        ("db.localhost", "127.0.0.1"),
        ("", "letters, digits"),
        ("my_host.example.com", "letters, digits"),
        ("\ud800.example", "xn--"),
    ],
)
def test_a_pattern_that_means_too_much_is_refused_with_the_right_spelling(text: str, hint: str) -> None:
    with pytest.raises(HostError) as caught:
        HostPattern.parse(text)
    assert hint in caught.value.hint
    assert str(caught.value).startswith("error: ")


@pytest.mark.parametrize("labels", sorted(METADATA_NAMES))
def test_metadata_names_and_those_below_are_known(labels: tuple[str, ...]) -> None:
    assert is_metadata_name(labels)
    assert is_metadata_name(("x", *labels))
    assert not is_metadata_name((*labels, "example", "com"))
