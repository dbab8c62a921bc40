"""What may be a work tree, a bound tree and a value that passes, on trees that the test makes."""

import os
from pathlib import Path

import pytest

from credgate import prepare
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.prepare import Asked, Person, PrepareError
from jail.landlock import MAKE_FIFO, MAKE_SOCK
from rules.policy import Role, Workdir

GOOD = {
    "argv": ["sh"],
    "cwd": "/work",
    "env": {"A": "b"},
    "policy": "",
    "role": "",
    "workdir": "",
    "read_only": False,
    "env_names": [],
}


class World:
    """A home with a project, our state and our configuration in it."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.work = self.home / "work"
        self.places = Places(state=self.home / ".local/state/credgate", config=self.home / ".config/credgate")
        for path in (self.work, self.places.state / "ledger", self.places.config):
            path.mkdir(parents=True)
        self.person = Person(uid=os.geteuid(), gid=os.getegid(), name="ann", home=str(self.home))

    def tree(
        self, workdir: Path | str = "", *, role: Workdir = Workdir.READ, read_only: bool = False
    ) -> tuple[str, bool]:
        asked = Asked.parse({**GOOD, "cwd": str(self.work), "workdir": str(workdir), "read_only": read_only})
        return prepare.work_tree(asked, Role(name="dev", workdir=role), self.person, self.places)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Path(os.path.realpath(tmp_path)))


# What was asked


def test_a_request_is_taken_as_it_is() -> None:
    asked = Asked.parse(GOOD, (4, 5))
    assert (asked.argv, asked.env, asked.groups) == (("sh",), {"A": "b"}, (4, 5))


@pytest.mark.parametrize(
    "change",
    [
        {"argv": "sh"[:0] or None},
        {"argv": [1]},
        {"argv": ["a\0b"]},
        {"env": ["A"]},
        {"env": {"A": 1}},
        {"cwd": None},
        {"workdir": "a\0b"},
        {"env_names": 3},
    ],
)
def test_a_request_of_another_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(PrepareError) as caught:
        Asked.parse({**GOOD, **change})
    assert (caught.value.code, caught.value.exit_status) == ("bad_request", 125)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_request_without_a_part_is_refused(name: str) -> None:
    with pytest.raises(PrepareError):
        Asked.parse({key: value for key, value in GOOD.items() if key != name})


def test_only_true_is_read_only() -> None:
    assert Asked.parse({**GOOD, "read_only": True}).read_only
    assert not Asked.parse({**GOOD, "read_only": "true"}).read_only


# The work tree


def test_the_current_directory_by_default(world: World) -> None:
    assert world.tree() == (str(world.work), False)


def test_writing_is_the_roles_to_allow_and_the_flags_to_narrow(world: World) -> None:
    assert world.tree(role=Workdir.WRITE) == (str(world.work), True)
    assert world.tree(role=Workdir.WRITE, read_only=True) == (str(world.work), False)


@pytest.mark.parametrize(
    "path",
    ["/", "/usr", "/usr/lib", "/proc/self/root", "{home}", "{home}/..", "{state}", "{state}/ledger", "{home}/.config",
     "{home}/.local", "{home}/link", "{home}/nothing", "{home}/work/../.local/state"],
)  # fmt: skip
def test_trees_that_are_refused(world: World, path: str) -> None:
    (world.home / "link").symlink_to(world.places.state)
    with pytest.raises(PrepareError) as caught:
        world.tree(path.format(home=world.home, state=world.places.state))
    assert caught.value.exit_status == 125
    assert caught.value.hint


def test_a_link_to_a_project_is_the_project(world: World) -> None:
    (world.home / "link").symlink_to(world.work)
    assert world.tree(world.home / "link")[0] == str(world.work)


# Bound trees


def test_a_tree_that_holds_the_home_is_too_wide(world: World) -> None:
    for tree in (world.home, world.home.parent, Path("/")):
        with pytest.raises(PrepareError, match="home"):
            prepare.refuse_wide(str(tree), world.person)
    prepare.refuse_wide(str(world.home / ".nvm"), world.person)  # control


@pytest.mark.parametrize("name", [".local", ".local/state/credgate/ledger/deeper", ".config/credgate", "."])
def test_a_tree_that_exposes_our_state(world: World, name: str) -> None:
    with pytest.raises(PrepareError) as caught:
        prepare.expose(os.path.normpath(world.home / name), world.places)
    assert caught.value.code == "tree_exposes_state"


def test_names_that_only_begin_alike_expose_nothing(world: World) -> None:
    prepare.expose(f"{world.places.state}-other", world.places)


def test_a_tree_that_a_group_alone_opens(world: World) -> None:
    facts = world.work.stat()
    other = Person(uid=facts.st_uid + 1, gid=facts.st_gid + 1, name="bea", home="/home/bea")
    world.work.chmod(0o750)
    with pytest.raises(PrepareError, match="group"):
        prepare.refuse_group_trees([str(world.work)], other, (facts.st_gid,))
    prepare.refuse_group_trees([str(world.work)], other, ())  # control: such a group was not kept
    world.work.chmod(0o755)
    prepare.refuse_group_trees([str(world.work)], other, (facts.st_gid,))  # control: everybody may


# Values


@pytest.mark.parametrize(("value", "passes"), [("plain", True), ("", True), ("ghp_" + "a1B2" * 9, False)])
def test_values_that_look_like_credentials(value: str, passes: bool) -> None:
    role = Role(name="dev", env=("BIRD",))
    if passes:
        prepare.check_values(role, {"BIRD": value})
        return
    with pytest.raises(PrepareError) as caught:
        prepare.check_values(role, {"BIRD": value})
    assert value not in caught.value.detail + caught.value.hint


# Landlock's trees


def rights(workdir: str) -> dict[str, int]:
    plan = prepare._landlock("/home/ann", workdir)
    rules = plan["rules"]
    assert isinstance(rules, list)
    return {path: access for path, access in rules if path != "/"}


@pytest.mark.parametrize("workdir", ["/home/ann/work", "/tmp/w", "/srv/work"])
def test_no_ancestor_of_a_writable_work_tree_lets_sockets_be_made(workdir: str) -> None:
    made = rights(workdir)
    above = [path for path in made if workdir == path or workdir.startswith(path + "/")]
    assert workdir in above
    assert all(made[path] & (MAKE_SOCK | MAKE_FIFO) == 0 for path in above)


def test_private_trees_elsewhere_take_sockets() -> None:
    made = rights("/home/ann/work")
    assert all(made[path] & MAKE_SOCK for path in ("/tmp", "/run", "/dev/shm"))
    assert rights("")["/home/ann"] & MAKE_SOCK  # nothing of the host's is writable there


def test_every_refusal_is_an_error_that_a_person_can_mend() -> None:
    assert issubclass(PrepareError, CredgateError)
