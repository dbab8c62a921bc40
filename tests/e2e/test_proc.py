"""/proc, /sys and core dumps: the same look inside the jail and, by the same user, outside."""

import json
import subprocess
from typing import Any

import pytest

from jail.plan import PROC_MASKED, PROC_MASKED_MORE, PROC_READ_ONLY
from tests.e2e.place import module_site
from tests.e2e.site import Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
site = pytest.fixture(scope="module")(module_site)

LOOK = """
import errno, json, os, resource, stat, sys
def read(path):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file: return len(file.read(64) or b"")
    except OSError as error: return errno.errorcode[error.errno]
def readonly(path):
    try: return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError as error: return errno.errorcode[error.errno]
def is_device(path): return stat.S_ISCHR(os.stat(path).st_mode)
def more_core():
    resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))
    return "allowed"
masked, directories = json.loads(sys.argv[1])
told = {
    "masked": {name: read(f"/proc/{name}") for name in masked},
    "device": [name for name in masked if os.path.exists(f"/proc/{name}") and is_device(f"/proc/{name}")],
    "readonly": {name: readonly(f"/proc/{name}") for name in directories if os.path.exists(f"/proc/{name}")},
    "sys": sorted(os.listdir("/sys")) if os.path.exists("/sys") else [],
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "init": open("/proc/1/comm").read(),
    "line": open("/proc/1/cmdline").read().strip("\\0"),
    "pids": sum(name.isdigit() for name in os.listdir("/proc")),
}
try: told["more core"] = more_core()
except (OSError, ValueError) as error: told["more core"] = type(error).__name__
print(json.dumps(told))
"""
ARGUMENT = json.dumps([[*PROC_MASKED, *PROC_MASKED_MORE], PROC_READ_ONLY])


@pytest.fixture(scope="module")
def looks(site: Site) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was seen inside, and outside."""
    site.policy("version = 1\n[role.dev]\n")
    argv = [site.python(), "-I", "-S", "-c", LOOK, ARGUMENT]
    inside = site.run(*argv)
    assert inside.returncode == 0, inside.stderr
    free = ["prlimit", "--core=8192:8192", *argv]
    outside = subprocess.run(site.as_user(free), capture_output=True, text=True, timeout=30, check=True)
    return json.loads(inside.stdout), json.loads(outside.stdout)


def test_masked_files_are_empty(looks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    inside, outside = looks
    told = {name for name, size in outside["masked"].items() if size not in (0, "ENOENT", "EACCES", "EPERM", "EAGAIN")}
    assert {"kallsyms", "keys", "key-users"} <= told  # control: to this user they say something
    there = {name for name, size in outside["masked"].items() if size != "ENOENT"}
    # A file that this network of namespaces lacks needs no mask; what is there is our /dev/null, or is not there.
    assert {name: inside["masked"][name] for name in there if inside["masked"][name] not in (0, "ENOENT")} == {}
    assert told <= set(inside["device"])


def test_settings_are_read_only(looks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    inside, outside = looks
    assert inside["readonly"]["sys"] is True
    assert set(inside["readonly"].values()) == {True}
    assert outside["readonly"]["sys"] is False  # control


def test_there_is_no_sys(looks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    inside, outside = looks
    assert inside["sys"] == []
    assert "kernel" in outside["sys"]  # control


def test_core_dumps_are_off_for_good(looks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    inside, outside = looks
    assert (inside["core"], inside["more core"]) == ([0, 0], "ValueError")
    assert (outside["core"], outside["more core"]) == ([8192, 8192], "allowed")  # control


def test_proc_shows_the_jail_alone(looks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    inside, outside = looks
    assert inside["pids"] == 2
    assert outside["pids"] > 2
    assert inside["init"] != outside["init"]
    assert inside["line"] == "credgate" and "credgate" != outside["line"] != ""  # no path of the host's
