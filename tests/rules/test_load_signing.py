"""The keys of place "sigv4" and of place "certificate": what loads, and what each fault says."""

import pytest

from rules.ceiling import narrow
from rules.load_signing import AWS_DECOY
from rules.policy import PlaceKind, Signing
from rules.problems import PolicyError
from tests.rules.policies import load, problems

BASE = """\
version = 1
[secret.s]
source = "env:S"
[endpoint.e]
host = "s3.eu-central-1.amazonaws.com"
[[endpoint.e.allow]]
id = "r"
methods = ["GET"]
paths = ["/a"]
[binding.b]
secret = "s"
endpoint = "e"
rules = ["r"]
"""
AWS = BASE + 'place = "sigv4"\n'
CERTIFICATE = BASE + 'place = "certificate"\n'


def test_signing_has_defaults() -> None:
    binding = load(AWS).bindings["b"]
    assert (binding.place, binding.header, binding.sign) == (PlaceKind.SIGV4, "authorization", Signing())
    assert binding.placeholder is None
    assert load(AWS + 'mode = "placeholder"\n').bindings["b"].placeholder == AWS_DECOY


def test_signing_is_read() -> None:
    text = AWS + 'sign = { service = "bedrock", region = "eu-west-1", max = "8MiB" }\n'
    assert load(text).bindings["b"].sign == Signing(service="bedrock", region="eu-west-1", max=8 << 20)


def test_a_certificate_writes_no_header() -> None:
    binding = load(CERTIFICATE).bindings["b"]
    assert (binding.place, binding.header, binding.format, binding.sign) == (PlaceKind.CERTIFICATE, "", "", None)


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        (AWS + 'format = "{secret}"\n', "binding.b.format", "take it out"),
        (AWS + 'sign = { servise = "s3" }\n', "binding.b.sign.servise", 'did you mean "service"?'),
        (AWS + 'sign = { service = "S3" }\n', "binding.b.sign.service", "lower-case"),
        (AWS + 'sign = { region = "eu west" }\n', "binding.b.sign.region", "lower-case"),
        (AWS + "sign = { operations = [] }\n", "binding.b.sign.operations", "at least one"),
        (AWS + 'sign = { operations = ["*Item"] }\n', "binding.b.sign.operations", "GetCallerIdentity"),
        (AWS + 'sign = { max = "8 mb" }\n', "binding.b.sign.max", 'write "8MiB"'),
        (AWS + 'sign = { max = "1GiB" }\n', "binding.b.sign.max", 'write "32MiB"'),
        (BASE + 'place = "basic"\nformat = "u:{secret}"\nsign = {}\n', "binding.b.sign", 'place = "sigv4"'),
        (CERTIFICATE + 'format = "{secret}"\n', "binding.b.format", "take it out"),
        (CERTIFICATE + "sign = {}\n", "binding.b.sign", 'place is "certificate"'),
        (
            CERTIFICATE + 'mode = "placeholder"\nplaceholder = { env = "T", shape = "x{36}" }\n',
            "binding.b.mode",
            'write mode = "overwrite"',
        ),
        (BASE + 'place = "sigv2"\n', "binding.b.place", 'did you mean "sigv4"?'),
    ],
)
def test_faults(text: str, where: str, part: str) -> None:
    found = problems(text)
    assert list(found) == [where]
    assert part in str(found[where])


TWO = (
    AWS
    + """\
mode = "placeholder"
[endpoint.f]
host = "sqs.eu-central-1.amazonaws.com"
[[endpoint.f.allow]]
id = "r"
methods = ["GET"]
paths = ["/a"]
[binding.c]
secret = "s"
endpoint = "f"
rules = ["r"]
place = "sigv4"
mode = "placeholder"
"""
)


def test_one_pair_of_keys_serves_all_services_of_one_secret() -> None:
    role = '[role.r]\nbindings = ["b", "c"]\n'
    assert problems(TWO + role) == {}
    other = TWO.replace('"s"\nendpoint = "f"', '"t"\nendpoint = "f"') + '[secret.t]\nsource = "env:T"\n'
    assert "one variable (AWS_ACCESS_KEY_ID)" in problems(other + role)["role.r.bindings"].message


def test_the_ceiling_bounds_what_is_signed() -> None:
    outer = AWS + 'sign = { service = "s3", operations = ["Get*", "List*"] }\n[role.r]\nbindings = ["b"]\n'

    def under(sign: str) -> list[str]:
        text = outer.replace('service = "s3", operations = ["Get*", "List*"]', sign)
        try:
            narrow(load(text), load(outer))
        except PolicyError as fault:
            return [problem.where for problem in fault.problems]
        return []

    assert under('service = "s3", operations = ["Get*"]') == []
    assert under('service = "s3", region = "eu-central-1", operations = ["Get*"]') == []
    for wider in (
        'operations = ["Get*"]',
        'service = "iam", operations = ["Get*"]',
        'service = "s3"',
        'service = "s3", operations = ["Put*"]',
        'service = "s3", operations = ["Get*"], copy = true',
    ):
        assert under(wider) == ["binding.b.sign"], wider


def test_answers_are_searched_where_the_target_has_the_secret() -> None:
    aws = load(AWS).bindings["b"]
    asked = load(AWS + "response = { scrub = true }\n").bindings["b"]
    header = load(BASE + 'place = "header:authorization"\n').bindings["b"]
    assert (aws.scrub, asked.scrub, header.scrub) == (False, True, True)
