"""What a WebSocket's messages have to be: asked for with the handshake, by the terms of the rules that matched."""

import dataclasses
import json

import pytest

from rules.decide import decide
from rules.intersect import child_policy
from rules.messages import max_of, misfit
from rules.policy import Policy
from rules.request import Request
from rules.verdict import Allow, Deny
from tests.rules.policies import load, problems
from tests.rules.tunnelled import tunnelled

HEAD = """
version = 1
[secret.key]
source = "keyring:credgate/key"
[secret.other]
source = "keyring:credgate/other"
[endpoint.api]
host = "a.example.org"
"""
TERM = 'body = { type = "json", max = "1KiB", equals = { type = "say" } }\n'
RULE = '[[endpoint.api.allow]]\nid = "ws"\nmethods = ["GET"]\npaths = ["/ws"]\nupgrade = true\n'
FREE = '[[endpoint.api.allow]]\nid = "free"\nmethods = ["GET"]\npaths = ["/**"]\nupgrade = true\n'
OTHER = (
    '[[endpoint.api.allow]]\nid = "other"\nmethods = ["GET"]\npaths = ["/ws"]\nupgrade = true\n'
    'body = { type = "json", max = "2KiB", equals = { kind = 1 } }\n'
)


def role(text: str) -> str:
    return f"[role.dev]\n{text}\n"


def bind(name: str, place: str, *rules: str) -> str:
    return (
        f'[binding.{name}]\nsecret = "{name}"\nendpoint = "api"\nrules = {json.dumps(rules)}\n'
        f'place = "header:{place}"\nformat = "{{secret}}"\n'
    )


def handshake(path: bytes = b"/ws", *, upgrade: bool = True) -> Request:
    fields = []
    if upgrade:
        fields = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
            (b"sec-websocket-version", b"13"),
        ]
    return tunnelled(f"GET {path.decode()}", "a.example.org", *fields)


def allowed(policy: Policy, path: bytes = b"/ws", name: str = "dev") -> Allow:
    verdict = decide(policy, name, handshake(path))
    assert isinstance(verdict, Allow), verdict
    assert verdict.body_max == 0, "a handshake has no body to wait for"
    return verdict


def fits(allow: Allow, message: object) -> bool:
    return not misfit(allow.messages, message if isinstance(message, bytes) else json.dumps(message).encode())


SAY, KIND, ELSE = {"type": "say"}, {"kind": 1}, {"type": "shout"}


def test_a_rule_without_a_term_asks_nothing() -> None:
    assert allowed(load(HEAD + FREE + role('endpoints = ["api"]'))).messages == ()


def test_each_message_has_to_fit_the_term() -> None:
    allow = allowed(load(HEAD + RULE + TERM + role('endpoints = ["api"]')))
    assert fits(allow, SAY)
    assert not fits(allow, ELSE)
    assert not fits(allow, b"say")
    assert not fits(allow, b'{"type": "say", "type": "shout"}')
    assert not fits(allow, b'{"type": "say"}\xff')
    assert not fits(allow, SAY | {"more": "x" * 1024})
    assert max_of(allow.messages) == 1024


def test_of_several_rules_any_will_do_where_no_secret_hangs_on_one() -> None:
    allow = allowed(load(HEAD + RULE + TERM + OTHER + role('endpoints = ["api"]')))
    assert fits(allow, SAY) and fits(allow, KIND) and not fits(allow, ELSE)
    assert max_of(allow.messages) == 2048


def test_a_free_rule_beside_it_frees_the_messages_unless_a_secret_hangs_on_the_term() -> None:
    text = HEAD + RULE + TERM + FREE
    assert allowed(load(text + role('endpoints = ["api"]'))).messages == ()
    bound = load(text + bind("key", "authorization", "ws") + role('bindings = ["key"]'))
    assert allowed(bound).rule == "api.ws"
    assert fits(allowed(bound), SAY) and not fits(allowed(bound), ELSE)
    both = load(text + bind("key", "authorization", "ws", "free") + role('bindings = ["key"]'))
    assert allowed(both).messages == (), "the secret goes with any message by the free rule"


