"""What of ours a request carries, and that nothing in it is the client's choice."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.correlate import DEFAULT, Correlate, Fields, Marks, run8, signed_names, tag_of
from tests.rules.policies import WHOLE, load, problems

RUN = "r0123456789ab"
ALL = frozenset(Correlate)
SIGNED = b"AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-west-1/s3/aws4_request, SignedHeaders=%s, Signature=00"


def put(*fields: tuple[bytes, bytes], wanted: frozenset[Correlate] = DEFAULT, target: str = "/a", method: str = "GET",
        own: bytes = b"", seq: int = 1234) -> tuple[Marks, Fields]:  # fmt: skip
    marks = Marks.of(RUN, wanted, method, target, fields, own)
    return marks, marks.put(fields, seq)


def test_the_tag_names_the_run_and_the_line() -> None:
    assert tag_of(RUN, 1234) == "r0123456-ya"
    assert [tag_of("run-1", n) for n in (0, 35, 36)] == ["run1-0", "run1-z", "run1-10"]
    assert run8("") == ""


@pytest.mark.parametrize("number", [0, 1, 35, 36, 1234, 2**63 - 1])
def test_the_lines_number_can_be_read_back(number: int) -> None:
    assert int(tag_of(RUN, number).partition("-")[2], 36) == number


def test_it_stands_behind_the_clients_own() -> None:
    marks, sent = put((b"accept", b"a"), (b"User-Agent", b"curl/8"), (b"b", b"c"))
    assert sent == ((b"accept", b"a"), (b"b", b"c"), (b"user-agent", b"curl/8 credgate/r0123456-ya"))
    assert marks.ua_tag(1234) == "credgate/r0123456-ya"
    assert marks.ids(1234) == {}


def test_without_one_it_stands_alone() -> None:
    assert put()[1] == ((b"user-agent", b"credgate/r0123456-ya"),)


def test_off_leaves_everything_as_it_was() -> None:
    fields = ((b"User-Agent", b"curl/8 credgate/x-1"), (b"a", b"b"))
    marks, sent = put(*fields, wanted=frozenset())
    assert (sent, marks.ua_tag(1), marks.ids(1)) == (fields, "", {})


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_no_client_writes_a_tag(agents: list[bytes]) -> None:
    bait = (b"credgate/dead-1", b"CREDGATE/x-1", b"credcredgate/gate/x-2", b"a\x0bcredgate/b-1")
    _, sent = put(*((b"user-agent", agent + bait[i % 4]) for i, agent in enumerate(agents)))
    ((_, value),) = sent
    assert value.lower().count(b"credgate/") == 1
    assert value.endswith(b"credgate/r0123456-ya")


def test_a_long_agent_does_not_push_the_tag_out() -> None:
    _, ((_, value),) = put((b"user-agent", b"word " * 1000))
    assert len(value) < 600
    assert value.endswith(b"word credgate/r0123456-ya")


def test_every_id_is_in_the_ledger_as_it_is_sent() -> None:
    marks, sent = put(wanted=ALL, method="POST")
    assert {name.decode(): value.decode() for name, value in sent if name != b"user-agent"} == marks.ids(1234)
    assert list(marks.ids(1234)) == [c.value for c in Correlate if c is not Correlate.USER_AGENT]
    assert marks.ids(1234)["x-goog-request-reason"] == "credgate/r0123456-ya"
    for name in ("x-request-id", "x-ms-client-request-id", "idempotency-key"):
        assert uuid.UUID(marks.ids(1234)[name]).version == 8
    other = marks.ids(1235)
    assert not {marks.ids(1234)[name] for name in other} & set(other.values())


@pytest.mark.parametrize(("method", "there"), [("POST", True), ("PATCH", True), ("GET", False), ("DELETE", False)])
def test_idempotency_keys_go_with_what_makes_objects(method: str, there: bool) -> None:
    assert ("idempotency-key" in put(wanted=ALL, method=method)[0].ids(1)) is there


def test_a_retry_of_the_clients_stays_one_request_at_the_target() -> None:
    """The key is ours and never the client's text, but equal for equal ones of one run."""

    def key(run: str, own: bytes, seq: int) -> str:
        return Marks.of(run, ALL, "POST", "/a", (), own).ids(seq)["idempotency-key"]

    assert key(RUN, b"order-1", 7) == key(RUN, b"order-1", 9)
    assert len({key(RUN, b"order-1", 7), key(RUN, b"order-2", 7), key("r9", b"order-1", 7), key(RUN, b"", 7)}) == 4
    assert key(RUN, b"", 7) != key(RUN, b"", 8)


