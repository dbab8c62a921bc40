"""Agent CLIs as npm installs them, with the policy that `credgate init` writes, on a fresh home.

Only the API host is allowed, and it is a stand-in that wants the real key: each turn has a tool call that edits a file
and commits it, then an answer. Everything else that the agents ask for is refused.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from tests.agents.tmux import Screen
from tests.e2e.site import BIN, PATH, Site, bound, endpoint
from tests.targets import clients
from tests.targets.fixtures import https_target_at
from tests.targets.pki import Authority
from tests.targets.served import Target

pytestmark = [pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "node", "git", "clients")]

SCRIPT = Path(__file__).parents[1] / "targets/llm_target.py"
HOME = Path(os.environ["CREDGATE_TEST_AGENTS"])
# What a user's shell may hold: proxies that aren't there, forms that crash clients, trust that leads elsewhere.
INHERITED = {
    **dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), "http://127.0.0.1:1"),
    **dict.fromkeys(("ALL_PROXY", "all_proxy"), "socks5h://127.0.0.1:1"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "*,[::1],::1/128,.example,api.openai.com:443"),
    **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE"), "/nowhere.pem"),
    **dict.fromkeys(("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), "http://127.0.0.1:1"),
    "SSL_CERT_DIR": "/nowhere",
    "NODE_TLS_REJECT_UNAUTHORIZED": "0",
    "NODE_OPTIONS": "--use-openssl-ca",
}
ANSWER, ASK = "the word is pomegranate", "call the shell"
# What is left of the run, as one stream: environment and files. The key's name is not in the command.
FILES = "find ~ ~/.[a-z]*/ /tmp /run -xdev -type f -size -8M -exec cat {} +"
LOOK = f"env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; {FILES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    """One agent: where it asks, and how it is started for one turn."""

    name: str
    host: str
    secret: str
    argv: tuple[str, ...]
    decoy: str  # the variable that holds it
    screen: tuple[str, ...]  # how it is started for a person
    prompt: str  # on its screen once it may be typed at
    # of an MCP server's command: a file of the work tree, its text, more arguments
    servers: Callable[[list[str]], tuple[str, str, tuple[str, ...]]]
    size: tuple[int, int] = (120, 40)  # of its screen


def _as_json(command: list[str]) -> str:
    return json.dumps({"mcpServers": {"notes": {"command": command[0], "args": command[1:]}}})


def _codex(command: list[str]) -> tuple[str, str, tuple[str, ...]]:
    words = {"command": command[0], "args": command[1:], "required": True}  # else it doesn't wait for it
    flags = [word for key, value in words.items() for word in ("-c", f"mcp_servers.notes.{key}={json.dumps(value)}")]
    return "", "", tuple(flags)


CLIS = (
    Cli(
        name="claude",
        host="api.anthropic.com",
        secret="anthropic",
        argv=("claude", "-p", "--dangerously-skip-permissions"),
        decoy="ANTHROPIC_API_KEY",
        screen=("claude",),
        prompt="for shortcuts",
        servers=lambda command: ("servers.json", _as_json(command), ("--mcp-config=servers.json",)),
    ),
    Cli(
        name="codex",
        host="api.openai.com",
        secret="openai",
        argv=("codex", "exec", "--skip-git-repo-check"),
        decoy="CODEX_API_KEY",
        screen=("codex",),
        prompt="Ask Codex to do anything",
        servers=_codex,
        size=(48, 16),
    ),
    Cli(
        name="gemini",
        host="generativelanguage.googleapis.com",
        secret="gemini",
        argv=("gemini", "--approval-mode", "yolo", "-p"),
        decoy="GEMINI_API_KEY",
        screen=("gemini",),
        prompt="Type your message",
        servers=lambda command: (".gemini/settings.json", _as_json(command), ()),
    ),
    Cli(
        name="opencode",
        host="api.anthropic.com",
        secret="anthropic",
        argv=("opencode", "run", "-m", "anthropic/claude-sonnet-4-5"),
        decoy="ANTHROPIC_API_KEY",
        screen=("opencode", "-m", "anthropic/claude-sonnet-4-5"),
        prompt="Ask anything",
        servers=lambda command: (
            "opencode.json",
            json.dumps({"mcp": {"notes": {"type": "local", "command": command, "enabled": True}}}),
            (),
        ),
    ),
)


MORE = (
    Cli(
        name="copilot",
        host="api.openai.com",
        secret="openai",
        argv=("copilot", "--allow-all-tools", "-p"),
        decoy="COPILOT_PROVIDER_API_KEY",
        screen=("copilot",),
        prompt="",
        servers=lambda command: ("", "", ("--additional-mcp-config", _as_json(command))),
    ),
    Cli(
        name="goose",
        host="api.openai.com",
        secret="openai",
        argv=("goose", "run", "--no-session", "--with-builtin", "developer", "-t"),
        decoy="OPENAI_API_KEY",
        screen=("goose",),
        prompt="",
        servers=lambda command: ("", "", ("--with-extension", shlex.join(command))),
    ),
    Cli(
        name="aider",
        host="api.openai.com",
        secret="openai",
        argv=("aider", "--yes-always", "--no-stream", "--model", "openai/gpt-4.1", "-m"),
        decoy="OPENAI_API_KEY",
        screen=("aider",),
        prompt="",
        servers=lambda _command: ("", "", ()),  # it has none
    ),
)


BESIDE_GOOSE = pytest.mark.parametrize("cli", [*CLIS, MORE[1]], indirect=True, ids=lambda cli: cli.name)


@pytest.fixture(params=CLIS, ids=[cli.name for cli in CLIS])
def cli(request: pytest.FixtureRequest) -> Cli:
    """Each of the four, or one that a test names."""
    found: Cli = request.param
    return found


@pytest.fixture
def api(cli: Cli, target_state: Path, authority: Authority) -> Iterator[Target]:
    """The stand-in under the name of the real API host."""
    with https_target_at(target_state, authority, cli.host, script=SCRIPT) as target:
        yield target


@pytest.fixture
def ready(site: Site, cli: Cli, api: Target) -> Site:
    """A site with the agent's own policy, the key kept, a repository as work tree, and the agent on PATH."""
    site.env["PATH"] = f"{HOME / 'bin'}:{PATH}"
    text = site.credgate("init", cli.name, "--print").stdout
    line = next(line for line in text.splitlines() if line.startswith("pack = "))
    here = f'address = ["127.0.0.1"]\ndial_port = {api.port}\nca = "ca.pem"'
    site.policy(text.replace(line, f"{line}\n{here}", 1), api.ca)
    site.secret(cli.secret, api.token)
    git = ["git", "-C", str(site.work), "init", "-q", "-b", "main"]
    subprocess.run(site.as_user(git), env=site.environment(), check=True)
    return site