def test_each_secret_asks_for_itself() -> None:
    """Two are injected with one handshake, so that a message goes with both of them."""
    bindings = bind("key", "authorization", "ws") + bind("other", "x-other", "other")
    allow = allowed(load(HEAD + RULE + TERM + OTHER + bindings + role('bindings = ["key", "other"]')))
    assert len(allow.bindings) == 2
    assert fits(allow, SAY | KIND)
    assert not fits(allow, SAY) and not fits(allow, KIND)


def test_a_query_that_names_a_tested_field_is_no_way_around() -> None:
    policy = load(HEAD + RULE + TERM + role('endpoints = ["api"]'))
    verdict = decide(policy, "dev", handshake(b"/ws?type=shout"))
    assert isinstance(verdict, Deny) and verdict.reason == "body_refused"
    assert allowed(policy, b"/ws?x=1").messages


def test_a_get_that_is_no_handshake_has_no_body_that_fits() -> None:
    policy = load(HEAD + RULE + TERM + role('endpoints = ["api"]'))
    plain = decide(policy, "dev", dataclasses.replace(handshake(upgrade=False), body=b""))
    assert isinstance(plain, Deny) and plain.reason == "body_refused"


def test_a_child_run_is_asked_what_its_parent_is() -> None:
    text = HEAD + RULE + TERM + OTHER + bind("key", "authorization", "ws") + bind("other", "x-other", "other")
    text += '[role.up]\nbindings = ["key"]\n[role.down]\nbindings = ["key"]\nendpoints = ["api"]\n'
    allow = allowed(child_policy(load(text), "up", "down"), name="down")
    assert fits(allow, SAY) and not fits(allow, KIND)


def test_the_term_beside_get_needs_the_upgrade() -> None:
    found = problems(HEAD + RULE.replace("upgrade = true\n", "") + TERM + role('endpoints = ["api"]'))
    assert "upgrade = true" in found["endpoint.api.allow[0].body"].hint


def test_no_message_is_a_form() -> None:
    found = problems(HEAD + RULE + TERM.replace('"json"', '"form"') + role('endpoints = ["api"]'))
    assert "no message" in found["endpoint.api.allow[0].body.type"].message


GRAPHQL = 'body = { type = "graphql", max = "4KiB", operations = ["subscription.issue", "query.viewer"] }\n'
GOOD, BAD = {"query": "subscription { issue }"}, {"query": "mutation { deleteRepository }"}


@pytest.mark.parametrize(
    ("message", "fit"),
    [
        (GOOD, True),
        (BAD, False),
        ({"type": "subscribe", "id": "1", "payload": GOOD}, True),
        ({"type": "start", "id": "1", "payload": {"query": "{ viewer }"}}, True),
        ({"type": "subscribe", "id": "1", "payload": BAD}, False),
        ({"type": "subscribe", "id": "1"}, False),
        ({"type": "subscribe", "id": "1", "payload": GOOD, "query": "mutation { x }"}, False),
        ({"type": "subscribe", "id": "1", "payload": GOOD, "Payload": BAD}, False),
        ({"Type": "subscribe", "payload": BAD}, False),
        ({"type": "connection_init"}, True),
        ({"type": "connection_init", "payload": {}}, True),
        ({"type": "connection_init", "payload": {"authorization": "mine"}}, False),
        ({"type": "ping", "payload": BAD}, False),
        ({"type": "complete", "id": "1"}, True),
        ({"type": "data", "id": "1", "payload": GOOD}, False),
        ({"type": ["subscribe"], "payload": GOOD}, False),
        ({"type": None, "payload": GOOD}, False),
        ([{"type": "ping"}], False),
        ({"type": "ping", "id": "x" * 4096}, False),
    ],
)
def test_graphql_in_its_protocols_envelopes(message: object, fit: bool) -> None:
    assert fits(allowed(load(HEAD + RULE + GRAPHQL + role('endpoints = ["api"]'))), message) is fit
