"""`credgate doctor`: each probe on this host, and what is said on a host that forbids it."""

import contextlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import keyring.backend
import pytest

from credgate import buildfront, compiled
from credgate.apparmor import OWN, PLACE, both
from credgate.commands import doctor
from credgate.commands.doctor import main
from credgate.filters import VARIANTS
from credgate.hostprobes import PROBES
from credgate.paths import Places, private_dir
from jail.seccomp import compile_filter
from tests.delegated import delegated, groups

NOBODY = 65534

OFF = "user namespaces are off; as root: sysctl -w user.max_user_namespaces=15000"
ROWS = [
    "python",
    "user namespaces",
    "network namespaces, veth",
    "mounts",
    "fresh /proc",
    "nftables",
    "landlock",
    "seccomp",
    "cgroups",
    "copies of a tree",
    "debugging inside",
    "launcher",
    "compiled modules",
    "secret sources",
    "keyring",
    "state files",
]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "CREDENTIALS_DIRECTORY", "SUDO_USER", "PYTHON_KEYRING_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CREDGATE_POLICY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)
    return Places.from_env({"HOME": str(tmp_path)})


def probe(name: str, before: str = "") -> dict[str, object]:
    """A probe in a child; `before` is what is done to that child first."""
    code = f"import json, os\nfrom pathlib import Path\n{before}\nfrom credgate.hostprobes import attempt\n"
    code += f"print(json.dumps(attempt({name!r})))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


_OFF = """
uid, gid = os.geteuid(), os.getegid()
os.unshare(os.CLONE_NEWUSER)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"1000 {uid} 1")
Path("/proc/self/gid_map").write_text(f"1000 {gid} 1")
Path("/proc/sys/user/max_user_namespaces").write_text("0")
"""


@pytest.mark.needs("userns")
@pytest.mark.parametrize("name", ["userns", "netns", "mounts", "proc", "copies"])
def test_a_namespace_probe_succeeds_here_and_fails_where_they_are_off(name: str):
    assert probe(name)["ok"] is True
    closed = probe(name, _OFF)
    assert closed["ok"] is False
    assert closed["mend"] == OFF


@pytest.mark.needs("nftables")
def test_the_nftables_probe_succeeds_here_and_fails_without_a_way_to_it():
    assert probe("nftables")["ok"] is True
    hidden = "import sys, shutil\nsys.modules['nftables'] = None\nshutil.which = lambda name: None\n"
    # the default arguments of find() were bound at import, so they are hidden before it
    closed = probe("nftables", hidden)
    assert closed["ok"] is False
    assert "nftables" in str(closed["mend"])


NO_CALL = """
import errno, pyseccomp
made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for name in {names!r}:
    made.add_rule(pyseccomp.ERRNO(errno.{error}), name)
made.load()
"""


@pytest.mark.needs("landlock")
def test_the_landlock_probe_succeeds_here_and_fails_without_it():
    assert probe("landlock")["ok"] is True
    closed = probe("landlock", NO_CALL.format(names=["landlock_create_ruleset"], error="ENOSYS"))
    assert closed["ok"] is False
    assert "landlock" in str(closed["mend"])


@pytest.mark.needs("landlock")
def test_the_landlock_probe_fails_where_a_ruleset_is_taken_and_enforces_nothing():
    closed = probe("landlock", NO_CALL.format(names=["landlock_restrict_self"], error="E2BIG"))
    assert closed["ok"] is False
    fake = "import jail.landlock\njail.landlock.restrict = lambda plan: None\n"
    assert "enforces nothing" in str(probe("landlock", fake)["detail"])


@pytest.mark.needs("seccomp")
def test_the_seccomp_probe_succeeds_here_and_fails_where_the_filter_is_not_loaded():
    assert probe("seccomp")["ok"] is True
    assert probe("seccomp", "import jail.bpf\njail.bpf.load = lambda bpf: None\n")["ok"] is False


@pytest.mark.needs("userns")
def test_the_mount_probe_fails_where_the_kernel_lacks_a_call():
    closed = probe("mounts", NO_CALL.format(names=["mount_setattr"], error="ENOSYS"))
    assert closed["ok"] is False
    assert "function not implemented" in str(closed["detail"])


def test_every_probe_has_its_row(places: Places, capsys: pytest.CaptureFixture[str]):
    status = main(["--json"])
    document = json.loads(capsys.readouterr().out)
    checks = document["checks"]
    assert [check["name"] for check in checks] == ROWS
    assert len(PROBES) == len(ROWS) - 6
    assert all(check.keys() == {"name", "state", "detail", "mend"} for check in checks)
    missing = [check["name"] for check in checks if check["state"] == "missing"]
    assert status == document["exit"] == (3 if missing else 0)
    assert not places.state.exists()


def test_the_table_says_what_the_sealed_file_protects_from(places: Places, capsys: pytest.CaptureFixture[str]):
    main([])
    out = capsys.readouterr().out
    assert [row for row in ROWS if row not in out] == []
    assert "protects from: " in out
    assert "does not protect from: any process of yours outside a jail" in out


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_state_that_is_open_to_others_is_missing_and_has_a_mend(places: Places, capsys, mode: int):
    private_dir(places.ledger)
    places.ledger.chmod(mode)
    assert main(["--json"]) == 3
    row = json.loads(capsys.readouterr().out)["checks"][-1]
    assert row["state"] == "missing"
    assert f"mode is {mode:04o}, expected 0700" in row["detail"]
    assert "chmod 0700" in row["mend"]


