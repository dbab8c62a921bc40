"""Finding a command and the trees it needs, on trees made up by the test; nothing of them is executed."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.command import CommandError, Host, find_command, install_tree

SYSTEM = ("/usr", "/bin", "/lib")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home without links in its own path."""
    path = Path(os.path.realpath(tmp_path)) / "home"
    path.mkdir()
    return path


def program(path: Path, text: str = "\x7fELF", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def find(
    name: str, home: Path, path: str = "", cwd: Path | None = None
) -> "tuple[str, set[str], dict[str, str], list[str]]":
    host = Host(path=path or "/usr/bin:/bin", cwd=str(cwd or home), home=str(home), system=SYSTEM)
    found = find_command(name, host)
    return found.exe, set(found.trees), dict(found.links), list(found.path)


def test_a_command_of_the_system_needs_nothing(home: Path) -> None:
    exe, trees, links, path = find("env", home)
    assert (exe, trees, links, path) == (exe, set(), {}, [])
    assert exe in ("/usr/bin/env", "/bin/env")


def test_a_file_beside_many_others_is_bound_alone(home: Path) -> None:
    tool = program(home / ".local/bin/tool")
    program(home / ".local/bin/other")
    exe, trees, _, path = find("tool", home, f"{tool.parent}:/usr/bin")
    assert (exe, trees, path) == (str(tool), {str(tool)}, [str(tool.parent)])


def test_a_directory_of_its_own_is_bound_whole(home: Path) -> None:
    tool = program(home / "apps/tool-1.2/tool")
    assert find(str(tool), home)[1] == {str(tool.parent)}


def test_a_prefix_of_its_own_is_bound_whole(home: Path) -> None:
    tool = program(home / ".nvm/v20/bin/node")
    (home / ".nvm/v20/lib").mkdir()
    assert find(str(tool), home)[1] == {str(home / ".nvm/v20")}


def test_every_link_on_the_way_is_recreated(home: Path) -> None:
    real = program(home / ".local/share/agent/versions/2.0/agent")
    (home / ".local/share/agent/current").symlink_to("versions/2.0")
    link = home / ".local/bin/agent"
    link.parent.mkdir(parents=True)
    link.symlink_to("../share/agent/current/agent")
    exe, trees, links, _ = find("agent", home, str(link.parent))
    assert (exe, trees) == (str(link), {str(real.parent)})
    assert links == {
        str(link): str(home / ".local/share/agent/current/agent"),
        str(home / ".local/share/agent/current"): str(home / ".local/share/agent/versions/2.0"),
    }


@pytest.mark.parametrize(
    ("prefix", "tree"),
    [(".nvm/v20", ".nvm/v20"), (".local", ".local/lib/node_modules"), (".", "lib/node_modules")],
)
def test_nodes_prefix_is_bound_but_never_one_that_is_shared(home: Path, prefix: str, tree: str) -> None:
    script = program(home / prefix / "lib/node_modules/@acme/agent/cli.js")
    assert install_tree(str(script), str(home)) == str(home / tree)


@pytest.mark.parametrize("name", [".local/bin/x", "bin/x", "x", ".local/share/a/b/x", "lib/node_modules/p/x"])
def test_no_tree_holds_the_home(home: Path, name: str) -> None:
    (home / "lib").mkdir()
    (home / ".local/lib").mkdir(parents=True)
    tree = Path(install_tree(str(program(home / name)), str(home)))
    assert not home.is_relative_to(tree)
    assert not (home / ".local/state").is_relative_to(tree)


def test_a_virtualenv_brings_its_base(home: Path) -> None:
    base = program(home / "pythons/3.13/bin/python3.13").parent.parent
    (base / "lib").mkdir()
    environment = home / "venv"
    tool = program(environment / "bin/tool", f"#!{environment}/bin/python\n")
    (environment / "bin/python").symlink_to(base / "bin/python3.13")
    (environment / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
    _, trees, _, _ = find(str(tool), home)
    assert trees == {str(environment), str(base)}


def test_a_script_brings_its_interpreter(home: Path) -> None:
    program(home / "node/bin/node")
    (home / "node/lib").mkdir()
    script = program(home / "agent/cli.js", "#!/usr/bin/env -S node --flag\n")
    path = f"{home}/node/bin:/usr/bin"
    assert find(str(script), home, path)[1] == {str(home / "agent"), str(home / "node")}


@pytest.mark.parametrize("line", ["#!/usr/bin/env node", "#!/usr/bin/env A=b node", "#! /usr/bin/env\tnode"])
def test_env_is_looked_through(home: Path, line: str) -> None:
    program(home / "node/bin/node")
    (home / "node/lib").mkdir()
    script = program(home / "agent/cli.js", line + "\n")
    assert str(home / "node") in find(str(script), home, f"{home}/node/bin:/usr/bin")[1]


def test_interpreters_that_go_round_in_circles_end(home: Path) -> None:
    first, second = home / "a/first", home / "b/second"
    program(first, f"#!{second}\n")
    program(second, f"#!{first}\n")
    assert find(str(first), home)[1] == {str(first.parent), str(second.parent)}


def test_links_that_go_round_in_circles_end(home: Path) -> None:
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    with pytest.raises(CommandError) as caught:
        find("./a", home)
    assert caught.value.exit_status == 127


def test_the_path_is_searched_as_execvp_does(home: Path) -> None:
    program(home / "one/tool", mode=0o644)
    second = program(home / "two/tool")
    (home / "three/tool").mkdir(parents=True)
    assert find("tool", home, f"{home}/three:{home}/one:{home}/two")[0] == str(second)


def test_an_empty_part_of_the_path_is_the_cwd(home: Path) -> None:
    tool = program(home / "here/tool")
    assert find("tool", home, "/usr/bin:", cwd=tool.parent)[0] == str(tool)


@pytest.mark.parametrize(("mode", "status"), [(0o644, 126), (None, 127)])
def test_what_cannot_be_started(home: Path, mode: int | None, status: int) -> None:
    if mode is not None:
        program(home / "bin/tool", mode=mode)
    with pytest.raises(CommandError) as caught:
        find("tool", home, f"{home}/bin")
    assert (caught.value.exit_status, bool(caught.value.hint)) == (status, True)


@given(st.binary(max_size=300))
def test_a_first_line_of_any_bytes_is_an_interpreter_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("fuzz", numbered=True)
    script = folder / "script"
    script.write_bytes(b"#!" + data)
    script.chmod(0o755)
    try:
        found = find_command(str(script), Host(path="/usr/bin", cwd=str(folder), home="/nonexistent", system=SYSTEM))
    except CommandError as error:
        said: object = error.exit_status
    else:
        said = found.exe
    assert said in (126, 127, str(script))


# What a tree says that an agent may have written


def python_at(prefix: Path) -> Path:
    """An installation as python_prefix wants it."""
    program(prefix / "lib/python3.13/os.py")
    return program(prefix / "bin/python3.13")


def environment_in(work: Path, base: str) -> Path:
    """A virtualenv with a program of its own, as a planted or an honest one."""
    tool = program(work / ".venv/bin/tool")
    (work / ".venv/pyvenv.cfg").write_text(f"home = {base}\nversion = 3.13.0\n")
    return tool


def host(home: Path, work: Path, path: str = "/usr/bin") -> Host:
    return Host(path=path, cwd=str(work), home=str(home), system=SYSTEM, written=(str(work),))


@pytest.mark.parametrize("base", [".ssh/x", ".aws/x", "notes/x", ".local/share/keyrings/x"])
def test_a_virtualenv_binds_no_directory_that_is_no_python(home: Path, base: str) -> None:
    (home / base).mkdir(parents=True)
    work = home / "work"
    tool = environment_in(work, str(home / base))
    assert set(find_command(str(tool), host(home, work)).trees) == {str(work / ".venv")}


def test_a_virtualenv_binds_the_python_that_it_was_made_by(home: Path) -> None:
    base = home / ".pyenv/versions/3.13.0"
    python_at(base)
    work = home / "work"
    tool = environment_in(work, str(base / "bin"))
    assert set(find_command(str(tool), host(home, work)).trees) == {str(work / ".venv"), str(base)}


def test_a_configuration_is_read_to_its_bound(home: Path) -> None:
    base = home / "python"
    python_at(base)
    work = home / "work"
    tool = environment_in(work, str(base / "bin"))
    config = work / ".venv/pyvenv.cfg"
    config.write_bytes(b"#" * (70 << 10) + b"\nhome = " + os.fsencode(base / "bin"))
    assert set(find_command(str(tool), host(home, work)).trees) == {str(work / ".venv")}


def test_a_link_out_of_a_written_tree_is_refused(home: Path) -> None:
    other = program(home / "deploy/run.sh")
    (other.parent / ".env").write_text("TOKEN=x")
    work = home / "work"
    work.mkdir()
    (work / "tool").symlink_to(other)
    with pytest.raises(CommandError, match="leads out of"):
        find_command(str(work / "tool"), host(home, work))
    trusted = Host(path="/usr/bin", cwd=str(work), home=str(home), system=SYSTEM)
    assert set(find_command(str(work / "tool"), trusted).trees) == {str(other.parent)}


def test_a_link_to_what_the_role_names_is_followed(home: Path) -> None:
    other = program(home / "deploy/run.sh")
    work = home / "work"
    work.mkdir()
    (work / "tool").symlink_to(other)
    named = Host(
        path="/usr/bin",
        cwd=str(work),
        home=str(home),
        system=SYSTEM,
        written=(str(work),),
        tools=(str(other.parent),),
    )
    assert find_command(str(work / "tool"), named).trees == ()


@pytest.mark.parametrize("line", ["{other}", "/usr/bin/env {other}"])
def test_an_interpreter_line_of_a_written_tree_names_nothing_outside(home: Path, line: str) -> None:
    other = program(home / "deploy/run.sh")
    work = home / "work"
    script = program(work / "tool", f"#!{line.format(other=other)}\n")
    with pytest.raises(CommandError, match="leads out of"):
        find_command(str(script), host(home, work))


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/env -S -u {other} sh",
        "/usr/bin/env -u {other} sh",
        "/usr/bin/env -C / {other}",
        '/usr/bin/env -S "{other}"',
        "/usr/bin/env",
        "/usr/bin/env -S A=b",
    ],
)
def test_an_env_line_that_is_not_plain_is_refused(home: Path, line: str) -> None:
    other = program(home / "deploy/run.sh")
    script = program(home / "work/tool", f"#!{line.format(other=other)}\n")
    with pytest.raises(CommandError, match="interpreter line"):
        find_command(str(script), host(home, home / "work"))


