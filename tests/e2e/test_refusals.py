"""A host that lacks something a jail needs: 125, one error, one hint that names the mend, and nothing was started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.place import one_error, raw_run
from tests.e2e.site import BIN, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
CONDITION = Path(__file__).with_name("condition.py")


def under(site: Site, condition: str) -> list[str]:
    """Words that make a condition for what follows them."""
    copy = site.write("condition.py", CONDITION.read_text())  # the checkout may be closed to the site's user
    return [sys.executable, "-I", str(copy), condition]


def run_under(site: Site, condition: str) -> tuple[int, str]:
    done = raw_run(site, "touch", site.work / "marker", before=under(site, condition))
    return done.status, done.err.decode()


@pytest.fixture
def writing(site: Site) -> Site:
    site.policy('version = 1\n[role.dev]\nworkdir = "write"\n')
    return site


@pytest.mark.parametrize("condition", ["nothing", "own mounts", "other filter"])
def test_a_host_that_lacks_nothing_runs_it(writing: Site, condition: str) -> None:
    """The controls: the same namespaces and the same kind of filter, with nothing covered and nothing needed denied."""
    assert run_under(writing, condition) == (0, "")
    assert (writing.work / "marker").exists()


@pytest.mark.parametrize(
    ("condition", "said", "mend"),
    [
        ("no namespaces", "userns: refused", "sysctl -w user.max_user_namespaces=15000"),
        ("masked proc", "proc at b'/proc'", "systempaths=unconfined"),
        ("read-only sys", "Read-only file system", "/proc/sys must be writable"),
        ("no unshare", "userns: refused", "an outer seccomp filter denies it"),
        ("unshare unknown", "userns: refused", "an outer seccomp filter denies it"),
        ("no setns", "Operation not permitted", "an outer seccomp filter denies it"),
        ("no mount", "Operation not permitted", "an outer seccomp filter denies it"),
        ("old kernel", "Function not implemented", "an outer seccomp filter denies it"),
        ("no landlock", "landlock", "boot a kernel with landlock"),
        ("landlock off", "landlock", "boot a kernel with landlock"),
        ("no libseccomp", "libseccomp", "apt-get install libseccomp2"),
        ("no nftables", "nft", "apt-get install nftables"),
    ],
)
def test_what_a_host_lacks_is_named_with_its_mend(writing: Site, condition: str, said: str, mend: str) -> None:
    status, err = run_under(writing, condition)
    error, hint = one_error(err)
    assert status == 125
    assert said in error
    assert mend in hint
    assert not (writing.work / "marker").exists()


@pytest.mark.parametrize(
    ("condition", "row"),
    [
        ("masked proc", "fresh /proc"),
        ("no mount", "mounts"),
        ("no libseccomp", "seccomp"),
        ("no nftables", "nftables"),
    ],
)
def test_doctor_finds_it_too(site: Site, condition: str, row: str) -> None:
    words = site.as_user([*under(site, condition), BIN / "credgate", "doctor", "--json"])
    env = site.environment()
    done = subprocess.run(words, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert (done.returncode, checks[row]["state"]) == (3, "missing")
    assert checks[row]["mend"]
