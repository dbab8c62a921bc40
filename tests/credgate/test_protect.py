"""From trees as they are found (repositories below, links, submodules, second names) to what is held and hidden."""

import os
from pathlib import Path
from typing import Any

import pytest

from credgate import protect
from credgate.protect import ProtectError, named, protection
from credgate.treelook import Instant, TreeLook
from credgate.treewalk import WalkError, walk
from jail.plan import Protection
from rules.islands import RESERVED
from rules.policy import Role


class World:
    """A work tree, and files in it by their relative paths."""

    def __init__(self, root: Path) -> None:
        self.tree = root / "work"
        self.home = root / "home"
        self.tree.mkdir()
        self.home.mkdir()

    def file(self, name: str, text: str = "x\n") -> Path:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def git(self, name: str, config: str = "") -> None:
        """A git directory as git makes it, but for what nothing here looks at."""
        for folder in ("objects", "refs", "hooks"):
            (self.tree / name / folder).mkdir(parents=True, exist_ok=True)
        self.file(f"{name}/HEAD", "ref: refs/heads/main\n")
        self.file(f"{name}/config", f"[core]\n\tbare = false\n{config}")

    def look(self, **role: Any) -> TreeLook:
        look = TreeLook(str(self.tree), Role(name="dev", **role))
        for seen in walk([str(self.tree)]):
            look.visit(*seen)
        return look

    def found(self, *, write: bool = True, **role: Any) -> Protection:
        made = Role(name="dev", **role)
        return protection(self.look(**role), made, str(self.home), write=write)

    def names(self, paths: "tuple[str, ...] | list[str]") -> set[str]:
        return {str(Path(path).relative_to(self.tree)) for path in paths}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Path(os.path.realpath(tmp_path)))


def test_an_empty_tree_has_its_directories_reserved(world: World) -> None:
    found = world.found()
    assert world.names([path for path, _ in found.reserved]) == {*RESERVED, ".github"}
    assert world.names(found.islands) == set(RESERVED)
    assert world.names(found.pins) == {".github"}
    assert found.hidden == ()
    assert list(world.tree.iterdir()) == []  # nothing is made by looking


def test_a_read_only_tree_has_no_islands_and_hides_all_the_same(world: World) -> None:
    world.git(".git")
    world.file("a/.env")
    found = world.found(write=False)
    assert (found.islands, found.pins, found.reserved) == ((), (), ())
    assert world.names([h.path for h in found.hidden]) == {"a/.env"}


def test_a_repository_and_one_below(world: World) -> None:
    world.git(".git")
    world.git("vendor/sub/.git")
    world.file("vendor/sub/.envrc")
    world.file("vendor/.envrc")  # not at a root: the report at the end names it
    found = world.found()
    islands, pins = world.names(found.islands), world.names(found.pins)
    assert {
        f"{git}/{name}" for git in (".git", "vendor/sub/.git") for name in ("hooks", "config", "commondir")
    } < islands
    assert "vendor/sub/.envrc" in islands
    assert "vendor/.envrc" not in islands
    assert pins == {".git", "vendor", "vendor/sub", "vendor/sub/.git", ".github"}
    made = {str(Path(path).relative_to(world.tree)): text for path, text in found.reserved}
    assert made["vendor/sub/.git/commondir"] == ".\n"
    assert ".git/hooks" not in made


def test_submodules_worktrees_bare_ones_and_a_git_that_is_a_file(world: World) -> None:
    world.git(".git")
    world.git(".git/modules/lib")
    world.git(".git/modules/lib/modules/deep")
    world.git("mirror.git")
    world.file("lib/.git", "gitdir: ../.git/modules/lib\n")
    world.file(".git/worktrees/x/HEAD")
    world.file(".git/worktrees/x/commondir", "../..\n")
    world.file("begun/.git/config")
    islands = world.names(world.found().islands)
    wanted = {f"{d}/config" for d in (".git/modules/lib", ".git/modules/lib/modules/deep", "mirror.git", "begun/.git")}
    assert wanted | {"lib/.git", ".git/worktrees/x/commondir", "mirror.git/hooks"} <= islands


def test_configuration_of_its_own_for_each_worktree(world: World) -> None:
    world.git(".git")
    assert ".git/config.worktree" not in world.names(world.found().islands)
    world.git(".git", "[extensions]\n\tworktreeConfig = true\n")
    assert ".git/config.worktree" in world.names(world.found().islands)


def test_what_git_is_led_to(world: World) -> None:
    world.git(
        ".git", "[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../shared.conf\n[alias]\n\tx = !sh tools/x.sh\n"
    )
    world.file("tools/hooks/pre-commit")
    world.file("tools/x.sh")
    world.file("tools/other.sh")
    world.file("shared.conf", "[core]\n\tfsmonitor = tools/watch.sh\n[include]\n\tpath = shared.conf\n")  # and itself
    world.file("tools/watch.sh")
    (world.home / ".gitconfig").write_text("[core]\n\tpager = ./page.sh | less\n\teditor = /bin/ed\n")
    world.file("page.sh")
    found = world.found()
    islands = world.names(found.islands)
    assert {"tools/hooks", "tools/x.sh", "tools/watch.sh", "shared.conf", "page.sh"} <= islands
    assert "tools/other.sh" not in islands
    assert "tools" in world.names(found.pins)