def saw(api: Target) -> set[str]:
    """The keys that arrived, in whichever header."""
    names = ("x-api-key", "x-goog-api-key", "authorization")
    heads = [dict(line["headers"]) for line in api.lines() if line["event"] == "request"]
    values = [v.removeprefix("Bearer ") for head in heads for k, v in head.items() if k.lower() in names]
    return set(values)


@pytest.fixture
def notes(ready: Site, api: Target, target_state: Path, authority: Authority) -> Iterator[Target]:
    """A target that the policy allows beside the API, with a secret of its own."""
    with https_target_at(target_state, authority, "notes.acme.example") as target:
        text = (ready.home / "policy/policy.toml").read_text()
        trees = json.dumps([str(HOME), str(clients.home()), sys.prefix, sys.base_prefix])
        role = text.replace("bindings = [", f'tools = {trees}\nbindings = ["notes", ', 1)
        ready.policy(role + endpoint(target, "notes") + bound("notes"), api.ca)
        ready.secret("notes", target.token)
        yield target


def with_server(site: Site, cli: Cli) -> tuple[str, ...]:
    """The agent's command line, an MCP server in its configuration."""
    site.write("work/notes_server.py", (SCRIPT.parent / "notes_server.py").read_text())
    name, text, flags = cli.servers([site.python(), "-I", "notes_server.py", str(clients.home())])
    if name:
        site.write(f"work/{name}", text)
    return (*cli.argv[:-1], *flags, cli.argv[-1])


