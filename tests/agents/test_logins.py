"""Agent CLIs signed in by subscription: the login is taken over by `secret import`, and the jail has decoys of it.

The stand-in takes each refresh token once and one account alone, as the providers do.
"""

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agents.test_clis import ANSWER, ASK, HOME, LOOK
from tests.agents.tmux import Screen
from tests.e2e.site import BIN, PATH, Site
from tests.targets.fixtures import https_target_at
from tests.targets.login_target import ACCOUNT, FIRST
from tests.targets.pki import Authority
from tests.targets.served import Target

pytestmark = [pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "node", "git")]

SCRIPT = Path(__file__).parents[1] / "targets/login_target.py"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


OVER = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part({'exp': 1_600_000_000})}.{'x' * 342}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """One agent: where its login lies on the host and what is in it, the hosts that it uses, one turn."""

    name: str
    file: str
    login: object
    hosts: tuple[str, ...]  # that of the API, then that of the token endpoint
    argv: tuple[str, ...]
    decoys: tuple[str, str]  # the variables: access, refresh
    prompt: str  # on its screen once it may be typed at
    resume: tuple[str, ...]  # how the last session is gone on with
    sessions: str  # where they lie in a home
    expired: tuple[str, str]  # sed's words that make the jail's own token an expired one: file, expression


SIGNED = (
    Signed(
        name="claude",
        file=".claude/.credentials.json",
        login={"claudeAiOauth": {"accessToken": "real-access-0", "refreshToken": FIRST, "expiresAt": 1}},
        hosts=("api.anthropic.com", "platform.claude.com"),
        argv=("claude", "-p", "--dangerously-skip-permissions"),
        prompt="shift+tab to cycle",
        resume=("claude", "-p", "--dangerously-skip-permissions", "-c"),
        sessions=".claude/projects/*/*.jsonl",
        decoys=("CLAUDE_LOGIN_TOKEN", "CLAUDE_LOGIN_REFRESH_TOKEN"),
        expired=("~/.claude/.credentials.json", 's/"expiresAt": 4102444800000/"expiresAt": 1000/'),
    ),
    Signed(
        name="codex",
        file=".codex/auth.json",
        login={"auth_mode": "chatgpt", "tokens": {"refresh_token": FIRST, "account_id": ACCOUNT}},
        hosts=("chatgpt.com", "auth.openai.com"),
        argv=("codex", "exec", "--skip-git-repo-check"),
        prompt="Ask Codex to do anything",
        resume=("codex", "exec", "--skip-git-repo-check", "resume", "--last"),
        sessions=".codex/sessions/*/*/*/*.jsonl",
        decoys=("CODEX_LOGIN_TOKEN", "CODEX_LOGIN_REFRESH_TOKEN"),
        expired=("~/.codex/auth.json", f's/"access_token": "[^"]*"/"access_token": "{OVER}"/'),
    ),
    Signed(
        name="gemini",
        file=".gemini/oauth_creds.json",
        login={"access_token": "real-access-0", "refresh_token": FIRST, "expiry_date": 1},
        hosts=("cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
        argv=("gemini", "--approval-mode", "yolo", "-p"),
        prompt="Type your message",
        resume=("gemini", "--approval-mode", "yolo", "-r", "latest", "-p"),
        sessions=".gemini/tmp/*/chats/*.jsonl",
        decoys=("GEMINI_LOGIN_TOKEN", "GEMINI_LOGIN_REFRESH_TOKEN"),
        expired=("~/.gemini/oauth_creds.json", "s/4102444800000/1000/"),
    ),
)


@pytest.fixture(params=SIGNED, ids=[signed.name for signed in SIGNED])
def signed(request: pytest.FixtureRequest) -> Signed:
    """Each of the three."""
    found: Signed = request.param
    return found


@pytest.fixture
def api(signed: Signed, target_state: Path, authority: Authority) -> Iterator[Target]:
    """The stand-in under the names of both hosts."""
    host, *more = signed.hosts
    with https_target_at(target_state, authority, host, script=SCRIPT, more=more) as target:
        yield target


@pytest.fixture
def ready(site: Site, signed: Signed, api: Target) -> Site:
    """A site whose user is signed in, has taken the login over, and has the policy that `init --login` writes."""
    site.env["PATH"] = f"{HOME / 'bin'}:{PATH}"
    site.scan.add("refresh", FIRST)
    site.scan.add("access", api.token)
    site.write(signed.file, json.dumps(signed.login))
    done = site.credgate("secret", "import", signed.name, "--move")
    assert done.returncode == 0, done.stderr
    assert not (site.home / signed.file).exists()
    text = site.credgate("init", signed.name, "--login", "--print").stdout
    here = f'address = ["127.0.0.1"]\ndial_port = {api.port}\nca = "ca.pem"'
    for line in [line for line in text.splitlines() if line.startswith("[endpoint.")]:
        text = text.replace(line, f"{line}\n{here}", 1)
    site.policy(text.replace("\nbindings =", f'\ntools = ["{HOME}"]\nbindings =', 1), api.ca)
    git = ["git", "-C", str(site.work), "init", "-q", "-b", "main"]
    subprocess.run(site.as_user(git), env=site.environment(), check=True)
    return site


def paths(api: Target) -> list[str]:
    return [str(line["path"]) for line in api.lines() if line["event"] == "request" and line["status"] == 200]


def test_a_turn_by_decoys_after_one_refresh_of_the_gateways_own(ready: Site, signed: Signed, api: Target) -> None:
    done = ready.run(*signed.argv, f"please {ASK} now", timeout=110)
    told = json.dumps([[line.get(k) for k in ("ev", "host", "path", "reason")] for line in ready.ledger()])[-4000:]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:] + told
    assert ANSWER in done.stdout + done.stderr, done.stdout + done.stderr[-3000:] + told
    assert (ready.work / "fruit.txt").read_text() == "quince\n"
    tokens = [path for path in paths(api) if path.endswith("/token")]
    assert len(tokens) == 1
    assert len(ready.ledger(ev="mint", verdict="allow")) == 1


