"""The policy that `credgate init claude` writes, in a jail: the agent's header and that of the vendor's SDKs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from credgate.firstpolicy import policy_for
from credgate.policyfile import shipped_agents, shipped_packs
from rules.load_agents import read_agent
from tests.e2e.place import module_site
from tests.e2e.site import Site
from tests.e2e.test_sdks import Vendors, serving

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
site = pytest.fixture(scope="module")(module_site)
KEY = "sk-ant-real-0123456789-of-the-test"
SENT = """
import os, urllib.error, urllib.request
key = os.environ["ANTHROPIC_API_KEY"]
for name, value in (("x-api-key", key), ("authorization", "Bearer " + key), ("x-other", key)):
    request = urllib.request.Request("https://api.anthropic.com/v1/messages", b"{}", {name: value})
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request) as answer:
            answer.read()
            print(name, answer.status)
    except urllib.error.HTTPError as error:
        print(name, error.code)
"""


@pytest.fixture
def vendors(tmp_path: Path) -> Iterator[Vendors]:
    with serving(tmp_path) as running:
        yield running


def test_one_decoy_is_let_in_by_both_headers_and_by_no_other(site: Site, vendors: Vendors) -> None:
    text = policy_for(read_agent("claude", shipped_agents()["claude"]), shipped_packs())
    there = f'\naddress = ["127.0.0.1"]\ndial_port = {vendors.port}\nca = "ca.pem"\n'
    site.policy(text.replace('pack = "anthropic-api"\n', f'pack = "anthropic-api"{there}', 1), vendors.ca)
    site.secret("anthropic", KEY)
    done = site.run(site.python(), "-I", "-c", SENT)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("x-api-key 200", "authorization 200")
    assert third == "x-other 403"
    assert [key for _, _, key in vendors.seen] == [KEY, f"Bearer {KEY}"]
    (denied,) = site.ledger(ev="deny", path="/v1/messages")
    assert denied["reason"] == "placeholder_misplaced"
