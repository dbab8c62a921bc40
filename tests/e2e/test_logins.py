"""A login by subscription: taken over on the host, refreshed by the gateway once for all, decoys alone in the jails.

The agents themselves, signed in: tests/agents/test_logins.py.
"""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.targets.fixtures import https_target_at
from tests.targets.login_target import FIRST
from tests.targets.pki import Authority
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

SCRIPT = Path(__file__).parents[1] / "targets/login_target.py"
HOSTS = ("api.anthropic.com", "platform.claude.com")
AGENT = """
import json, os, sys, time, urllib.error, urllib.request
HOME, ME, OTHER = os.environ["HOME"], *sys.argv[1:]
file = json.load(open(HOME + "/.claude/.credentials.json"))["claudeAiOauth"]
TOKEN = "https://platform.claude.com/v1/oauth/token"
def ask(url, body, **headers):
    head = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=head)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
def message(token):
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    return ask("https://api.anthropic.com/v1/messages", body, Authorization="Bearer " + token)[0]
def refresh(token, grant="refresh_token", **more):
    return ask(TOKEN, {"grant_type": grant, "refresh_token": token, "client_id": "x", **more})
with open(ME, "w") as out:
    out.write(file["refreshToken"])
def meet(mark):
    # Until the other jail is there as well: its decoys are those of a living run alone.
    open(ME + mark, "w").close()
    deadline = time.monotonic() + 100
    while not os.path.exists(OTHER + mark):
        if time.monotonic() > deadline:
            sys.exit("the other jail did not come to " + repr(mark))
        time.sleep(0.05)
meet(".begun")
first = message(file["accessToken"])
own = refresh(file["refreshToken"], scope="user:inference user:profile")
print(json.dumps({
    "file": file, "statuses": [first, message(own[1]["access_token"])], "own": own,
    "refused": [
        refresh(open(OTHER).read())[0], refresh("sk-ant-ort01-made-up")[0],
        refresh("", "authorization_code", code="c")[0], ask(TOKEN.replace("token", "other"), {})[0],
        message(file["refreshToken"]),
    ],
    "environ": open("/proc/self/environ").read(),
}))
sys.stdout.flush()
meet(".done")
"""


@pytest.fixture
def api(target_state: Path, authority: Authority) -> Iterator[Target]:
    """The stand-in under both names."""
    with https_target_at(target_state, authority, HOSTS[0], script=SCRIPT, more=HOSTS[1:]) as target:
        yield target


@pytest.fixture
def signed_in(site: Site, api: Target) -> Site:
    """A site whose user took claude's login over; its policy is that of `init --login`, with the stand-in's place."""
    site.scan.add("refresh", FIRST)
    site.scan.add("access", api.token)
    site.write(".claude/.credentials.json", json.dumps({"claudeAiOauth": {"refreshToken": FIRST}}))
    assert site.credgate("secret", "import", "claude", "--move").returncode == 0
    text = site.credgate("init", "claude", "--login", "--print").stdout
    here = f'address = ["127.0.0.1"]\ndial_port = {api.port}\nca = "ca.pem"'
    for name in ("anthropic-api", "anthropic-login"):
        text = text.replace(f"[endpoint.{name}]", f"[endpoint.{name}]\n{here}")
    site.policy(text, api.ca)
    return site


def directly(api: Target, token: str) -> int:
    """Ask the stand-in without a gateway."""
    trust = ssl.create_default_context(cafile=str(api.ca))
    data = json.dumps({"model": "m", "messages": []}).encode()
    url = f"https://127.0.0.1:{api.port}/v1/messages"
    request = urllib.request.Request(url, data=data, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, context=trust, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_two_jails_hold_decoys_alone_and_share_one_refresh(signed_in: Site, api: Target) -> None:
    names = ("one", "two")
    jails = [signed_in.start(signed_in.python(), "-c", AGENT, me, other) for me, other in (names, names[::-1])]
    outputs = [jail.communicate(timeout=110) for jail in jails]
    said = [json.loads(out) for out, err in outputs if out or pytest.fail(err)]
    for jail in said:
        file, own = jail["file"], jail["own"][1]
        assert file["expiresAt"] > 4e12
        assert file["accessToken"].startswith("sk-ant-oat01-") and file["refreshToken"].startswith("sk-ant-ort01-")
        assert jail["statuses"] == [200, 200]
        assert (own["access_token"], own["refresh_token"]) == (file["accessToken"], file["refreshToken"])
        assert own["scope"] == "user:inference user:profile" and own["expires_in"] > 86400
        assert jail["refused"] == [403] * 5
        assert f"CLAUDE_LOGIN_TOKEN={file['accessToken']}" in jail["environ"]
        assert directly(api, file["accessToken"]) == 401
    assert directly(api, api.token) == 200  # the real one, which no jail held, would pass
    assert len({jail["file"][key] for jail in said for key in ("accessToken", "refreshToken")}) == 4
    tokens = [line for line in api.lines() if line["event"] == "request" and line["path"] == "/v1/oauth/token"]
    assert [line["status"] for line in tokens] == [200]
    assert len(signed_in.ledger(ev="mint", verdict="allow")) == 1
    answered = signed_in.ledger(ev="mint", verdict="answered")
    assert [line["rule"] for line in answered] == ["mint.claude-session"] * 2
    assert len({line["run"] for line in answered}) == 2
