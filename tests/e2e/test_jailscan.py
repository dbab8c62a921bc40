"""The scan that every run of these tests goes through finds what is planted, wherever a jail has it."""

import base64
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.conftest import OrdinaryUser
from tests.e2e.place import Live, wait_for
from tests.e2e.site import Site, make_site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")


@pytest.fixture
def planted(ordinary_user: OrdinaryUser) -> Iterator[Site]:
    """A site that believes a value a secret which its jail is given."""
    made = make_site(ordinary_user.uid, ordinary_user.gid)
    made.policy('version = 1\n[role.dev]\nenv = ["NOTE"]\nworkdir = "write"\n')
    yield made
    made.scan.found.clear()  # what was planted was found by the test
    made.scan.secrets.clear()
    made.close()


PLANT = """
import base64, os, sys, time
value = os.environ['NOTE']
open('/tmp/kept', 'w').write(value.encode().hex())
open('deep', 'w').write(base64.b64encode(b'x:' + value.encode()).decode())
print('said', value, flush=True)
sys.stdin.readline()
"""


def test_it_finds_what_is_planted(planted: Site) -> None:
    value = f"planted-{uuid.uuid4().hex}"
    planted.env["NOTE"] = value
    planted.scan.add("planted", value)
    process = planted.start(planted.python(), "-I", "-S", "-c", PLANT, stdin=subprocess.PIPE)
    wanted = {"environ", "memory", "a file"}
    try:
        wait_for(lambda: wanted <= {where for where, _ in planted.scan.found}, "the scan finds the value")
    finally:
        process.communicate("\n", timeout=60)
    with pytest.raises(AssertionError, match="secrets in the jail") as failed:
        planted.scan.close()
    assert {(where, "planted") for where in (*wanted, "output", "home")} == planted.scan.found
    assert value not in str(failed.value)


def test_control_without_it_nothing_is_found(planted: Site) -> None:
    value = f"planted-{uuid.uuid4().hex}"
    planted.env["NOTE"] = "another"
    planted.scan.add("planted", value)
    with Live(planted, "sleep", "30"):
        wait_for(lambda: planted.scan.looks >= 3, "the scan looks at the jail")
    done = planted.run("sh", "-c", f"echo {base64.b64encode(value[:-1].encode()).decode()[:-4]}")
    assert done.returncode == 0
    planted.scan.close()
    assert planted.scan.found == set()