@pytest.mark.parametrize("cli", [*CLIS, *MORE[:2]], indirect=True, ids=lambda cli: cli.name)
def test_a_turn_with_tool_calls_that_edit_commit_and_ask_an_mcp_server(
    ready: Site, cli: Cli, api: Target, notes: Target
) -> None:
    done = ready.run(*with_server(ready, cli), f"please {ASK} now", timeout=110, env=INHERITED)
    told = json.dumps(ready.ledger(ev="deny"), indent=0)[-3000:]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:] + told
    assert ANSWER in done.stdout + done.stderr, done.stdout + done.stderr[-3000:] + told
    assert (ready.work / "fruit.txt").read_text() == "quince\n"
    log = ["git", "-C", str(ready.work), "log", "--format=%s"]
    assert subprocess.check_output(ready.as_user(log), env=ready.environment(), text=True) == "fruit\n"
    assert saw(api) == {api.token}
    assert [seen.authorization for seen in notes.seen()] == [f"Bearer {notes.token}"]  # what its server asked for
    assert [line["reason"] for line in ready.ledger(ev="deny", host="elsewhere.acme.example")] == ["host_unlisted"]
    assert not any(token in done.stdout + done.stderr for token in (api.token, notes.token))


@pytest.mark.skipif(not (HOME / "bin/aider").exists(), reason="aider needs a Python before 3.13, and /usr/bin has none")
@pytest.mark.parametrize("cli", MORE[2:], indirect=True, ids=lambda cli: cli.name)
def test_aider_answers_in_a_repository_whose_configuration_it_may_not_write(ready: Site, cli: Cli, api: Target) -> None:
    done = ready.run(*cli.argv, "say a word", timeout=110)
    assert done.returncode == 0 and ANSWER in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
    assert saw(api) == {api.token}


def test_no_real_key_is_in_the_jail_after_a_turn(ready: Site, cli: Cli, api: Target) -> None:
    policy = ready.home / "policy/policy.toml"
    ready.policy(policy.read_text().replace("bindings =", f'tools = ["{HOME}"]\nbindings =', 1), api.ca)
    turn = f"""{HOME}/bin/"$@" 'say a word' </dev/null || exit; printf '\\n====\\n'; {LOOK}"""
    argv = ready.as_user([BIN / "credgate", "run", "-q", "--policy", policy, "--", "sh", "-c", turn, "sh", *cli.argv])
    place = {"env": ready.environment(), "cwd": ready.work}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=110, check=False, **place)
    said, mark, left = done.stdout.partition(b"\n====\n")
    assert mark and ANSWER.encode() in said + done.stderr, said[-2000:] + done.stderr[-3000:]
    decoy = next(v for k, _, v in (line.partition(b"=") for line in left.splitlines()) if k == cli.decoy.encode())
    assert left.count(decoy) >= 2  # the look finds what is there
    assert api.token.encode() not in done.stdout + done.stderr
    assert saw(api) == {api.token}


@pytest.mark.needs("tmux")
def test_on_a_screen_it_asks_nothing_first_and_answers(ready: Site, cli: Cli, api: Target) -> None:
    run = [BIN / "credgate", "run", "-q", "--policy", ready.home / "policy/policy.toml", "--", *cli.screen]
    with Screen(ready, run, cli.size) as screen:
        screen.until(cli.prompt)
        screen.type("say a word")
        screen.until(ANSWER)
    assert saw(api) == {api.token}


