"""Rows of the resolver's decision table that are about names, in both settings of dns.unlisted."""

import dataclasses
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from rules.hosts import HostPattern
from rules.names import NameTable, NameVerdict, decide_name, from_json, table_for, to_json
from rules.policy import Endpoint, Policy, Role, Unlisted
from rules.problems import TableError

V = NameVerdict


def endpoint(name: str, host: str, **more: Any) -> Endpoint:
    return dataclasses.replace(Endpoint(name=name, host=HostPattern.parse(host), port=443, dial_port=443), **more)


ENDPOINTS = (
    endpoint("gh", "api.github.com"),
    endpoint("s3", "*.s3.amazonaws.com"),
    endpoint("deep", "**.deep.example.com"),
    endpoint("git", "git"),
    endpoint("ghes", "ghes.corp.internal", networks=(ip_network("10.0.0.0/8"),)),
    endpoint("nas", "nas.local", pins=(ip_address("192.168.1.2"),)),
    endpoint("bare", "bare.internal"),
    endpoint("wide", "*.corp.internal", networks=(ip_network("10.0.0.0/8"),)),
    endpoint("google", "**.google.internal", networks=(ip_network("10.0.0.0/8"),)),
    endpoint("docker", "host.docker.internal", pins=(ip_address("172.17.0.1"),)),
    endpoint("goog", "*.goog.example"),
    endpoint("arpa", "*.resolver.arpa"),
)


def table(unlisted: Unlisted = Unlisted.GATEWAY) -> NameTable:
    policy = Policy(
        sha256="0",
        unlisted=unlisted,
        endpoints={e.name: e for e in ENDPOINTS},
        roles={"dev": Role(name="dev", endpoints=tuple(e.name for e in ENDPOINTS)), "none": Role(name="none")},
    )
    return table_for(policy, "dev", "10.99.0.1")


def labels(name: str) -> tuple[bytes, ...]:
    return tuple(part.encode() for part in name.split("."))


ROWS = [
    ("api.github.com", V.ALLOW),
    ("API.GitHub.Com", V.ALLOW),
    ("git", V.ALLOW),
    ("bucket.s3.amazonaws.com", V.ALLOW_WILDCARD),
    ("a.b.deep.example.com", V.ALLOW_WILDCARD),
    ("metadata.google.internal", V.METADATA),
    ("x.metadata.google.internal", V.METADATA),
    ("foo.google.internal", V.METADATA),
    ("metadata", V.METADATA),
    ("metadata.goog", V.METADATA),
    ("instance-data", V.METADATA),
    ("instance-data.ec2.internal", V.METADATA),
    ("metadata.tencentyun.com", V.METADATA),
    ("metadata.azure.com", V.METADATA),
    ("metadata.platformequinix.com", V.METADATA),
    ("api.metadata.cloud.ibm.com", V.METADATA),
    ("rancher-metadata", V.METADATA),
    ("kubernetes", V.METADATA),
    ("kubernetes.default", V.METADATA),
    ("kubernetes.default.svc", V.METADATA),
    ("kubernetes.default.svc.cluster.local", V.METADATA),
    ("anything.internal", V.METADATA),
    ("internal", V.METADATA),
    ("printer.local", V.METADATA),
    ("host.containers.internal", V.METADATA),
    ("gateway.docker.internal", V.METADATA),
    ("bare.internal", V.METADATA),
    ("other.corp.internal", V.METADATA),
    ("ghes.corp.internal", V.ALLOW),
    ("nas.local", V.ALLOW),
    ("host.docker.internal", V.ALLOW),
    ("localhost", V.LOOPBACK),
    ("foo.localhost", V.LOOPBACK),
    ("1.0.0.127.in-addr.arpa", V.REVERSE),
    ("1.0.0.0.ip6.arpa", V.REVERSE),
    ("x.in-addr", V.REVERSE),
    ("lb._dns-sd._udp.0.0.10.in-addr.arpa", V.REVERSE),
    ("use-application-dns.net", V.SPECIAL),
    ("_dns.resolver.arpa", V.SPECIAL),
    ("resolver.arpa", V.SPECIAL),
    ("wpad", V.SPECIAL),
    ("wpad.corp.example", V.SPECIAL),
    ("x.onion", V.SPECIAL),
    ("x.invalid", V.SPECIAL),
    ("api.github.com.corp.example", V.SEARCH_JUNK),
    ("bucket.s3.amazonaws.com.corp.example", V.SEARCH_JUNK),
    ("git.corp.example", V.SEARCH_JUNK),
    ("intranet", V.SINGLE_LABEL),
]
UNLISTED = [
    "github.com",
    "com.github.api",
    "s3.amazonaws.com",
    "a.b.s3.amazonaws.com",
    "deep.example.com",
    "evilapi.github.com",
    "xapi.github.com.evil.com",
    "secret-data.attacker.example",
    "127.0.0.1.nip.io",
    "localtest.me",
    "a" * 63 + ".example",
]
NOT_A_HOST = ["127.1", "127.0.0.1", "_sip.example.com", "-a.example", "a.0x7f"]


