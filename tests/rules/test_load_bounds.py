"""Policies that nobody would write, and some that a generator would: what a load costs grows with the file alone."""

import difflib
import tracemalloc
from collections.abc import Callable

import pytest

from rules import load_refs
from rules.load import load_policy
from rules.problems import PolicyError
from rules.registries import clients_of
from rules.tables import MAX_PROBLEMS, closest
from tests.rules.test_reach import Counted

HEAD = "version = 1\n"
SECRET = '[secret.s]\nsource = "env:S"\n[secret.t]\nsource = "env:T"\n'
HOST = '[endpoint.e]\nhost = "a.example.org"\n'
ALLOW = '[[endpoint.{0}.allow]]\nid = "r"\nmethods = ["GET"]\npaths = ["/a"]\n'


def problems(text: str) -> list[str]:
    try:
        load_policy(text.encode(), packs={}, base_dir="/")
    except PolicyError as fault:
        return [f"{p.where}: {p.message}" for p in fault.problems]
    return []


def peak(call: Callable[[], object]) -> int:
    """The most bytes that Python held during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


DEEP = "a." * 4000  # tomllib keeps each prefix: 60 MB and more


@pytest.mark.parametrize("first", ["", '"\\"".', '"\\\\".', '"\\u0041".', "'\\'."])
def test_no_key_is_so_deep_that_it_takes_the_memory(first: str) -> None:
    data = f"{HEAD}{first}{DEEP}b = 1\n".encode()
    assert "more than 8 parts" in problems(data.decode())[0]
    assert peak(lambda: problems(data.decode())) < 8 << 20


def test_who_asks_for_the_clients_of_a_file_reads_it_within_the_same_bounds() -> None:
    data = f'{HEAD}[endpoint.e]\nhost_from = "npm"\n{DEEP}b = 1\n'.encode()
    assert peak(lambda: clients_of(data)) < 8 << 20
    assert clients_of(data) == ()
    assert clients_of(data.replace(DEEP.encode(), b"")) == ("npm",)


def test_a_byte_order_mark_is_named() -> None:
    assert "byte order mark" in problems("\ufeff" + HEAD)[0]


def test_of_thousands_of_wrong_names_those_that_are_told_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = difflib.get_close_matches

    def counted(word: str, words: list[str], n: int, cutoff: float) -> list[str]:
        looked.append(len(words))
        return real(word, words, n=n, cutoff=cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    hosts = "".join(f'[endpoint.e{i}]\nhost = "h{i}.example.org"\n' for i in range(1500))
    wrong = ", ".join(f'"e{i}x"' for i in range(1500))
    found = problems(f"{HEAD}{hosts}[role.r]\nendpoints = [{wrong}]\n")
    assert len(found) == MAX_PROBLEMS == len(looked)
    assert max(looked) <= 500


def test_a_word_among_thousands_is_still_found_where_it_begins_alike() -> None:
    known = [f"{letter}-rule-{i}" for i in range(400) for letter in "abcd"]
    assert closest("b-rule-1x", known).startswith('did you mean "b-rule-1')
    assert closest("zz", known) == ""
    assert closest("zz", known[:3]).startswith("one of: ")


def bound(count: int, *, shape: str, decoy: str = "", env: str = "TOKEN", secret: str = "s") -> tuple[str, str]:
    """So many endpoints with a binding each; `decoy`, `secret` and `env` are those of the last."""
    text, names = "", []
    for i in range(count):
        last = i == count - 1
        text += f'[endpoint.e{i}]\nhost = "h{i}.example.org"\n{ALLOW.format(f"e{i}")}'
        text += f'[binding.b{i}]\nsecret = "{secret if last else "s"}"\nendpoint = "e{i}"\nrules = ["r"]\n'
        text += (
            f'place = "header:authorization"\nmode = "placeholder"\nplaceholder.env = "{env if last else "TOKEN"}"\n'
        )
        text += f'placeholder.shape = "{decoy if last and decoy else shape}"\n'
        names.append(f'"b{i}"')
    return text, f"[role.r]\nbindings = [{', '.join(names)}]\n"


def test_one_decoy_for_hundreds_of_hosts_loads_and_another_one_among_them_is_seen() -> None:
    many, role = bound(400, shape="x{36}")
    assert problems(f"{HEAD}{SECRET}{many}{role}") == []
    for change in ({"decoy": "y{36}"}, {"secret": "t"}):
        other, role = bound(400, shape="x{36}", **change)
        (found,) = problems(f"{HEAD}{SECRET}{other}{role}")
        assert "b0 and b399 put their placeholder into one variable (TOKEN)" in found
    apart, role = bound(400, shape="x{36}", decoy="y{36}", env="OTHER_TOKEN")
    assert problems(f"{HEAD}{SECRET}{apart}{role}") == []


@pytest.mark.parametrize(("count", "faults"), [(32, 0), (33, 1)])
def test_one_request_has_so_many_secrets(count: int, faults: int) -> None:
    text = "".join(
        f'[binding.b{i}]\nsecret = "s"\nendpoint = "e"\nrules = ["r"]\nplace = "header:x-{i}"\n' for i in range(count)
    )
    names = ", ".join(f'"b{i}"' for i in range(count))
    found = problems(f"{HEAD}{SECRET}{HOST}{ALLOW.format('e')}{text}[role.r]\nbindings = [{names}]\n")
    assert len(found) == faults
    assert all("got 33 for the rule" in each for each in found)


def test_endpoints_of_one_target_are_each_held_against_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, (load_refs, "_one_target"))
    hosts = "".join(f'[endpoint.e{i}]\nhost = "a.example.org"\n' for i in range(300))
    role = f"[role.r]\nendpoints = [{', '.join(f'"e{i}"' for i in range(300))}]\n"
    assert problems(HEAD + hosts + role) == []
    assert counted.calls == 299
    (found,) = problems(HEAD + hosts + "dial_port = 99\n" + role)
    assert "e0 and e299 are one target" in found


def test_opaque_endpoints_of_one_port_are_each_held_against_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, (load_refs, "_one_target"))
    opaque = 'protocol = "tcp"\nlisten = 5432\n'
    hosts = "".join(f'[endpoint.e{i}]\nhost = "h{i}.example.org"\n{opaque}' for i in range(150))
    mixed = '[endpoint.plain]\nhost = "p.example.org"\nport = 5432\n' + hosts
    role = f'[role.r]\nendpoints = ["plain", {", ".join(f'"e{i}"' for i in range(150))}]\n'
    found = problems(HEAD + mixed + role)
    assert counted.calls == len(found) == 150
    assert any("plain" in each for each in found)


@pytest.mark.parametrize(
    ("paths", "faults"),
    [
        (("~/a", "~/ab", "~/b/c"), 0),
        (("~/a", "~/a/b"), 1),
        (("~/a/b", "~/a"), 1),
        (("~/a/", "~/a"), 2),
        (("~/a", "~/a/b/c/d"), 1),
    ],
)
def test_state_that_lies_below_other_state_is_refused(paths: tuple[str, ...], faults: int) -> None:
    text = f"{HEAD}[role.r]\nstate = [{', '.join(f'"{path}"' for path in paths)}]\n"
    assert len(problems(text)) == faults


@pytest.mark.parametrize(
    ("paths", "faults"),
    [(("~/a", "~/ab"), 0), (("~/a", "~/a"), 1), (("~/a", "~/a/b"), 1), (("~/a/b", "~/a"), 1), (("~/a/b/c", "~/a"), 1)],
)
def test_a_seed_below_another_is_refused(paths: tuple[str, ...], faults: int) -> None:
    seeds = "".join(f'[[agent.x.seed]]\npath = "{path}"\ntext = "x"\n' for path in paths)
    assert len(problems(f"{HEAD}[agent.x]\n{seeds}")) == faults


@pytest.mark.parametrize("key", ["hide", "readonly"])
@pytest.mark.parametrize(
    ("pattern", "faults"),
    [
        ("*.p?m", 0),
        ("a b/c", 0),
        ("!x", 1),
        ("x!", 0),
        ("*.[pk]ey", 1),
        ("{a,b}.key", 1),
        ("a\\\\*", 1),
        ("?slug?/x", 0),
    ],
)
def test_marks_of_a_gitignore_that_mean_nothing_here_are_refused(key: str, pattern: str, faults: int) -> None:
    """Read as themselves they would hide nothing of what is meant."""
    found = problems(f'{HEAD}[role.r]\n{key} = ["{pattern}"]\n')
    assert len(found) == faults
    assert all("* and ? alone" in each for each in found)


def test_what_is_shown_is_named_as_it_is() -> None:
    assert problems(f'{HEAD}[role.r]\nshow = ["pages/[id]/.env"]\n') == []


@pytest.mark.parametrize(("passed", "faults"), [("S", 1), ("T", 1), ("LANG", 0)])
def test_a_variable_that_a_secret_comes_from_is_not_passed(passed: str, faults: int) -> None:
    """The jail would have what the gateway keeps from it. Whoever uses the secret: here nobody does."""
    found = problems(f'{HEAD}{SECRET}[role.r]\nenv = ["TERM", "{passed}"]\n')
    assert len(found) == faults
    assert all("role.r.env[1]" in each and "the jail would have its value" in each for each in found)
