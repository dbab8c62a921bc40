import pytest

from rules.problems import PolicyError
from rules.tree_policy import check_tree_policy
from tests.rules.policies import load

HARMLESS = """\
version = 1
[endpoint.e]
host = "a.example.org"
address = ["93.184.215.14"]
[[endpoint.e.allow]]
id = "r"
methods = ["GET"]
paths = ["/**"]
[role.r]
endpoints = ["e"]
workdir = "write"
env = ["TERM"]
deadline = "1h"
readonly = ["deploy/"]
hide = ["*.x"]
"""
ROLE = "[role.r]\n"
BINDING = (
    '[secret.s]\nsource = "env:S"\n[binding.b]\nsecret = "s"\nendpoint = "e"\nrules = ["r"]\nplace = "header:x-key"\n'
)


def test_what_reaches_for_nothing_of_the_user_passes() -> None:
    check_tree_policy(load(HARMLESS), "")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (HARMLESS + '[secret.s]\nsource = "env:HOME"\n', ["secret.s"]),
        (HARMLESS.replace(ROLE, BINDING + ROLE), ["secret.s", "binding.b"]),
        (HARMLESS.replace("[[end", 'ca = "x.pem"\n[[end'), ["endpoint.e.ca"]),
        (HARMLESS.replace('"93.184.215.14"', '"10.0.0.1"'), ["endpoint.e.address"]),
        (HARMLESS.replace('"93.184.215.14"', '"127.0.0.1"'), ["endpoint.e.address"]),
        (HARMLESS.replace('"93.184.215.14"', '"10.0.0.0/8"'), ["endpoint.e.address"]),
        (HARMLESS + 'read = ["~/.ssh/config"]\n', ["role.r.read"]),
        (HARMLESS + 'tools = ["~/bin"]\n', ["role.r.tools"]),
        (HARMLESS + 'state = ["~/.config/gh"]\n', ["role.r.state"]),
        (HARMLESS + 'show = [".env"]\n', ["role.r.show"]),
        (HARMLESS + "publish = [3000]\n", ["role.r.publish"]),
        (HARMLESS.replace("[endpoint.e]", '[proxy.p]\nhost = "p.example.org"\nport = 1\n[endpoint.e]'), ["proxy.p"]),
        (HARMLESS + "allow_debug = true\n", ["role.r.allow_debug"]),
        (HARMLESS + "allow_userns = true\n", ["role.r.allow_userns"]),
    ],
)
def test_what_reaches_for_the_user_is_named(text: str, where: list[str]) -> None:
    with pytest.raises(PolicyError) as caught:
        check_tree_policy(load(text), "elsewhere")
    assert [problem.where for problem in caught.value.problems] == where
    assert {problem.hint for problem in caught.value.problems} == {"elsewhere"}