def test_its_own_refresh_is_answered_with_decoys(ready: Site, signed: Signed, api: Target) -> None:
    """The file in the jail is made to look expired first; what is left in the jail holds decoys alone."""
    file, words = signed.expired
    turn = f"""sed -i '{words}' {file}; {HOME}/bin/"$@" 'say a word' </dev/null || exit; printf '\\n====\\n'; {LOOK}"""
    argv = [BIN / "credgate", "run", "-q", "--policy", ready.home / "policy/policy.toml"]
    argv = ready.as_user([*argv, "--", "sh", "-c", turn, "sh", *signed.argv])
    place = {"env": ready.environment(), "cwd": ready.work}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=110, check=False, **place)
    said, mark, left = done.stdout.partition(b"\n====\n")
    told = json.dumps([[line.get(k) for k in ("ev", "host", "path", "reason")] for line in ready.ledger()])[-4000:]
    assert mark and ANSWER.encode() in said + done.stderr, said[-2000:] + done.stderr[-3000:] + told.encode()
    pairs = dict(
        line.split(b"=", 1) for line in left.splitlines() if line.startswith(b"%s_" % signed.name.upper().encode())
    )
    for name in signed.decoys:
        assert left.count(pairs[name.encode()]) >= 2  # the look finds what is there
    answered = ready.ledger(ev="mint", verdict="answered")
    assert answered, told
    for real in (api.token, FIRST, "real-access", "real-refresh", ACCOUNT):
        assert real.encode() not in done.stdout + done.stderr
    assert [path.endswith("/token") for path in paths(api)].count(True) == 1


def test_its_session_comes_back_and_the_next_jail_goes_on_with_it(ready: Site, signed: Signed, api: Target) -> None:
    """In the jail of another project there is nothing of it; of configuration a plain turn changes none."""
    first = ready.run(*signed.argv, "say a word", timeout=110)
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr[-3000:]
    (session,) = ready.home.glob(signed.sessions)
    before = session.read_text()
    assert ANSWER in before and session.stat().st_uid == ready.uid
    second = ready.run(*signed.resume, "say it again", timeout=110)
    assert second.returncode == 0, second.stdout[-2000:] + second.stderr[-3000:]
    assert list(ready.home.glob(signed.sessions)) == [session]
    assert session.read_text().startswith(before) and "say it again" in session.read_text()[len(before) :]
    ends = ready.ledger(ev="run.end")
    assert [end["state_kept"] for end in ends] == [0, 0], second.stderr
    elsewhere = ready.home / "elsewhere"
    elsewhere.mkdir()
    ready.own(elsewhere)
    look = f"ls -R ~/{signed.sessions.split('/')[0]}; cat ~/{signed.sessions}"
    third = ready.run("sh", "-c", look, flags=["--workdir", elsewhere], cwd=elsewhere)
    assert ANSWER not in third.stdout and session.name not in third.stdout


@pytest.mark.needs("tmux")
def test_on_a_screen_it_asks_nothing_first_and_answers(ready: Site, signed: Signed, api: Target) -> None:
    run = [BIN / "credgate", "run", "-q", "--policy", ready.home / "policy/policy.toml", "--", signed.name]
    with Screen(ready, run) as screen:
        screen.until(signed.prompt)
        screen.type("say a word")
        screen.until(ANSWER)


def test_copilot_by_a_token_of_githubs(site: Site, target_state: Path, authority: Authority) -> None:
    """One decoy for both hosts: that which says where the API is, and the API."""
    site.env["PATH"] = f"{HOME / 'bin'}:{PATH}"
    more = ["api.individual.githubcopilot.com"]
    with https_target_at(target_state, authority, "api.github.com", script=SCRIPT, more=more) as target:
        text = site.credgate("init", "copilot", "--login", "--print").stdout
        here = f'address = ["127.0.0.1"]\ndial_port = {target.port}\nca = "ca.pem"'
        for line in [line for line in text.splitlines() if line.startswith("[endpoint.")]:
            text = text.replace(line, f"{line}\n{here}", 1)
        site.policy(text, target.ca)
        site.secret("copilot-github", target.token)
        git = ["git", "-C", str(site.work), "init", "-q", "-b", "main"]
        subprocess.run(site.as_user(git), env=site.environment(), check=True)
        done = site.run("copilot", "--allow-all-tools", "-p", f"please {ASK} now", timeout=110)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        assert ANSWER in done.stdout and (site.work / "fruit.txt").read_text() == "quince\n"
        hosts = {line["host"] for line in site.ledger(ev="intent", secret="copilot-github")}
        assert hosts == {"api.github.com", *more}
