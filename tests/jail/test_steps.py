"""docs/jail.md lists the steps in the order of the code: read out of the code itself."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from credgate import session
from jail import pid1, workload

PAGE = Path(__file__).parents[2] / "docs/jail.md"


def documented(where: str) -> list[str]:
    """Names in the table's rows of `where`, in order."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [name for row in rows if row[1] == where for name in re.findall(r"`(\w+)`", row[2])]


def called(function: Callable[..., object]) -> Iterator[str]:
    """Names that a function uses (calls, or hands to a thread), in the order of its text."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    for node in sorted(used, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0)):
        yield node.attr if isinstance(node, ast.Attribute) else node.id


def in_order(wanted: list[str], found: list[str]) -> bool:
    left = iter(found)
    return all(name in left for name in wanted)


def test_pid1() -> None:
    steps = [*called(pid1.prepare)]
    at = steps.index("confine")
    steps[at : at + 1] = called(pid1.confine)
    wanted = documented("pid 1")
    assert len(wanted) > 10
    assert in_order(wanted, steps), (wanted, steps)
    ours = {"close_others", "bound_user_namespaces", "build_root", "bring_limits", "open_pty", "join_anonymous_session"}
    ours |= {"drop_all", "no_new_privs", "restrict", "load"}
    assert ours <= set(wanted)  # and none of ours is left out


def test_workload() -> None:
    wanted = documented("workload")
    assert wanted == ["until_look", "look_around", "until_go", "execute"]
    assert in_order(wanted, [*called(workload.run)])


def test_daemon() -> None:
    found = [*called(session.Session.stand)]
    for name in ("_read", "_confined_and_sealed", "_compared", "_judged"):
        at = found.index(name)
        found[at : at + 1] = called(getattr(session.Session, name))
    wanted = documented("daemon")
    assert wanted == ["confine", "look", "sealed", "tried", "read_back", "judge"]
    assert in_order(wanted, found)


def test_a_wrong_order_is_seen() -> None:
    assert not in_order(["b", "a"], ["a", "b"])
    assert not in_order(["a", "c"], ["a", "b"])
