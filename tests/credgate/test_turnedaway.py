"""Secrets that a target refused, as the ledger has them: counted by name, host and status, with what mends each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from credgate.ledger.writer import Ledger
from credgate.refusals import lines_of
from credgate.runs import TURNED_AWAY
from credgate.turnedaway import SHOWN, TurnedAway, counted, sentences
from tests.rules.policies import load

RUN = "r0123456789ab"
POLICY = """
version = 1
[secret.kept]
source = "keyring:credgate/other-name"
[secret.desktop]
source = "keyring:acme/token"
[secret.passed]
source = "env:TOKEN"
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l") as opened:
        yield opened


def asked(ledger: Ledger, status: int, secret: str = "kept", host: str = "api.example", run: str = RUN) -> None:
    seq = ledger.append("intent", run=run, verdict="allow", secret=secret, host=host, method="GET", path="/a")
    ledger.append("outcome", run=run, intent_seq=seq, status=status or None)


def found(tmp_path: Path) -> list[tuple[str, str, int, int]]:
    got = counted(RUN, lines_of(tmp_path / "l", RUN, 0))
    return [(each.secret, each.host, each.status, each.count) for each in got]


def test_counted_by_secret_host_and_status(ledger: Ledger, tmp_path: Path) -> None:
    for status in (200, 401, 401, 404, 407, 500, 0):
        asked(ledger, status)
    asked(ledger, 403)
    asked(ledger, 401, host="b.example")
    asked(ledger, 401, secret="kept,passed")  # both went along
    assert found(tmp_path) == [
        ("kept", "api.example", 401, 3),
        ("kept", "api.example", 403, 1),
        ("kept", "b.example", 401, 1),
        ("passed", "api.example", 401, 1),
    ]


def test_neither_without_a_secret_nor_of_another_run(ledger: Ledger, tmp_path: Path) -> None:
    asked(ledger, 401, secret="")
    asked(ledger, 401, run="rother")
    seq = ledger.append("intent", run="rother", secret="kept", host=f'"run":"{RUN}"', method="GET", path="/a")
    ledger.append("outcome", run="rother", intent_seq=seq, status=401, detail=f'"run":"{RUN}"')
    ledger.append("deny", run=RUN, reason="no_rule", status=403, secret="kept", host="api.example")  # our own 403
    assert found(tmp_path) == []
    asked(ledger, 401)  # control
    assert len(found(tmp_path)) == 1


@pytest.mark.parametrize(
    ("secret", "mend"),
    [
        ("kept", "credgate secret set other-name"),
        ("desktop", "renew it where it comes from (keyring:acme/token)"),
        ("passed", "renew it where it comes from (env:TOKEN)"),
        ("gone", "credgate secret set gone"),  # of a policy that was reloaded since
    ],
)
def test_each_says_what_mends_it(secret: str, mend: str) -> None:
    one = TurnedAway(secret=secret, host="api.example", status=401, count=2)
    (said,) = sentences([one], load(POLICY))
    assert said == f"api.example refused the secret {secret} 2 times (401): it is wrong or has expired: {mend}"


def test_one_403_is_not_told_and_many_are_cut() -> None:
    policy = load(POLICY)
    once = TurnedAway(secret="kept", host="api.example", status=403, count=1)
    assert sentences([once], policy) == []
    twice = TurnedAway(secret="kept", host="api.example", status=403, count=2)
    assert "refused the secret kept 2 times (403): it may lack the right" in sentences([twice], policy)[0]
    many = [TurnedAway(secret="kept", host=f"{n}.example", status=401, count=1) for n in range(SHOWN + 2)]
    assert sentences(many, policy)[SHOWN:] == ["and 2 more secrets that a target refused"]
    assert TURNED_AWAY == (401, 403)