def test_what_a_binding_put_there_stays_the_only_one() -> None:
    marks, sent = put((b"x-request-id", b"the secret"), wanted=ALL)
    assert [value for name, value in sent if name == b"x-request-id"] == [b"the secret"]
    assert "x-request-id" not in marks.ids(1)


@pytest.mark.parametrize(
    ("fields", "target", "signed"),
    [
        (((b"Authorization", SIGNED % b"host;user-agent;x-amz-date"),), "/", {"host", "user-agent", "x-amz-date"}),
        (((b"authorization", SIGNED % b"host"),), "/", {"host"}),
        (((b"authorization", b"Bearer SignedHeaders=user-agent"),), "/", set()),
        ((), "/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders=host%3Buser-agent", {"host", "user-agent"}),
        (((b"Signature-Input", b'sig1=("@method" "user-agent");keyid="k"'),), "/", {"@method", "user-agent"}),
        (((b"x-other", SIGNED % b"user-agent"),), "/a?b=c", set()),
    ],
)
def test_what_is_signed_stays_as_it_was_signed(fields: Fields, target: str, signed: set[str]) -> None:
    assert signed_names(fields, target) == signed
    agent = (b"user-agent", b"aws-cli/2")
    marks, sent = put(*fields, agent, target=target)
    assert (agent in sent) is ("user-agent" in signed)
    assert bool(marks.ua_tag(1)) is ("user-agent" not in signed)


@given(st.binary(max_size=200), st.text(max_size=100))
def test_no_signature_breaks_it(value: bytes, target: str) -> None:
    signed_names(((b"authorization", b"AWS4-HMAC-SHA256 " + value), (b"signature-input", value)), target)


def test_digests_are_asked_for_by_an_endpoint_alone() -> None:
    host = 'host = "api.github.com"\n'
    for text, want in (("", False), ("digest = true\n", True), ("digest = false\n", False)):
        assert load(WHOLE.replace(host, host + text, 1)).endpoints["github-api"].digest is want


def test_the_policy_says_which() -> None:
    host = 'host = "api.github.com"\n'
    for text, want in (
        ("", DEFAULT),
        ("correlate = []\n", frozenset()),
        ('correlate = ["user-agent", "x-goog-request-reason"]\n',
         {Correlate.USER_AGENT, Correlate.GOOG_REQUEST_REASON}),
    ):  # fmt: skip
        assert load(WHOLE.replace(host, host + text, 1)).endpoints["github-api"].correlate == want


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ('correlate = ["user_agent"]', "correlate[0]", 'did you mean "user-agent"?'),
        ('correlate = ["User-Agent"]', "correlate[0]", 'did you mean "user-agent"?'),
        ('correlate = ["user-agent", "user-agent"]', "correlate[1]", "twice"),
        ('correlate = "user-agent"', "correlate", "an array"),
        ('fingerprint = "sha1"', "fingerprint", "expected"),
        ('digest = "sha256"', "digest", "true or false"),
    ],
)
def test_a_wrong_word_is_a_load_error(text: str, where: str, said: str) -> None:
    host = 'host = "api.github.com"\n'
    found = problems(WHOLE.replace(host, f"{host}{text}\n", 1))
    assert re.search(re.escape(said), str(found[f"endpoint.github-api.{where}"]))
