"""Clients of this host say what they are configured for; work trees are not believed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from credgate import registries
from credgate.clientconfig import Caller, ClientError, ask
from credgate.paths import Places
from credgate.policyfile import Origin, asked_by, load, open_policy
from credgate.registries import resolve
from rules.registries import EXTRA, Client, Registry

CREDGATE = Path(sys.executable).parent / "credgate"
NPM_STAND_IN = """\
#!{python} -I
import json, os
print(json.dumps({{"registry": os.environ.get("npm_config_registry") or "https://npm.acme.example/x/",
                  "@acme:registry": "https://own.acme.example/", "userconfig": os.environ["HOME"] + "/.npmrc",
                  "globalconfig": "/etc/npmrc", "cwd": os.getcwd(), "seen": sorted(os.environ)}}))
"""


@pytest.fixture(autouse=True)
def _forget() -> None:
    registries._cache.clear()


def script(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


def hosts(found: tuple[Registry, ...]) -> list[tuple[str, str]]:
    return [(r.scope, f"{r.host}{r.path}") for r in found]


def test_npm_says_its_registry_and_each_scope_s(tmp_path: Path) -> None:
    script(tmp_path / "bin", "npm", NPM_STAND_IN)
    env = {"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path), "SECRET_TOKEN": "x"}
    found = resolve([Client.NPM], Caller(env=env))[Client.NPM]
    assert hosts(found) == [("", "npm.acme.example/x"), ("@acme", "own.acme.example")]
    changed = resolve([Client.NPM], Caller(env={**env, "npm_config_registry": "https://other.acme.example/"}))
    assert hosts(changed[Client.NPM])[0] == ("", "other.acme.example")


def test_a_client_gets_no_more_than_it_needs(tmp_path: Path) -> None:
    path = script(tmp_path / "bin", "npm", NPM_STAND_IN)
    caller = Caller(
        env={"PATH": f"{tmp_path}/bin:relative:.", "HOME": str(tmp_path), "TOKEN": "x", "NODE_OPTIONS": "x"}
    )

    told = json.loads(ask(caller, str(path)))
    assert told["cwd"] == "/"
    assert {"TOKEN", "NODE_OPTIONS"}.isdisjoint(told["seen"])
    assert caller.environment()["PATH"] == f"{tmp_path}/bin"


def test_a_client_of_a_work_tree_is_not_asked(tmp_path: Path) -> None:
    script(tmp_path / "tree/node_modules/.bin", "npm", NPM_STAND_IN)
    env = {"PATH": f"{tmp_path}/tree/node_modules/.bin", "HOME": str(tmp_path)}
    assert resolve([Client.NPM], Caller(env=env))  # control: nobody wrote there
    with pytest.raises(ClientError) as fault:
        resolve([Client.NPM], Caller(env=env, written=(str(tmp_path / "tree"),)))
    assert fault.value.code == "client_missing"
    assert "install npm" in fault.value.hint


def test_a_link_into_a_work_tree_is_not_asked(tmp_path: Path) -> None:
    real = script(tmp_path / "tree", "npm", NPM_STAND_IN)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/npm").symlink_to(real)
    caller = Caller(env={"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path)}, written=(str(tmp_path / "tree"),))
    with pytest.raises(ClientError, match="npm is not on PATH"):
        resolve([Client.NPM], caller)


@pytest.mark.parametrize(
    "name", ["npm_config_userconfig", "NPM_CONFIG_GLOBALCONFIG", "PIP_CONFIG_FILE", "UV_CONFIG_FILE"]
)
def test_a_configuration_of_a_work_tree_is_refused(tmp_path: Path, name: str) -> None:
    caller = Caller(env={name: f"{tmp_path}/tree/x", "PATH": "/usr/bin"}, written=(str(tmp_path / "tree"),))
    with pytest.raises(ClientError) as fault:
        caller.environment()
    assert fault.value.code == "client_config_refused"


def test_the_home_s_configuration_may_not_lie_in_a_work_tree(tmp_path: Path) -> None:
    script(tmp_path / "bin", "npm", NPM_STAND_IN)
    caller = Caller(env={"PATH": f"{tmp_path}/bin", "HOME": f"{tmp_path}/home"}, written=(str(tmp_path / "home"),))
    with pytest.raises(ClientError, match="npm's userconfig"):
        resolve([Client.NPM], caller)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("exit 3", "client_failed"),
        ("echo nonsense", "client_failed"),
        ('echo \'{{"registry": "https://user:hunter2@10.0.0.1/"}}\'', "registry_invalid"),
        ('echo \'{{"registry": "file:///srv"}}\'', "registry_missing"),
    ],
)
def test_a_client_that_says_nothing_of_use(tmp_path: Path, text: str, code: str) -> None:
    script(tmp_path / "bin", "npm", f"#!/bin/sh\n{text}\n")
    with pytest.raises(ClientError) as fault:
        resolve([Client.NPM], Caller(env={"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path)}))
    assert fault.value.code == code
    assert fault.value.exit_status == 2
    assert fault.value.hint
    assert "hunter2" not in str(fault.value)


def test_an_answer_is_kept_until_a_file_changes(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script(
        tmp_path / "bin",
        "npm",
        f'#!/bin/sh\necho >> {asked}\necho \'{{{{"registry": "https://npm.acme.example/"}}}}\'\n',
    )
    caller = Caller(env={"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path)})
    for _ in range(3):
        resolve([Client.NPM], caller)
    assert asked.read_text() == "\n"
    (tmp_path / ".npmrc").write_text("registry=https://other.acme.example/\n")
    resolve([Client.NPM], caller)
    assert asked.read_text() == "\n\n"


UV_TOML = """\
[[index]]
name = "more"
url = "https://more.acme.example/simple"
[[index]]
url = "https://main.acme.example/root/simple"
default = true
"""


UV_STAND_IN = """\
#!/bin/sh
cat <<END
      --default-index <X>
          The default (by default:
          <https://built-in.acme.example/simple>) [env: X]
      --other
END
"""


def test_uv_s_files_and_variables_count_as_uv_says(tmp_path: Path) -> None:
    script(tmp_path / "bin", "uv", UV_STAND_IN)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    caller = Caller(env=env)
    assert hosts(resolve([Client.UV], caller)[Client.UV]) == [("", "built-in.acme.example/simple")]
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text(UV_TOML)
    by_file = [("", "main.acme.example/root/simple"), (EXTRA, "more.acme.example/simple")]
    assert hosts(resolve([Client.UV], caller)[Client.UV]) == by_file
    by_name = Caller(
        env={**env, "UV_DEFAULT_INDEX": "x=https://first.acme.example/", "UV_INDEX": "y=https://two.acme.example/"}
    )
    assert hosts(resolve([Client.UV], by_name)[Client.UV]) == [
        ("", "first.acme.example"),
        (EXTRA, "two.acme.example"),
        (EXTRA, "more.acme.example/simple"),
    ]
    (tmp_path / ".config/uv/uv.toml").write_text("[")
    with pytest.raises(ClientError, match="TOMLDecodeError"):
        resolve([Client.UV], caller)


def real_pip(tmp_path: Path) -> dict[str, str]:
    """The pip of this test's own interpreter, as a command."""
    script(tmp_path / "bin", "pip", '#!/bin/sh\nexec {python} -I -m pip "$@"\n')
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}


