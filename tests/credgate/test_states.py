"""Private copies of agents' own files: what enters, what comes back, what waits for a word; nothing is lost."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from credgate import copystore, stateenter, statereturn
from credgate.commands import apply as apply_command
from credgate.commands import diff as diff_command
from credgate.commands import discard as discard_command
from credgate.copylook import changes
from credgate.copystore import Copy
from credgate.paths import Places
from credgate.stateenter import StateError, bound, wanted
from credgate.statereturn import Back
from credgate.states import States
from jail.plan import JailSpec
from rules.agents import Agent, Seed
from rules.agentstate import AgentState, Data, Merge
from rules.policy import Role
from rules.scrub import Table

RUN = "r0123456789ab"
CWD = "/srv/my work"
SECRET = b"sk-real-0123456789abcdef"
AGENT = Agent(
    name="acme",
    state=("~/.acme", "~/.acme.json"),
    seeds=(Seed(path="~/.acme/settings.json", text='{"seeded": true}\n'),),
    data=(
        Data(path=".acme/projects/{project}/**", enter=True),
        Data(path=".acme/sessions/**", enter=True, holds='"cwd":"{cwd}"'),
        Data(path=".acme/history.jsonl", merge=Merge.APPEND),
        Data(path=".acme/todos/*", merge=Merge.REPLACE, enter=True),
    ),
    config=(".acme/settings*.json", ".acme/hooks/**", ".acme/projects/*/memory/**"),
    ignore=(".acme/hooks/.system/**",),
)
OWN = ".acme/projects/-srv-my-work"


@dataclass
class World:
    """A home, a role, and the runs of it."""

    home: Path
    role: Role
    states: States

    @property
    def places(self) -> Places:
        return Places.from_env({"HOME": str(self.home)})

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def begin(self, run: str = RUN, known: bytes = b"") -> Path:
        """Start a run; where its jail writes."""
        self.places.state.mkdir(parents=True, mode=0o700, exist_ok=True)
        want = wanted(self.role, str(self.home), [])
        agent = self.role.agent
        seeds = () if agent is None else tuple((str(self.home) + s.path[1:], s.text) for s in agent.seeds)
        spec = JailSpec(
            run=run,
            uid=1,
            gid=1,
            user="u",
            home=str(self.home),
            workdir="/srv",
            workdir_write=True,
            cwd=CWD,
            argv=("true",),
            exe="/usr/bin/true",
            env=(),
            system=(),
            etc=(),
            files=seeds,
            private=bound(self.places, run, str(self.home), want.directories),
        )
        time.sleep(0.05)  # what was written before is older than the clock's tick
        self.states.take(self.places, spec, self.role, table(known))
        upper = self.places.copies / f"{run}.state/upper"
        for path, text in seeds:  # as pid 1 writes them
            inside = upper / os.path.relpath(path, self.home)
            inside.write_text(text)
        return upper

    def end(self, run: str = RUN, known: bytes = b"") -> Back:
        return self.states.finish(run, table(known))

    def kept(self, run: str = RUN) -> Copy:
        (copy,) = copystore.find_all(self.places, run)
        return copy


def table(known: bytes) -> Table:
    return Table({known: "llm"} if known else {})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return World(home=tmp_path, role=Role(name="dev", agent=AGENT, agent_state=AgentState.COPY), states=States())


def tree(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_what_enters_is_this_projects_data_and_no_login(world: World) -> None:
    world.write(f"{OWN}/a.jsonl", "one\n")
    world.write(f"{OWN}/deep/er/b.jsonl", "two\n")
    world.write(f"{OWN}/memory/M.md", "obey\n")
    world.write(f"{OWN}/auth.json", "login\n")
    world.write(f"{OWN}/leak.jsonl", b"x " + SECRET + b"\n")
    world.write(".acme/projects/-srv-other/c.jsonl", "another project's\n")
    world.write(".acme/sessions/1.jsonl", '{"cwd":"/srv/my work"}\n')
    world.write(".acme/sessions/2.jsonl", '{"cwd":"/srv/my work2"}\n')
    world.write(".acme/.credentials.json", "login\n")
    world.write(".acme/settings.json", "the user's own\n")
    world.write(".acme/history.jsonl", "all that was typed\n")
    (world.home / OWN / "link.jsonl").symlink_to("/etc/hostname")
    os.mkfifo(world.home / OWN / "pipe.jsonl")
    upper = world.begin(known=SECRET)
    assert tree(upper) == {
        f"{OWN}/a.jsonl": "one\n",
        f"{OWN}/deep/er/b.jsonl": "two\n",
        ".acme/sessions/1.jsonl": '{"cwd":"/srv/my work"}\n',
        ".acme/settings.json": '{"seeded": true}\n',
    }
    before = tree(world.home / ".acme")
    assert world.end() == Back(run=RUN)
    assert tree(world.home / ".acme") == before
    assert copystore.listed(world.places) == []


def test_what_can_not_enter_is_not_looked_through(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateenter, "_WALKED", 20)
    for number in range(30):
        world.write(f".acme/cache/{number}", "x")
    world.write(f"{OWN}/a.jsonl", "one\n")
    assert f"{OWN}/a.jsonl" in tree(world.begin())
    world.end()
    for number in range(30):
        world.write(f"{OWN}/{number}.jsonl", "x")
    with pytest.raises(StateError, match="more than 20 entries"):
        world.begin("r000000000001")
    assert list(world.places.copies.iterdir()) == []


def test_data_comes_back_and_configuration_waits(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.write(f"{OWN}/a.jsonl", "one\n")
    world.write(".acme/history.jsonl", "typed")
    upper = world.begin()
    (upper / OWN / "a.jsonl").write_text("one\ntwo\n")
    new = upper / OWN / "new/b.jsonl"
    new.parent.mkdir()
    new.write_text("b\n")
    new.chmod(0o777)
    (upper / ".acme/history.jsonl").write_text("in the jail\n")
    (upper / ".acme/cache").write_text("made anew each time")
    (upper / ".acme/hooks/.system").mkdir(parents=True)
    (upper / ".acme/hooks/.system/x").write_text("shipped")
    (upper / ".acme/hooks/evil.sh").write_text("curl evil\n")
    (upper / ".acme/auth.json").write_text("a login of the jail's\n")
    back = world.end()
    assert sorted(back.taken) == [".acme/history.jsonl", f"{OWN}/a.jsonl", f"{OWN}/new/b.jsonl"]
    assert (back.left, back.waiting) == ((), (".acme/hooks/evil.sh",))
    assert tree(world.home / ".acme") == {
        "history.jsonl": "typed\nin the jail\n",
        "projects/-srv-my-work/a.jsonl": "one\ntwo\n",
        "projects/-srv-my-work/new/b.jsonl": "b\n",
    }
    assert (world.home / OWN / "new/b.jsonl").stat().st_mode & 0o777 == 0o644
    assert (world.home / OWN / "new").stat().st_mode & 0o777 == 0o700
    assert "~/.acme/hooks/evil.sh" in "\n".join(back.sentences())
    assert diff_command.main([RUN]) == 0
    shown = capsys.readouterr().out
    assert "A .acme/hooks/evil.sh  (" in shown and "+curl evil" in shown and "a.jsonl" not in shown
    assert apply_command.main([RUN]) == 1  # not without its name
    assert not (world.home / ".acme/hooks").exists()
    assert "name it to take it over: the host's agent" in capsys.readouterr().err
    assert apply_command.main([RUN, ".acme/hooks/evil.sh"]) == 0
    assert (world.home / ".acme/hooks/evil.sh").read_text() == "curl evil\n"
    assert copystore.listed(world.places) == []


def test_discard_drops_what_waits(world: World) -> None:
    world.write(".acme/settings.json", "the user's own\n")
    upper = world.begin()
    (upper / ".acme/settings.json").write_text('{"hooks": "evil"}')
    assert world.end().waiting == (".acme/settings.json",)
    (change,) = changes(world.kept())
    assert (change.kind, change.conflict) == ("modified", "")
    assert discard_command.main([RUN]) == 0
    assert (world.home / ".acme/settings.json").read_text() == "the user's own\n"
    assert copystore.listed(world.places) == []


type Deed = Callable[[World, Path], object]


@pytest.mark.parametrize(
    ("path", "inside", "meanwhile", "why"),
    [
        (f"{OWN}/a.jsonl", "rewritten\n", None, statereturn.OTHER),
        (f"{OWN}/a.jsonl", "", None, "same"),  # the host has more than the jail left of it
        (f"{OWN}/a.jsonl", "one\njail\n", "one\nhost\n", statereturn.OTHER),
        (f"{OWN}/n.jsonl", "jail\n", "host\n", statereturn.OTHER),
        (".acme/todos/t", "jail\n", "host\n", statereturn.OTHER),
        (f"{OWN}/s.jsonl", "x sk-real-0123456789abcdef", None, "holds the value of the secret llm"),
    ],
)
def test_what_stands_against_it_is_kept_on_both_sides(
    world: World, path: str, inside: str, meanwhile: str | None, why: str
) -> None:
    world.write(f"{OWN}/a.jsonl", "one\n")
    world.write(".acme/todos/t", "old\n")
    upper = world.begin()
    (upper / path).write_text(inside)
    if meanwhile is not None:
        world.write(path, meanwhile)
    before = tree(world.home / ".acme")
    back = world.end(known=SECRET)
    assert tree(world.home / ".acme") == before
    if why == "same":
        assert back.left == () and copystore.listed(world.places) == []
        return
    assert back.left == ((path, why),)
    assert (world.kept().upper / path).read_text() == inside


def test_without_what_stands_against_it_each_of_them_comes_back(world: World) -> None:
    """The pair of the test above."""
    world.write(f"{OWN}/a.jsonl", "one\n")
    world.write(".acme/todos/t", "old\n")
    upper = world.begin()
    (upper / OWN / "a.jsonl").write_text("one\njail\n")
    (upper / OWN / "n.jsonl").write_text("jail\n")
    (upper / ".acme/todos/t").write_text("jail\n")
    (upper / ".acme/todos/t").chmod(0o4777)
    (upper / OWN / "s.jsonl").write_text("x sk-real-")
    assert len(world.end(known=SECRET).taken) == 4
    assert set(tree(world.home / ".acme").values()) == {"one\njail\n", "jail\n", "x sk-real-"}
    assert (world.home / ".acme/todos/t").stat().st_mode & 0o7777 == 0o644


HOSTILE: dict[str, Deed] = {
    "a link": lambda _, at: at.symlink_to("/etc/shadow"),
    "a pipe": lambda _, at: os.mkfifo(at),
    "a large one": lambda _, at: os.truncate(at, statereturn.FILE + 1) if at.write_text("x") else None,
    "a link on the host": lambda w, at: (at.write_text("x"), w.write("target", "kept"), _link(w)),
    "a link on the host's way": lambda w, at: (at.write_text("x"), (w.home / "elsewhere").mkdir(), _way(w)),
}
if os.geteuid() != 0:
    HOSTILE["a closed one"] = lambda _, at: (at.write_text("x"), at.chmod(0))


def _link(world: World) -> None:
    (world.home / OWN).mkdir(parents=True)
    (world.home / OWN / "x.jsonl").symlink_to(world.home / "target")


def _way(world: World) -> None:
    (world.home / ".acme").symlink_to(world.home / "elsewhere")


@pytest.mark.parametrize("deed", HOSTILE.values(), ids=list(HOSTILE))
def test_no_link_is_followed_and_nothing_but_files_of_bounded_size_comes(world: World, deed: Deed) -> None:
    upper = world.begin()
    (upper / OWN).mkdir(parents=True)
    deed(world, upper / OWN / "x.jsonl")
    back = world.end()
    assert back.taken == () and [path for path, _ in back.left] == [f"{OWN}/x.jsonl"]
    assert not (world.home / "elsewhere/projects").exists()
    assert not (world.home / "target").exists() or (world.home / "target").read_text() == "kept"


def test_two_runs_at_once_lose_nothing_of_each_other(world: World) -> None:
    world.write(f"{OWN}/a.jsonl", "one\n")
    world.write(".acme/history.jsonl", "typed\n")
    runs = [RUN, "rffffffffffff"]
    uppers = [world.begin(run) for run in runs]
    for number, upper in enumerate(uppers):
        (upper / OWN / "a.jsonl").write_text(f"one\nof {number}\n")
        (upper / OWN / f"own-{number}.jsonl").write_text(f"{number}\n")
        (upper / ".acme/history.jsonl").write_text(f"typed in {number}\n")
    first, second = (world.end(run) for run in runs)
    assert first.left == () and second.left == ((f"{OWN}/a.jsonl", statereturn.OTHER),)
    assert tree(world.home / ".acme") == {
        "history.jsonl": "typed\ntyped in 0\ntyped in 1\n",
        "projects/-srv-my-work/a.jsonl": "one\nof 0\n",
        "projects/-srv-my-work/own-0.jsonl": "0\n",
        "projects/-srv-my-work/own-1.jsonl": "1\n",
    }
    assert (world.kept(runs[1]).upper / OWN / "a.jsonl").read_text() == "one\nof 1\n"


def test_the_marks_of_an_overlay_delete_nothing(world: World) -> None:
    """The jail can set them on what is its own."""
    world.write(f"{OWN}/a.jsonl", "one\n")
    world.write(".acme/settings.json", "mine\n")
    upper = world.begin()
    (upper / ".acme/settings.json").write_text("")
    os.setxattr(upper / ".acme/settings.json", "user.overlay.whiteout", b"y")
    os.setxattr(upper / OWN, "user.overlay.opaque", b"y")
    (upper / OWN / "a.jsonl").unlink()
    world.end()
    assert tree(world.home / ".acme") == {"projects/-srv-my-work/a.jsonl": "one\n", "settings.json": "mine\n"}


def test_after_a_crash_the_data_is_taken_by_a_word(world: World) -> None:
    upper = world.begin()
    (upper / OWN).mkdir(parents=True)
    (upper / OWN / "n.jsonl").write_text("n\n")
    (upper / ".acme/hooks").mkdir()
    (upper / ".acme/hooks/h").write_text("h\n")
    _, held = world.states._live.pop(RUN)
    os.close(held)  # as the kernel does for a daemon that was killed
    assert apply_command.main([RUN]) == 1
    assert tree(world.home / ".acme") == {"projects/-srv-my-work/n.jsonl": "n\n"}
    assert [c.path for c in changes(world.kept()) if c.naming] == [".acme/hooks", ".acme/hooks/h"]


def test_a_run_that_never_began_leaves_nothing(world: World) -> None:
    world.begin()
    world.states.forget(RUN)
    world.states.forget("r000000000000")
    assert list(world.places.copies.iterdir()) == []


def test_a_directory_that_the_role_names_enters_without_what_looks_like_a_credential(world: World) -> None:
    world.role = Role(name="dev", state=("~/.config/tool", "~/.toolrc"))
    world.write(".config/tool/config.yml", "editor: vi\n")
    world.write(".config/tool/deep/aliases", "co: checkout\n")
    world.write(".config/tool/hosts.yml", "oauth_token: x\n")
    world.write(".config/tool/my_tokens", "x\n")
    world.write(".config/tool/innocent", "ghp_0123456789abcdefghijABCDEFGHIJ012345\n")
    world.write(".toolrc", "color: on\n")
    want = wanted(world.role, str(world.home), [])
    assert (want.directories, want.files) == ((".config/tool",), (".toolrc",))
    upper = world.begin()
    assert tree(upper) == {".config/tool/config.yml": "editor: vi\n", ".config/tool/deep/aliases": "co: checkout\n"}
    (upper / ".config/tool/config.yml").write_text("editor: evil\n")
    assert world.end().waiting == (".config/tool/config.yml",)
    assert (world.home / ".config/tool/config.yml").read_text() == "editor: vi\n"


def test_configuration_enters_where_the_role_names_it(world: World) -> None:
    world.role = replace(world.role, state=("~/.acme/commands", "~/.acme/CLAUDE.md"))
    world.write(".acme/commands/deep/do.md", "do this\n")
    world.write(".acme/CLAUDE.md", "be kind\n")
    world.write(".acme/settings.json", "the user's own\n")
    world.write(f"{OWN}/a.jsonl", "one\n")
    upper = world.begin()
    entered = {".acme/commands/deep/do.md": "do this\n", ".acme/CLAUDE.md": "be kind\n", f"{OWN}/a.jsonl": "one\n"}
    assert tree(upper) == {**entered, ".acme/settings.json": '{"seeded": true}\n'}
    assert world.end() == Back(run=RUN)
    upper = world.begin()
    (upper / ".acme/CLAUDE.md").write_text("be evil\n")
    (upper / ".acme/commands/new.md").write_text("do that\n")
    assert world.end().waiting == (".acme/CLAUDE.md", ".acme/commands/new.md")
    assert (world.home / ".acme/CLAUDE.md").read_text() == "be kind\n"


def test_a_named_directory_of_an_agent_enters_whole_where_its_state_is_fresh(world: World) -> None:
    world.role = replace(world.role, agent_state=AgentState.FRESH, state=("~/.acme",))
    world.write(".acme/settings.json", "the user's own\n")
    world.write(".acme/other", "x\n")
    world.write(".acme/auth.json", "a login\n")
    upper = world.begin()
    assert tree(upper) == {".acme/other": "x\n", ".acme/settings.json": '{"seeded": true}\n'}
    (upper / ".acme/other").write_text("y\n")
    assert world.end().waiting == (".acme/other",)


@pytest.mark.parametrize(
    ("names", "shown", "code"),
    [
        (("~/.missing",), [], "state_missing"),
        (("~/.netrc",), [], "state_credential"),
        (("~/.plain",), [], "state_credential"),
        (("~/.link",), [], "state_refused"),
        (("~/.dir",), [".dir/inner"], "state_covered"),
        (("~/.dir",), ["."], "state_covered"),
    ],
)
def test_what_a_role_can_not_name(world: World, names: tuple[str, ...], shown: list[str], code: str) -> None:
    world.write(".netrc", "machine x password y\n")
    world.write(".plain", "token = ghp_0123456789abcdefghijABCDEFGHIJ012345\n")
    world.write(".dir/inner/x", "x\n")
    (world.home / ".link").symlink_to(".plain")
    with pytest.raises(StateError) as caught:
        wanted(Role(name="dev", state=names), str(world.home), [os.path.normpath(world.home / s) for s in shown])
    assert caught.value.code == code and caught.value.exit_status == 125


def test_json_of_diff_has_both_copies_apart(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    upper = world.begin()
    (upper / ".acme/settings.json").write_text("{}")
    world.end()
    assert diff_command.main([RUN, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["run"], said["home"]) == (RUN, str(world.home))
    assert [(change["path"], change["needs_naming"] != "") for change in said["state"]] == [
        (".acme", True),
        (".acme/settings.json", True),
    ]


TEXT = st.lists(st.sampled_from(["a\n", "b\n", "c", "\n", "\u00fc\n"]), max_size=4).map("".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=TEXT, host=TEXT, jail=TEXT, merge=st.sampled_from(Merge))
def test_whatever_each_side_writes_no_byte_of_the_hosts_is_lost(
    tmp_path: Path, old: str, host: str, jail: str, merge: Merge
) -> None:
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    agent = replace(AGENT, data=(Data(path=".acme/x/*", merge=merge, enter=merge is not Merge.APPEND),))
    world = World(home=home, role=Role(name="dev", agent=agent, agent_state=AgentState.COPY), states=States())
    path = world.write(".acme/x/f", old)
    upper = world.begin()
    if host != old:
        world.write(".acme/x/f", host)
    (upper / ".acme/x").mkdir(exist_ok=True)
    (upper / ".acme/x/f").write_text(jail)
    back = world.end()
    after = path.read_text()
    if merge is Merge.REPLACE and host == old:
        assert after == jail  # the one that may: nobody else had written
    else:
        assert after.startswith(host)
    kept = [p.read_text() for p in home.glob(".local/state/credgate/copies/*/upper/.acme/x/f")]
    assert after.endswith(jail) or host.startswith(jail) or kept == [jail]
    assert (back.left == ()) == (kept == [])