def test_a_socket_path_that_is_too_long_is_missing(places: Places, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/" + "x" * 100)
    assert main(["--json"]) == 3
    row = json.loads(capsys.readouterr().out)["checks"][-1]
    assert "a unix socket takes at most 107" in row["detail"]


def test_a_forced_backend_is_named(places: Places, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    main(["--json"])
    row = json.loads(capsys.readouterr().out)["checks"][-2]
    assert "PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring is not followed" in row["detail"]
    assert row["state"] == "lesser"


_DOCTOR_OFF = (
    _OFF
    + """
import sys
from credgate.commands.doctor import main
sys.exit(main(["--json"]))
"""
)


@pytest.mark.needs("userns")
def test_a_host_with_user_namespaces_off_exits_3(tmp_path: Path):
    code = f"import os\nfrom pathlib import Path\n{_DOCTOR_OFF}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 3, done.stderr
    states = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert states["user namespaces"]["state"] == "missing"
    assert states["user namespaces"]["mend"] == OFF
    assert states["landlock"]["state"] == "ok"


OWNER = 65529  # a user whom no other test gives a control group


@pytest.mark.needs("cgroup")
def test_the_cgroup_probe_makes_a_group_and_takes_it_away():
    def row() -> dict[str, object]:
        if os.geteuid() != 0:
            return probe("cgroups")
        become = f"os.setgroups([]); os.setresgid(*[{uid}] * 3); os.setresuid(*[{uid}] * 3)"
        return probe("cgroups", become)

    uid = os.geteuid() or OWNER
    if uid == OWNER:
        closed = row()  # control: nothing is delegated to this user
        assert closed["ok"] is False
        assert "memory=summed by pid 1" in str(closed["detail"])
        assert "docs/limits.md" in str(closed["mend"])
    with delegated(uid) if uid == OWNER else contextlib.nullcontext():
        assert row()["ok"] is True
        assert [path for path in groups(uid) if path.name.startswith("probe")] == []


@pytest.mark.needs("seccomp")
def test_the_filters_are_shown_with_their_digests(places: Places, capsys: pytest.CaptureFixture[str]):
    main(["--json"])
    made = json.loads(capsys.readouterr().out)["seccomp"]
    assert list(made) == ["default", "allow_debug", "allow_userns", "allow_debug allow_userns"]
    for name, (debug, userns) in VARIANTS.items():
        assert made[name]["sha256"] == compile_filter(arch=platform.machine(), debug=debug, userns=userns).sha256
        assert "action KILL_PROCESS" in made[name]["pfc"]
    assert main(["--filter"]) == 0
    assert capsys.readouterr().out.startswith(f"# sha256 {made['default']['sha256']}\n")


def test_without_libseccomp_the_filter_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "jail.seccomp", None)
    assert main(["--filter"]) == 3
    assert "error: " in capsys.readouterr().err


def test_the_table_ends_with_what_to_do_first(capsys: pytest.CaptureFixture[str], places: Places, monkeypatch):
    mends = {"userns": "first", "netns": "first", "nftables": "second"}
    answer = {"ok": True, "detail": "d", "mend": ""}
    monkeypatch.setattr(
        doctor, "_ask_child", lambda name, _places: {**answer, "ok": name not in mends, "mend": mends.get(name, "")}
    )
    assert main([]) == 3
    last = capsys.readouterr().out.splitlines()[-4:]
    assert last == ["no run starts here before this is mended:", "  1. first", "  2. second", "then: credgate doctor"]


@pytest.mark.needs("landlock")
def test_json_names_the_rights_of_landlock_and_the_filter(places: Places, capsys: pytest.CaptureFixture[str]):
    main(["--json"])
    document = json.loads(capsys.readouterr().out)
    governed = document["landlock"]
    assert {"read_file", "write_file", "make_sock"} <= set(governed["fs"])
    assert (governed["abi"] >= 6) is ("signal" in governed["scope"])
    assert (governed["abi"] >= 4) is ("connect_tcp" in governed["net"])
    assert len(document["seccomp"]["default"]["sha256"]) == 64


def test_the_apparmor_profile_is_the_shipped_one_with_this_interpreters_path(capsys: pytest.CaptureFixture[str]):
    shipped = (Path(__file__).parents[2] / "packaging/apparmor/credgate").read_text()
    assert main(["--apparmor"]) == 0
    printed = capsys.readouterr().out
    assert printed.replace(both(sys.executable, str(buildfront.COMMAND)), OWN) == shipped
    assert "\n  userns,\n" in shipped
    assert f"Place: {PLACE}." in shipped


def test_yama_says_what_it_leaves_of_ptrace(monkeypatch: pytest.MonkeyPatch):
    from credgate import hostprobes

    said: dict[str, object] = {}
    for scope in ("0", "1", "2", "3"):
        monkeypatch.setattr(hostprobes.Path, "read_text", lambda _self, encoding="", scope=scope: scope)
        said[scope] = hostprobes.attempt("yama")["ok"]
    assert said == {"0": True, "1": True, "2": False, "3": False}


_SOURCES = """\
version = 1
[secret.cmd]
source = "command:~/bin/token"
[secret.later]
source = "env:LATER"
[secret.login]
source = "{login}"
[endpoint.vault]
host = "vault.acme.example"
address = ["127.0.0.1"]
[vault.corp]
endpoint = "vault"
{how}
[secret.db]
source = "vault:corp/secret/data/db#password"
[endpoint.npm]
host_from = "npm"
[[endpoint.npm.allow]]
pack = "npm-install"
[role.dev]
"""
_TOKEN = 'token = "login"'
_APPROLE = 'approle = { role_id = "r", secret = "login" }'


def sources(tmp_path: Path, capsys: pytest.CaptureFixture[str], login: str, how: str = _TOKEN) -> list[dict[str, str]]:
    """The rows, without the probes of the host; PATH has no npm, which nobody asks."""
    path = tmp_path / "policy.toml"
    path.write_text(_SOURCES.format(login=login, how=how))
    path.chmod(0o600)
    main(["--json", "--policy", str(path)])
    rows = json.loads(capsys.readouterr().out)["checks"]
    return [row for row in rows if row["name"] == "secret sources"]


@pytest.fixture
def program(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(doctor, "_ask_child", lambda _, _places: {"ok": True, "detail": "", "mend": ""})
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("LATER", "hunter2-hunter2")
    path = tmp_path / "bin/token"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\ntouch started\n")
    path.chmod(0o755)
    return path


def test_sources_that_are_there(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (row,) = sources(tmp_path, capsys, "env:LATER")
    assert row["state"] == "ok"
    assert row["detail"] == f"2 env, 1 command, 1 vault in {tmp_path}/policy.toml; no vault was asked"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("spoil", "detail", "mend"),
    [
        ("unlink", "no such file or directory", "install it"),
        ("plain", "is no program", "name the program itself"),
        ("open", "others than you and root can write it", "chmod go-w "),
        ("folder", "is no program", "name the program itself"),
    ],
)
def test_a_command_that_would_not_be_started(program: Path, tmp_path: Path, capsys, spoil: str, detail: str, mend: str):
    program.chmod({"plain": 0o644, "open": 0o777}.get(spoil, 0o755))
    if spoil in ("unlink", "folder"):
        program.unlink()
    if spoil == "folder":
        program.mkdir()
    (row,) = sources(tmp_path, capsys, "env:LATER")
    assert row["state"] == "lesser"
    assert "secret 'cmd': " in row["detail"]
    assert detail in row["detail"]
    assert row["mend"].startswith(mend)


@pytest.mark.parametrize("how", [_TOKEN, _APPROLE], ids=["token", "approle"])
@pytest.mark.parametrize(
    ("login", "detail", "mend"),
    [
        ("env:NOT_SET", "NOT_SET is not in the environment", "export NOT_SET"),
        ("file:~/vault-token", "no such file", "mend the file"),
        ("keyring:credgate/vault", "nothing at keyring:credgate/vault", "credgate secret set vault"),
    ],
)
def test_a_vault_without_what_it_logs_in_with(
    program: Path, places: Places, tmp_path: Path, capsys, login: str, detail: str, mend: str, how: str
):
    (row,) = sources(tmp_path, capsys, login, how)
    assert row["state"] == "lesser"
    assert detail in row["detail"]
    assert row["detail"].endswith("; [vault.corp] logs in with it")
    assert row["mend"].startswith(mend)
    assert not places.state.exists()  # nor was a key made to look


def test_a_token_file_that_others_can_read(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    token = tmp_path / "vault-token"
    token.write_text("hvs.value-that-is-not-said")
    token.chmod(0o644)
    (row,) = sources(tmp_path, capsys, "file:~/vault-token")
    assert "has mode 0644, expected 0600" in row["detail"]
    assert "value-that" not in json.dumps(row)
    token.chmod(0o600)
    assert sources(tmp_path, capsys, "file:~/vault-token")[0]["state"] == "ok"


def test_a_policy_with_faults_is_a_row(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (row,) = sources(tmp_path, capsys, "env:LATER", 'tokn = "login"')
    assert row["state"] == "lesser"
    assert "tokn" in row["detail"]


@pytest.mark.parametrize(
    ("sources", "built", "state", "said"),
    [
        (("chain", "look"), True, "ok", "as their sources are"),
        (("chain", "look"), False, "lesser", "no current chain, look: Python does it in their place"),
        ((), False, "lesser", "no sources in "),  # an installation that left them out has nothing to compare with
    ],
)
def test_the_slow_path_is_said_and_is_no_error(
    sources: tuple[str, ...], built: bool, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "names", lambda: sources)
    monkeypatch.setattr(compiled, "load", lambda _: object() if built else None)
    row = doctor._modules()
    assert row.state == state and said in row.detail and bool(row.mend) is not built
