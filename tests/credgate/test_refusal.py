"""What the jail is told: one shape for every reason, and four kinds of failure that can't be taken for each other."""

import asyncio
import json
from pathlib import Path

import botocore.parsers
import pytest

from credgate.gateway import refusal
from credgate.gateway.refusal import Refusal, deny, phrase, sentence
from rules.reasons import Reason
from rules.verdict import Deny
from tests.credgate.gateway_rig import Answer, Rig, rig
from tests.credgate.test_gateway_upstream import scripted

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (Path(__file__).parents[2] / "docs/reasons.md").read_text().splitlines()
    if line.startswith("| `")
]
STATUS = {Reason(row[0].strip("`")): int(row[1]) for row in ROWS}
OURS = {reason for reason in Reason if reason in vars(refusal)["_SENTENCES"]}


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_is_spoken_in_one_shape(reason: Reason) -> None:
    verdict = deny(reason) if reason in OURS else Deny(reason=reason, message="No.", status=STATUS[reason])
    assert verdict.status == STATUS[reason]
    said = Refusal(deny=verdict)
    failed = verdict.status in (502, 504)
    assert json.loads(said.body()) == {
        "error": {
            "type": "credgate_error" if failed else "credgate_denied",
            "code": reason.value,
            "message": verdict.message,
            "request_id": said.request_id,
        }
    }
    assert verdict.message.endswith(".")
    assert len(verdict.message) < 120
    fields = dict(said.fields(h2=False, close=False))
    assert fields[b"credgate-verdict"] == (b"error" if failed else b"deny")
    assert fields[b"content-length"] == b"%d" % len(said.body())
    assert (b"upgrade" in fields) == (verdict.status == 426)
    assert phrase(verdict.status) != b"Refused"
    assert b"upgrade" not in dict(said.fields(h2=True, close=False))


def test_a_hint_that_lets_pass_is_told() -> None:
    verdict = Deny(reason=Reason.NO_RULE, message="No rule allows it.", hint="a rule with this path")
    assert sentence(verdict) == "No rule allows it. To pass: a rule with this path."


def test_a_hint_for_the_ledger_is_not_told() -> None:
    verdict = Deny(reason=Reason.HOST_INVALID, message="The host is not valid.", status=400, hint="got '/etc/passwd'")
    assert sentence(verdict) == "The host is not valid."


def test_a_long_hint_is_cut() -> None:
    assert len(sentence(Deny(reason=Reason.BODY_REFUSED, message="No.", hint="x" * 9999))) < 450


def test_a_refusal_says_which_rule_it_takes(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            answer = await client.get("/nowhere", host=f"api.good.test:{r.direct}")
            message = json.loads(answer.body)["error"]["message"]
            assert "To pass: a rule in endpoint 'good' with methods = [\"GET\"] and this path in paths." in message
            (line,) = r.records("deny")
            assert line["detail"] in message

    asyncio.run(main())


async def once(r: Rig) -> Answer:
    client = await r.tunnel()
    return await client.get("/ok/a", host=f"api.good.test:{r.direct}")


def signs(answer: Answer) -> tuple[int, str, str]:
    """Status, our header's word, type of the body."""
    lines = answer.head.lower().split(b"\r\n")
    words = [line.partition(b": ")[2].decode() for line in lines if line.startswith(b"credgate-verdict:")]
    body = json.loads(answer.body) if answer.body.startswith(b"{") else {}
    return answer.status, "".join(words), str(body.get("error", {}).get("type", ""))


def test_a_refusal_a_missing_secret_a_dead_target_and_its_own_error_are_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            client = await r.tunnel()
            refused = await client.get("/ok/mint/a", host=f"api.good.test:{r.direct}")
            kept = r.vault.values.pop("token")
            missing = await once(r)
            r.vault.values["token"] = kept
            own = b"HTTP/1.1 502 Bad Gateway\r\nCredgate-Verdict: error\r\nContent-Length: 2\r\n\r\n{}"
            r.good.script = scripted(own)
            theirs = await once(r)
            r.good._raw_server.close()
            dead = await once(r)
            assert signs(refused) == (403, "deny", "credgate_denied")
            assert signs(missing) == (403, "deny", "credgate_denied")
            assert (refused.code, missing.code) == ("deny_rule", "secret_unavailable")
            assert signs(theirs) == (502, "", "")
            assert signs(dead) == (502, "error", "credgate_error")
            assert dead.code == "upstream_unreachable"

    asyncio.run(main())


HOSTILE = 'an endpoint with host = "a\r\nset-cookie: x\0é"'


def test_the_reason_phrase_is_the_sentence_and_holds_no_line_end() -> None:
    """What wget, npm and pnpm show of an answer; what stands in it may come from the jail."""
    said = Refusal(deny=Deny(reason=Reason.HOST_UNLISTED, message="No.", hint=HOSTILE))
    assert said.phrase == b'Forbidden: No. To pass: an endpoint with host = "a??set-cookie: x??".'
    head = said.wire().partition(b"\r\n")[0]
    assert head == b"HTTP/1.1 403 " + said.phrase
    longest = Refusal(deny=Deny(reason=Reason.HOST_UNLISTED, message="No.", hint="x" * 9000))
    assert len(longest.phrase) < 500


@pytest.mark.parametrize("agent", [b"git/2.39.5", b"git/2.51.0 (Apple Git)"])
def test_git_is_told_in_text_which_it_shows(agent: bytes) -> None:
    plain = Refusal(deny=Deny(reason=Reason.NO_RULE, message="No.", hint="a rule"))
    told = plain.told_to(agent)
    assert told.body() == b"credgate: No. To pass: a rule.\n"
    fields = dict(told.fields(h2=False, close=False))
    assert fields[b"content-type"].startswith(b"text/plain")
    assert fields[b"content-length"] == b"%d" % len(told.body())
    assert (fields[b"credgate-verdict"], told.request_id) == (b"deny", plain.request_id)


def test_botocore_reads_it_as_an_error_of_aws() -> None:
    """By its own parsers: of S3, of query services, of JSON ones."""
    said = Refusal(deny=Deny(reason=Reason.HOST_UNLISTED, message="No.", hint=HOSTILE + " <&>"))
    told = said.told_to(b"Boto3/1.44.8 md/Botocore#1.44.8")
    answer = {"status_code": 403, "headers": dict(told.fields(h2=False, close=False)), "body": told.body()}
    for protocol in ("rest-xml", "query"):
        parsed = botocore.parsers.create_parser(protocol).parse(answer, None)
        assert parsed["Error"]["Code"] == "AccessDenied"
        assert parsed["Error"]["Message"].startswith("credgate: No. To pass: an endpoint with host")
        assert parsed["Error"]["Message"].endswith("<&>.")
        assert parsed["ResponseMetadata"]["RequestId"] == said.request_id
    parsed = botocore.parsers.create_parser("json").parse(answer, None)
    assert "credgate: No." in parsed["Error"]["Message"]


@pytest.mark.parametrize(
    "agent", [b"", b"curl/8", b"python-requests/2", b"digit/1", b"GitHub CLI 2.4", b"libgit2 git/1"]
)
def test_everybody_else_is_told_in_json(agent: bytes) -> None:
    told = Refusal(deny=Deny(reason=Reason.NO_RULE, message="No.")).told_to(agent)
    assert json.loads(told.body())["error"]["code"] == "no_rule"
    assert dict(told.fields(h2=True, close=False))[b"content-type"] == b"application/json"