def test_the_real_pip_says_what_it_is_configured_for(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://u:hunter2@mirror.acme.example/simple/\n"
        "extra-index-url =\n  https://two.acme.example/simple\n  file:///srv/simple\n"
    )
    env = {**real_pip(tmp_path), "PIP_CONFIG_FILE": str(config)}
    found = resolve([Client.PIP], Caller(env=env))[Client.PIP]
    assert hosts(found)[:2] == [("", "mirror.acme.example/simple"), (EXTRA, "two.acme.example/simple")]
    assert "hunter2" not in repr(found)


def test_the_real_pip_s_built_in_default(tmp_path: Path) -> None:
    """/dev/null is pip's own way to say: no configuration file."""
    found = resolve([Client.PIP], Caller(env={**real_pip(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}))[Client.PIP]
    assert found[0].scheme == "https"
    assert found[0].path == "/simple"


@pytest.mark.needs("npm")
def test_the_real_npm_says_its_scopes(tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text(
        "registry=https://mirror.acme.example/npm/\n@acme:registry=https://own.acme.example/\n"
        "//own.acme.example/:_authToken=hunter2\n"
    )
    found = resolve([Client.NPM], Caller(env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}))[Client.NPM]
    assert hosts(found) == [("", "mirror.acme.example/npm"), ("@acme", "own.acme.example")]
    assert "hunter2" not in repr(found)


POLICY = """\
version = 1
[endpoint.npm]
host_from = "npm"
[[endpoint.npm.allow]]
pack = "npm-install"
[role.r]
endpoints = ["npm"]
"""


def test_a_policy_loads_by_its_caller_s_client_and_show_prints_it(tmp_path: Path) -> None:
    script(tmp_path / "bin", "npm", NPM_STAND_IN)
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    path.chmod(0o600)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    found = asked_by(open_policy(path, Origin.FLAG), env, Places.from_env(env))
    assert load(found).endpoints["npm~2"].host.text == "own.acme.example"
    shown = subprocess.run(
        [
            CREDGATE,
            "policy",
            "show",
            "--json",
            "--policy",
            path,
        ],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(shown.stdout)["registries"] == [
        "npm https://npm.acme.example:443/x",
        "npm @acme https://own.acme.example:443",
    ]
    missing = subprocess.run(
        [CREDGATE, "policy", "check", path],
        env={**env, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: npm is not on PATH")
    assert "hint: install npm" in missing.stderr
