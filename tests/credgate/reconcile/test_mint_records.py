"""Own calls of the gateway in the join: one call for two lines, none for an answer that was given here."""

from pathlib import Path

from credgate.ledger.verify import verify
from credgate.ledger.writer import Ledger
from credgate.reconcile.gateway import Seen, calls


def test_an_own_call_is_one_call_with_the_targets_ids(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger")
    asked = {"run": "r1", "host": "idp.test", "port": 443, "method": "POST", "path": "/token", "secret": "k"}
    first = ledger.append("mint", verdict="allow", rule="mint.a", **asked)
    ledger.append(
        "mint", run="r1", intent_seq=first, status=200, ids={"x-request-id": "idp-0001"}, cred_fp="hmac:aa", ms=7
    )
    ledger.append("mint", run="r1", verdict="answered", rule="mint.a")
    ledger.append("mint", verdict="allow", rule="revoke.a", **asked)  # its end is not known
    ledger.close()
    seen = Seen(report=verify(tmp_path / "ledger"))
    found = list(calls(tmp_path / "ledger", seen))
    assert [(c.host, c.rule, c.status, c.settled) for c in found] == [
        ("idp.test", "mint.a", 200, 1),
        ("idp.test", "revoke.a", 0, 0),
    ]
    assert found[0].ids == ("idp-0001",)
    assert found[0].creds == (("k", 0),)  # what the call was made with; the fingerprint is of the token that came
    assert seen.allowed == 2
