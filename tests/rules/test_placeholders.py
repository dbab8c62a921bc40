import base64
import itertools
import json
import random
import re
import secrets

import pytest

from rules.placeholders import ALPHABETS, JWT, MIN_RANDOM, ShapeError, check_claims, check_shape, make_decoy
from tests.rules.policies import changed, load, problems


def test_a_decoy_has_its_shape_and_follows_its_source() -> None:
    count = itertools.count()
    decoy = make_decoy("ghp_{36}", lambda n: next(count) % n)
    assert re.fullmatch(r"ghp_[0-9A-Za-z]{36}", decoy)
    assert decoy == "ghp_" + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_two_holes() -> None:
    assert make_decoy("xoxb-{8}-{8}", lambda _: 0) == "xoxb-00000000-00000000"


def test_the_source_is_asked_for_one_of_62() -> None:
    asked: list[int] = []
    make_decoy("{16}", lambda n: asked.append(n) or n - 1)  # type: ignore[func-returns-value]
    assert asked == [62] * MIN_RANDOM


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [
        ("ghp_{30}{crc32}", r"ghp_[0-9A-Za-z]{36}"),
        ("github_pat_{22}_{59}", r"github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}"),
        ("glpat-{20:base64url}", r"glpat-[0-9A-Za-z_-]{20}"),
        ("npm_{30}{crc32}", r"npm_[0-9A-Za-z]{36}"),
        ("pypi-AgEIcHlwaS5vcmc{160:base64url}", r"pypi-AgEIcHlwaS5vcmc[0-9A-Za-z_-]{160}"),
        ("sk-ant-api03-{93:base64url}AA", r"sk-ant-api03-[0-9A-Za-z_-]{93}AA"),
        ("sk-proj-{74:base64url}T3BlbkFJ{74:base64url}", r"sk-proj-[0-9A-Za-z_-]{74}T3BlbkFJ[0-9A-Za-z_-]{74}"),
        ("AIza{35:base64url}", r"AIza[0-9A-Za-z_-]{35}"),
        ("sk_live_{24}", r"sk_live_[0-9A-Za-z]{24}"),
        ("xoxb-{12:digits}-{12:digits}-{24}", r"xoxb-[0-9]{12}-[0-9]{12}-[0-9A-Za-z]{24}"),
        ("AKIA{16:base32}", r"AKIA[A-Z2-7]{16}"),
        ("{40:base64}", r"[0-9A-Za-z+/]{40}"),
        ("{10:digits}:AA{33:base64url}", r"[0-9]{10}:AA[0-9A-Za-z_-]{33}"),
        ("{36:hex}", r"[0-9a-f]{36}"),
        ("{22:base62}", r"[0-9A-Za-z]{22}"),
    ],
)
def test_shapes_of_known_tokens(shape: str, pattern: str) -> None:
    made = {make_decoy(shape, secrets.randbelow) for _ in range(20)}
    assert len(made) == 20
    assert all(re.fullmatch(pattern, decoy) for decoy in made)


@pytest.mark.parametrize("name", ALPHABETS)
def test_every_letter_of_an_alphabet_comes_up_and_no_other(name: str) -> None:
    source = random.Random(7)
    made = "".join(make_decoy(f"{{64:{name}}}", source.randrange) for _ in range(60))
    assert set(made) == set(ALPHABETS[name])
    assert len(set(ALPHABETS[name])) == len(ALPHABETS[name])


def test_check_characters_are_those_that_github_publishes() -> None:
    """A token whose check characters are public; made from its random part, so that no scanner takes this for one."""
    letters = ALPHABETS["base62"]
    given = iter([letters.index(c) for c in "zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ"])
    assert make_decoy("x_{30}{crc32}", lambda _: next(given)).endswith("0mLq17")


def test_check_characters_are_over_what_is_random_since_the_last_text() -> None:
    one = make_decoy("a_{16}-{16}{crc32}", lambda _: 0)
    other = make_decoy("b-{16}{crc32}", lambda _: 0)
    assert one[-6:] == other[-6:]
    assert make_decoy("b-{16}{crc32}", lambda n: n - 1)[-6:] != other[-6:]


@pytest.mark.parametrize(
    "shape",
    [
        *(
            "",
            "ghp_",
            "{15}",
            "ghp_{x}{20}",
            "a b{20}",
            "{20}\n",
            "{600}",
            "é{20}",
            "{{20}}",
            "{20}'",
            "{20:}",
            "{:hex}",
        ),
        *("{20:latin}", "{16:digits}", "{15:hex}", "{crc32}", "{16:hex}{crc33}", "jwt{15}", "{508}{crc32}", "{20:JWT}"),
    ],
)
def test_a_shape_that_makes_no_decoy_is_refused(shape: str) -> None:
    with pytest.raises(ShapeError) as caught:
        check_shape(shape)
    assert caught.value.hint


def parts(token: str) -> tuple[dict[str, object], dict[str, object], bytes]:
    head, claims, signature = token.split(".")
    decoded = [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in (head, claims, signature)]
    return json.loads(decoded[0]), json.loads(decoded[1]), decoded[2]


def test_a_token_can_be_read_and_is_of_no_use() -> None:
    claims = {"sub": "agent", "https://x.example/auth": {"account_id": "a-1"}}
    one, other = (make_decoy(JWT, secrets.randbelow, json.dumps(claims)) for _ in range(2))
    head, said, signature = parts(one)
    assert head == {"alg": "RS256", "typ": "JWT"}
    assert said.items() >= claims.items()
    assert said["exp"] == 4102444800
    assert len(signature) == 256
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", one)
    assert one != other
    assert parts(other)[1]["jti"] != said["jti"]


def test_claims_may_say_their_own_expiry_and_nothing_takes_the_run_out_of_it() -> None:
    _, said, _ = parts(make_decoy(JWT, secrets.randbelow, '{"exp":1,"jti":"mine"}'))
    assert said["exp"] == 1
    assert said["jti"] != "mine"


def test_claims_are_bounded() -> None:
    check_claims('{"a":"' + "x" * 2000 + '"}')
    with pytest.raises(ShapeError):
        check_claims('{"a":"' + "x" * 2048 + '"}')


def shaped(text: str) -> str:
    return changed('{ env = "GITHUB_TOKEN", shape = "ghp_{36}" }', f'{{ env = "GITHUB_TOKEN", {text} }}')


def test_a_policy_gives_claims_to_a_token() -> None:
    policy = load(
        shaped('shape = "jwt", claims = { sub = "a", groups = ["x"], level = 3, on = true, deep = { k = 1.5 } }')
    )
    placeholder = policy.bindings["github"].placeholder
    assert placeholder
    assert json.loads(placeholder.claims) == {"sub": "a", "groups": ["x"], "level": 3, "on": True, "deep": {"k": 1.5}}
    assert parts(make_decoy(placeholder.shape, secrets.randbelow, placeholder.claims))[1]["sub"] == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('shape = "ghp_{36}", claims = { a = 1 }', "beside the shape"),
        ('shape = "jwt", claims = { a = 2020-01-01 }', "date"),
        ('shape = "jwt", claims = { a = nan }', "JSON does not have"),
        ('shape = "jwt", claims = "x"', "a table"),
        (f'shape = "jwt", claims = {{ a = "{"x" * 2100}" }}', "at most 2048"),
    ],
)
def test_claims_that_make_no_token_are_faults(text: str, said: str) -> None:
    assert said in problems(shaped(text))["binding.github.placeholder.claims"].message