def test_links_are_held_and_so_is_what_they_lead_to_in_the_tree(world: World) -> None:
    world.git("real-git")
    (world.tree / ".git").symlink_to("real-git")
    world.file("ci/github/workflows/x.yml")
    (world.tree / ".github").symlink_to("ci/github")
    (world.tree / ".vscode").symlink_to("/nonexistent/outside")
    (world.tree / ".idea").symlink_to("loop")
    (world.tree / "loop").symlink_to(".idea")
    (world.tree / ".claude").symlink_to("one/../one")  # each link on the way
    (world.tree / "one").symlink_to("two")
    (world.tree / "two").symlink_to(world.tree / "there")
    (world.tree / ".codex").symlink_to(f"../{world.tree.name}/there")  # out and in again
    (world.tree / "there").mkdir()
    found = world.found()
    islands = world.names(found.islands)
    assert {".git", "real-git/config", "real-git/hooks", ".github", "ci/github/workflows"} <= islands
    assert {".vscode", ".idea", ".claude", "one", "two", ".codex", "there"} <= islands
    assert "real-git" not in islands
    assert {"ci", "ci/github", "real-git"} <= world.names(found.pins)
    assert "/nonexistent/outside" not in found.islands


def test_a_hidden_link_hides_what_it_leads_to(world: World) -> None:
    world.file("config/production")
    (world.tree / ".env").symlink_to("config/production")
    (world.tree / "x.pem").symlink_to("/etc/hostname")
    assert world.names([h.path for h in world.found().hidden]) == {"config/production"}


def test_second_names_are_found(world: World) -> None:
    secret = world.file(".env", "A=1\n")
    os.link(secret, world.tree / "notes.txt")
    hook = world.file(".husky/pre-commit")
    (world.tree / "tools").mkdir()
    os.link(hook, world.tree / "tools/hook.sh")
    world.file("single.txt")
    found = world.found()
    assert world.names([h.path for h in found.hidden]) == {".env", "notes.txt"}
    assert "tools/hook.sh" in world.names(found.islands)
    assert "tools" in world.names(found.pins)


def test_keys_are_told_from_certificates(world: World) -> None:
    world.file("a.pem", "-----BEGIN CERTIFICATE-----\n")
    world.file("b.pem", "-----BEGIN PRIVATE KEY-----\n")
    os.mkfifo(world.tree / "c.key")
    found = world.found()
    assert world.names([h.path for h in found.hidden]) == {"b.pem", "c.key"}


def test_a_roles_own(world: World) -> None:
    world.file("deploy/x.sh")
    world.file("a/b.p12x")
    world.file("private/x")
    world.file("t/.env")
    role = {"readonly": ("deploy/", "fresh/"), "hide": ("*.p12x", "private/"), "show": ("t/.env",)}
    found = world.found(**role)
    assert {"deploy", "fresh"} <= world.names(found.islands)
    assert str(world.tree / "fresh") in dict(found.reserved)
    assert {(Path(h.path).name, h.directory) for h in found.hidden} == {("b.p12x", False), ("private", True)}
    look = world.look(**role)
    assert named(look, found)[0] == ["private/", "a/b.p12x"]


def test_covers_have_size_and_time_and_git_is_told_to_pass_them_over(world: World) -> None:
    world.git(".git")
    world.git("below/.git")
    path = world.file("below/[x] y/.env", "12345")
    os.utime(path, (5, 5))
    world.file("line\nbreak/.env")
    found = world.found()
    (cover,) = [h for h in found.hidden if "below" in h.path]
    assert (cover.size, cover.mtime) == (5, 5_000_000_000)
    assert found.ignore == ("/\\[x\\]\\ y/.env",)


def test_too_much_to_mount_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        world.file(f"d{number}/.env")
    world.found()  # control
    monkeypatch.setattr(protect, "MOST", 10)
    with pytest.raises(ProtectError, match="places to protect or hide, at most 10") as caught:
        world.found()
    assert caught.value.exit_status == 125


def test_a_clock_that_is_set_back_takes_the_moment_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Instant.now()
    assert 0 <= moment.ns - moment.still() < 10**8
    behind = Instant(moment.ns - 3600 * 10**9, moment._ahead - 3600 * 10**9)
    monkeypatch.setattr(Instant, "now", lambda: behind)
    assert moment.still() == moment.ns - 3600 * 10**9


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter it all the same")
@pytest.mark.parametrize("name", ["closed/.env", "closed/deep/.env", "closed/.git/HEAD"])
def test_a_directory_that_was_closed_to_hide_what_is_in_it_is_refused(world: World, name: str) -> None:
    """An agent that closes one for our look could open it again inside."""
    world.file(name)
    world.found()  # control
    (world.tree / "closed").chmod(0o444)
    try:
        with pytest.raises(WalkError, match="can't be looked through"):
            world.found()
    finally:
        (world.tree / "closed").chmod(0o755)
