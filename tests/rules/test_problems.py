import pytest

from rules import problems
from rules.load import load_policy
from rules.problems import HostError, PolicyError, Problem, RulesError


def test_an_error_says_what_and_then_how_to_mend_it() -> None:
    assert str(HostError("got a, expected b", "write b")) == "error: got a, expected b\nhint: write b"
    assert str(HostError("got a")) == "error: got a"


def test_a_policy_error_shows_all_faults_at_once() -> None:
    error = PolicyError(
        [Problem(where="endpoint.a.port", message="got x", hint="write 443"), Problem(where="", message="got y")]
    )
    assert str(error) == "error: endpoint.a.port: got x\nhint: write 443\nerror: got y"
    assert (error.code, error.detail, error.hint) == ("policy_invalid", "endpoint.a.port: got x", "write 443")
    assert len(error.problems) == 2


def test_one_base_catches_them_all() -> None:
    with pytest.raises(RulesError):
        raise PolicyError([])
    assert issubclass(HostError, ValueError)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"version = 1\n{'x' * 500_000} = 1\n", "unknown key"),
        (f'version = 1\n[endpoint.a]\nhost = "{"a." * 200_000}b"\n', "253"),
        (f'version = 1\ndefault_role = "{"x" * 500_000}"\n', "no role is called"),
    ],
)
def test_a_fault_quotes_no_more_than_somebody_reads(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(text.encode(), packs={}, base_dir="/")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 4 * problems.MOST
    assert len(caught.value.detail) <= problems.MOST
    assert problems.brief("x" * problems.MOST) == "x" * problems.MOST