@BESIDE_GOOSE
def test_a_refusal_ends_it_soon_and_reaches_the_user(ready: Site, cli: Cli, api: Target) -> None:
    policy = ready.home / "policy/policy.toml"
    text = policy.read_text()
    allow = text.index("[[endpoint.")
    at = text.index("\n", text.index("pack = ", allow)) + 1
    ready.policy(f'{text[:at]}rules = ["read"]\n{text[at:]}', api.ca)
    done = ready.run(*cli.argv, "say a word", timeout=90)
    assert done.returncode != 0
    # From the start, as on a machine that nobody else wants: opencode's are 5.5 s of CPU, and no waiting beside.
    begun, end = ready.ledger(ev="run.start")[-1], ready.ledger(ev="run.end")[-1]
    waited = datetime.fromisoformat(end["ts"]) - datetime.fromisoformat(begun["ts"])
    wanted = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    assert waited.total_seconds() < 20 * wanted
    assert "No rule" in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    assert not any(line["method"] == "POST" for line in api.lines() if line["event"] == "request")


def _only(name: str) -> pytest.MarkDecorator:
    """For a test that one agent is enough for, the quickest with it."""
    return pytest.mark.parametrize("cli", [cli for cli in CLIS if cli.name == name], indirect=True, ids=[name])


# What each makes of its provider's answer to a key that is wrong or has expired.
WORDS = {
    "claude": "Invalid API key",
    "codex": "Incorrect API key provided",
    "gemini": "API key not valid",
    "goose": "Incorrect API key provided",
    "opencode": "invalid x-api-key",
}


@BESIDE_GOOSE
def test_a_wrong_key_ends_it_soon_and_the_user_hears_what_to_do(ready: Site, cli: Cli, api: Target) -> None:
    wrong = {"openai": "sk-proj-", "gemini": "AIza"}.get(cli.secret, "sk-ant-api03-") + "Ww9" * 30
    ready.secret(cli.secret, wrong)
    policy = ready.home / "policy/policy.toml"
    done = ready.credgate("run", "--policy", policy, "--", *cli.argv, "say a word", timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert WORDS[cli.name] in said, said[-3000:]
    assert saw(api) == {wrong} and wrong not in said
    answers = [line["status"] for line in api.lines() if line["event"] == "request"]
    if cli.name == "gemini":  # 400, which is any fault of a request's: its own words have to do
        assert set(answers) == {400} and "refused the secret" not in said
        return
    assert set(answers) == {401}
    # The ledger's count, to the last one. goose asks side by side, and may leave before it has heard each answer.
    heard = len(ready.ledger(ev="outcome", status=401))
    assert 1 <= heard <= len(answers) and (heard == len(answers) or cli.name == "goose")
    times = "once" if heard == 1 else f"{heard} times"
    mend = f"it is wrong or has expired: credgate secret set {cli.secret}"
    assert f"{cli.host} refused the secret {cli.secret} {times} (401): {mend}\n" in said


@_only("codex")
def test_two_sessions_at_once(ready: Site, cli: Cli, api: Target) -> None:
    both = [ready.start(*cli.argv, "say a word") for _ in range(2)]
    for run in both:
        said, told = run.communicate(timeout=60)
        assert run.returncode == 0 and ANSWER in said, told[-3000:]
    assert len({line["run"] for line in ready.ledger(ev="intent")}) == 2
    assert saw(api) == {api.token}


@_only("codex")
def test_codex_by_websocket_where_the_policy_has_its_pack(ready: Site, cli: Cli, api: Target) -> None:
    """The decoy in the handshake becomes the key, each message is judged, and nothing is posted."""
    policy = ready.home / "policy/policy.toml"
    rule = 'pack = "openai-inference"\n'
    text = policy.read_text().replace(rule, f'{rule}[[endpoint.openai-api.allow]]\npack = "openai-websocket"\n', 1)
    ready.policy(text.replace('["openai-inference"]', '["openai-inference", "openai-websocket"]', 1), api.ca)
    done = ready.run(*cli.argv, f"please {ASK} now", timeout=110)
    assert done.returncode == 0 and ANSWER in done.stdout, done.stderr[-3000:]
    assert (ready.work / "fruit.txt").read_text() == "quince\n"
    assert saw(api) == {api.token}
    asked = [(line["method"], line["status"]) for line in api.lines() if line["event"] == "request"]
    assert set(asked) == {("GET", 101)}
    messages = [line["type"] for line in api.lines() if line["event"] == "message"]
    assert len(messages) >= 2 and set(messages) == {"response.create"}