@pytest.mark.parametrize("line", ["/usr/bin/env sh", "/usr/bin/env -S sh -e", "/usr/bin/env -S A=b sh", "/bin/sh -e"])
def test_a_plain_env_line_is_followed(home: Path, line: str) -> None:
    script = program(home / "work/tool", f"#!{line}\n")
    assert find_command(str(script), host(home, home / "work")).exe == str(script)


def test_an_interpreter_is_not_looked_for_in_what_an_agent_writes(home: Path) -> None:
    work = home / "work"
    program(work / "bin/node")
    script = program(home / "tools/tool", "#!/usr/bin/env node\n")
    with pytest.raises(CommandError, match="node: command not found"):
        find_command(str(script), host(home, work, path=f"{work}/bin"))


@pytest.mark.parametrize("folder", [".ssh", ".config/gcloud", ".kube"])
def test_a_program_among_credentials_binds_nothing(home: Path, folder: str) -> None:
    tool = program(home / folder / "tool")
    with pytest.raises(CommandError, match="no program's own tree"):
        find_command(str(tool), Host(path="", cwd=str(home), home=str(home), system=SYSTEM))


def test_a_hidden_directory_of_the_home_is_not_bound_whole(home: Path) -> None:
    tool = program(home / ".agent/tool")
    with pytest.raises(CommandError, match="no program's own tree"):
        find_command(str(tool), Host(path="", cwd=str(home), home=str(home), system=SYSTEM))


def test_a_pipe_in_place_of_a_configuration_holds_nobody_up(home: Path) -> None:
    tool = program(home / "work/.venv/bin/tool")
    os.mkfifo(home / "work/.venv/pyvenv.cfg")
    found = find_command(str(tool), host(home, home / "work"))
    assert set(found.trees) == {str(tool)}


def test_a_directory_that_cannot_be_entered_holds_up_no_search(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's own PATH leads into root's home, which the user of the run can't enter."""
    closed, tool = home / "closed", program(home / "open/bin/tool")
    looked = os.stat

    def facts(path: Any, **more: Any) -> os.stat_result:
        if Path(path).parent == closed:
            raise PermissionError(13, "Permission denied")
        return looked(path, **more)

    monkeypatch.setattr(os, "stat", facts)
    assert find("tool", home, f"{closed}:{tool.parent}")[0] == str(tool)
    with pytest.raises(CommandError) as told:
        find("tool", home, str(closed))
    assert told.value.exit_status == 126
