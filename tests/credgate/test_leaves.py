"""Which leaf is shown is found anew for another name, tunnel, policy or role, and kept for the same one, bounded."""

import ssl
from dataclasses import replace
from typing import Any, cast

import pytest

from credgate.gateway import leaves
from credgate.gateway.exchange import ClientState
from credgate.gateway.leaves import Leaves
from credgate.runs import Run
from rules.load import load_policy
from rules.policy import Policy

TEXT = b"""
version = 1
[endpoint.h2]
host = "h2.good.test"
alpn = ["h2", "http/1.1"]
[[endpoint.h2.allow]]
id = "all"
methods = ["GET"]
paths = ["/**"]
[role.dev]
endpoints = ["h2"]
[role.none]
endpoints = []
"""
BOTH, ONE = ("h2", "http/1.1"), ("http/1.1",)


class Signs:
    """Stands for the authority: what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def context_for(self, host: str, alpn: tuple[str, ...]) -> ssl.SSLContext:
        self.asked.append((host, alpn))
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def policy() -> Policy:
    return load_policy(TEXT, packs={}, base_dir="/")


def state(role: str = "dev", connect: bytes = b"h2.good.test", port: int = 443) -> ClientState:
    run = Run(id="r", policy=policy(), role=role, gateway_ip="127.0.0.99", proxy_port=1)
    made = ClientState(run=run, listener=cast("Any", None))
    made.connect_host, made.connect_port = connect, port
    return made


@pytest.mark.parametrize(
    ("sni", "connect", "port", "shown"),
    [
        ("h2.good.test", b"h2.good.test", 443, ("h2.good.test", BOTH)),
        ("H2.good.test", b"", 443, ("h2.good.test", BOTH)),
        (None, b"h2.good.test", 443, ("h2.good.test", BOTH)),
        ("h2.good.test", b"h2.good.test", 8443, ("h2.good.test", ONE)),
        ("evil.test", b"h2.good.test", 443, ("evil.test", ONE)),
        (None, b"", 443, ("127.0.0.99", ONE)),
        (None, b"192.0.2.1", 443, ("192.0.2.1", ONE)),
        ("a b", b"h2.good.test", 443, ("unnamed.invalid", ONE)),
        ("\xe9.test", b"h2.good.test", 443, ("unnamed.invalid", ONE)),
    ],
)
def test_the_name_and_its_protocols(sni: str | None, connect: bytes, port: int, shown: tuple[str, Any]) -> None:
    signs = Signs()
    kept = Leaves(cast("Any", signs))
    for _ in range(2):
        kept.context(state(connect=connect, port=port), sni)
    assert signs.asked == [shown, shown]


def test_another_policy_or_role_counts_at_once() -> None:
    signs = Signs()
    kept, one = Leaves(cast("Any", signs)), state()
    kept.context(one, "h2.good.test")
    one.run.role = "none"
    kept.context(one, "h2.good.test")
    one.run.role = "dev"
    kept.context(one, "h2.good.test")
    one.run.policy = replace(one.run.policy, endpoints={})
    kept.context(one, "h2.good.test")
    assert [alpn for _, alpn in signs.asked] == [BOTH, ONE, BOTH, ONE]


def test_what_a_jail_makes_it_keep_is_bounded() -> None:
    kept, one = Leaves(cast("Any", Signs())), state()
    for number in range(leaves.MOST * 2):
        kept.context(one, f"host{number}.test")
        kept.context(one, f"host{number}." + "x" * leaves.LONGEST)
    assert len(kept._shown) == leaves.MOST
    assert all(len(sni or "") <= leaves.LONGEST for sni, _, _ in kept._shown)
