"""Proposals into the text of a policy: what was there stays byte for byte, and an edit that says else is refused."""

import os
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from credgate.commands.init import TEMPLATE
from credgate.policyedit import PolicyNotEdited, edited, replace_policy
from rules.asked import Asked, Proposal


def proposal(endpoint: str = "new", *, new: bool = True, path: str = "/a", scheme: str = "https") -> Proposal:
    port = 443 if scheme == "https" else 8080
    asked = Asked(reason="no_rule", method="GET", scheme=scheme, host="new.example.org", port=port, path=path)
    return Proposal(
        endpoint=endpoint, new=new, scheme=scheme, host="new.example.org", port=port, id="learned-1", methods=("GET",),
        path=path, query=("q",), encoded_slash="%2f" in path, asked=(asked,),
    )  # fmt: skip


LISTS = [
    '[role.dev]\nendpoints = ["a"]\n',
    '[role.dev]\nendpoints = ["a"]  # those ] of mine\n',
    '[role.dev]\nendpoints = [\n  "a", # one ]\n  "b",\n]\n',
    "[role.dev]\nendpoints = []\nenv = []\n",
    "[role.dev]  # no list\n",
    "[role.dev]",
    "[ role . 'dev' ]\n",
    '[role.other]\nendpoints = ["a"]\n[role.dev]\nendpoints = ["a"]\n[role.last]\nendpoints = ["a"]\n',
    'role.dev.endpoints = ["a"]\n',
    '[role.dev]\r\nendpoints = ["a"]\r\n',
    "# [role.dev]\n# endpoints = []\n[role.dev]\nworkdir = 'read'\n",
]


@pytest.mark.parametrize("text", [*LISTS, TEMPLATE])
def test_a_new_endpoint_and_its_place_in_the_role(text: str) -> None:
    before = tomllib.loads(text)
    result = edited(text, "dev", [proposal(), proposal(scheme="https", path="/p%2fq")])
    after = tomllib.loads(result)
    assert after["role"]["dev"].pop("endpoints") == [*before["role"]["dev"].pop("endpoints", []), "new"]
    new = after["endpoint"].pop("new")
    assert new["host"] == "new.example.org"
    assert [rule["paths"] for rule in new["allow"]] == [["/a"], ["/p%2fq"]]
    assert {**after, "endpoint": after["endpoint"] or None} == {**before, "endpoint": before.get("endpoint")}
    kept = iter(result)
    assert all(char in kept for char in text)  # nothing of the text was taken out


def test_a_rule_alone_leaves_the_rest_of_the_text_alone() -> None:
    text = "[endpoint.new] # mine\nhost = 'x.example'\n[role.dev]\nendpoints = ['new']"
    assert edited(text, "dev", [proposal(new=False)]).startswith(text + "\n")


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("role = { dev = {} }\n", True),  # an inline table is closed
        ("[role]\ndev = { endpoints = [] }\n", False),
        ("[endpoint.new]\nhost = 'x.example'\nallow = []\n[role.dev]\n", False),  # a list of its own is closed too
        ("endpoint = { new = {} }\n[role.dev]\n", False),
    ],
)
def test_a_text_that_can_not_be_appended_to_is_refused(text: str, new: bool) -> None:
    if text.startswith("[role]"):  # the control: here a list is found, in another spelling
        assert tomllib.loads(edited(text, "dev", [proposal()]))["role"]["dev"]["endpoints"] == ["new"]
        return
    with pytest.raises(PolicyNotEdited) as caught:
        edited(text, "dev", [proposal(new=new)])
    assert caught.value.hint


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.sampled_from([*LISTS[:5], "# endpoints = [", "x = ']'\n", "[a]\nendpoints = ['z']\n", "\n"]), max_size=3
    ),
    st.booleans(),
)
def test_whatever_the_text_the_edit_says_what_is_wanted_or_is_refused(parts: list[str], new: bool) -> None:
    text = "\n".join(parts)
    try:
        before = tomllib.loads(text)
        result = edited(text, "dev", [proposal(new=new)])
    except (PolicyNotEdited, tomllib.TOMLDecodeError, KeyError):
        return
    after = tomllib.loads(result)
    if new:
        assert after["role"]["dev"].pop("endpoints")[-1] == "new"
        before["role"]["dev"].pop("endpoints", None)
    after["endpoint"]["new"]["allow"].pop()
    assert after.pop("endpoint")
    assert after == before


def test_replace_keeps_the_mode_and_goes_through_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    replace_policy(link, b"old", b"new")
    assert (real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (b"new", 0o640)
    assert link.is_symlink()
    assert os.listdir(tmp_path) in (["real.toml", "link.toml"], ["link.toml", "real.toml"])


def test_a_file_that_was_changed_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"newer")
    with pytest.raises(PolicyNotEdited, match="changed meanwhile"):
        replace_policy(path, b"old", b"new")
    assert path.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["p.toml"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyNotEdited):
        replace_policy(tmp_path / "none", b"", b"new")