@pytest.mark.parametrize("unlisted", list(Unlisted))
@pytest.mark.parametrize(("name", "verdict"), ROWS, ids=[row[0] for row in ROWS])
def test_rows_that_hold_in_both_settings(name: str, verdict: NameVerdict, unlisted: Unlisted) -> None:
    assert decide_name(table(unlisted), labels(name)) is verdict


@pytest.mark.parametrize("name", UNLISTED)
def test_an_unlisted_name_follows_the_setting(name: str) -> None:
    assert decide_name(table(Unlisted.GATEWAY), labels(name)) is V.UNLISTED_GATEWAY
    assert decide_name(table(Unlisted.NXDOMAIN), labels(name)) is V.DENY


@pytest.mark.parametrize("name", NOT_A_HOST)
def test_a_name_that_no_request_could_carry_is_not_sent_to_the_gateway(name: str) -> None:
    assert decide_name(table(Unlisted.GATEWAY), labels(name)) is V.DENY


def test_a_dot_inside_a_label_is_no_border() -> None:
    assert decide_name(table(), (b"api.github", b"com")) is V.DENY
    assert decide_name(table(), (b"api", b"github", b"com")) is V.ALLOW


@pytest.mark.parametrize("odd", [(), (b"",), (b"a", b""), (b"a\x00", b"com"), (b"\xff", b"com"), (b"\xc3\xa9", b"com")])
def test_odd_labels_are_denied(odd: tuple[bytes, ...]) -> None:
    assert decide_name(table(), odd) in {V.DENY, V.SINGLE_LABEL}


def test_a_metadata_name_stays_closed_even_if_a_table_lists_it() -> None:
    name = ("metadata", "google", "internal")
    forced = NameTable(gateway_ip="10.99.0.1", exact=frozenset({name}), placed=frozenset({name}))
    assert decide_name(forced, labels("metadata.google.internal")) is V.METADATA


def test_a_role_without_endpoints_lists_nothing() -> None:
    policy = Policy(sha256="0", endpoints={e.name: e for e in ENDPOINTS}, roles={"none": Role(name="none")})
    empty = table_for(policy, "none", "10.99.0.1")
    assert decide_name(empty, labels("api.github.com")) is V.UNLISTED_GATEWAY


@pytest.mark.parametrize("unlisted", list(Unlisted))
def test_a_table_comes_back_from_its_json(unlisted: Unlisted) -> None:
    before = table(unlisted)
    after = from_json(to_json(before))
    assert to_json(after) == to_json(before)
    for name, _ in ROWS:
        assert decide_name(after, labels(name)) is decide_name(before, labels(name))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"gateway_ip":"x","unlisted":"y","exact":[],"wildcards":[],"placed":[]}']
)
def test_a_broken_table_is_refused(text: str) -> None:
    with pytest.raises(TableError):
        from_json(text)
