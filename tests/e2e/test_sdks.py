"""SDKs and CLIs of vendors in the jail, by the packs: a decoy inside, the real key at the target, events as they come.

The targets speak the vendors' protocols as documented; they are the witnesses of what arrived.
"""

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.targets import clients
from tests.targets.pki import Authority

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "clients")

HOSTS = ("api.openai.com", "api.anthropic.com", "api.github.com")
WORDS = ("one ", "two ", "three ")
KEYS = {
    "openai": "sk-proj-" + "Rr1" * 16,
    "anthropic": "sk-ant-api03-" + "Ss2" * 20,
    "github": "ghp_" + "Tt3" * 12,
}


@dataclass
class Vendors:
    """One server for the three names: the request line, and the credential headers of each."""

    port: int
    ca: Path
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def keys(self, path: str) -> set[str]:
        return {key for _, asked, key in self.seen if asked.startswith(path)}


def openai_events() -> Iterator[bytes]:
    for word in WORDS:
        delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def anthropic_events() -> Iterator[bytes]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    events: list[dict[str, object]] = [{"type": "message_start", "message": {**start, "stop_reason": None}}]
    events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    deltas = [{"type": "text_delta", "text": word} for word in WORDS]
    events += [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    events.append({"type": "content_block_stop", "index": 0})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    events.append({"type": "message_stop"})
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


STREAMS = {"/v1/chat/completions": openai_events, "/v1/messages": anthropic_events}
GAP = 0.2  # seconds between two events


@contextlib.contextmanager
def serving(state: Path) -> Iterator[Vendors]:
    authority = Authority(state, "vendors")
    contexts = {}
    for host in HOSTS:
        pair = authority.issue(host)
        contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[host].load_cert_chain(pair.certificate, pair.key)

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name in contexts:
            connection.context = contexts[name]

    contexts[HOSTS[0]].sni_callback = choose
    vendors = Vendors(port=0, ca=authority.ca)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _note(self) -> None:
            key = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
            vendors.seen.append((self.command, self.path, key))
            self.rfile.read(int(self.headers.get("content-length") or 0))

        def do_POST(self) -> None:
            self._note()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in STREAMS[self.path.partition("?")[0]]():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
                time.sleep(GAP)
            self.wfile.write(b"0\r\n\r\n")

        def do_GET(self) -> None:
            self._note()
            body = json.dumps({"full_name": "acme/app", "private": True}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = contexts[HOSTS[0]].wrap_socket(server.socket, server_side=True)
    vendors.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield vendors
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def vendors(tmp_path: Path) -> Iterator[Vendors]:
    with serving(tmp_path) as running:
        yield running


def endpoint(vendors: Vendors, name: str, pack: str) -> str:
    return (
        f'[endpoint.{name}]\npack = "{name}-api"\ndial_port = {vendors.port}\naddress = ["127.0.0.1"]\nca = "ca.pem"\n'
        f'[[endpoint.{name}.allow]]\npack = "{pack}"\n'
    )


def bound(name: str, pack: str, place: str, env: str, shape: str) -> str:
    return (
        f'[secret.{name}]\nsource = "keyring:credgate/{name}"\n'
        f'[binding.{name}]\nsecret = "{name}"\nendpoint = "{name}"\nrules = ["{pack}"]\nplace = "{place}"\n'
        f'mode = "placeholder"\nplaceholder = {{ env = "{env}", shape = "{shape}" }}\n'
    )


def policy(vendors: Vendors) -> str:
    return (
        "version = 1\n"
        + endpoint(vendors, "openai", "openai-inference")
        + endpoint(vendors, "anthropic", "anthropic-inference")
        + endpoint(vendors, "github", "github-read")
        + bound("openai", "openai-inference", "header:authorization", "OPENAI_API_KEY", "sk-proj-{48}")
        + bound("anthropic", "anthropic-inference", "header:authorization", "ANTHROPIC_API_KEY", "sk-ant-api03-{60}")
        + bound("github", "github-read", "header:authorization", "GH_TOKEN", "ghp_{30}{crc32}").replace(
            'mode = "placeholder"', 'format = "token {secret}"\nmode = "placeholder"'
        )
        + f'[role.dev]\nbindings = ["openai", "anthropic", "github"]\nworkdir = "write"\ntools = ["{clients.home()}"]\n'
    )


CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
import anthropic, openai
message = [{"role": "user", "content": "count"}]
said, times = [], []
for chunk in openai.OpenAI().chat.completions.create(model="m", messages=message, stream=True):
    said.append(chunk.choices[0].delta.content); times.append(time.monotonic())
print("".join(said), times[-1] - times[0] > 0.2)
said, times = [], []
with anthropic.Anthropic().messages.stream(model="m", max_tokens=9, messages=message) as stream:
    for text in stream.text_stream:
        said.append(text); times.append(time.monotonic())
print("".join(said), times[-1] - times[0] > 0.2)
try:
    openai.OpenAI(max_retries=0).batches.create(completion_window="24h", endpoint="/v1/responses", input_file_id="f")
except openai.PermissionDeniedError as error:
    print(error.body["code"] if "code" in error.body else error.body["error"]["code"])
import os
print(os.environ["OPENAI_API_KEY"], os.environ["ANTHROPIC_API_KEY"])
"""


def set_up(site: Site, vendors: Vendors) -> None:
    site.policy(policy(vendors), vendors.ca)
    for name, key in KEYS.items():
        site.secret(name, key)


def test_the_sdks_of_openai_and_anthropic_stream(site: Site, vendors: Vendors) -> None:
    set_up(site, vendors)
    done = site.run(site.python(), "-I", "-c", CODE, clients.home())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["one two three  True", "one two three  True", "no_rule"]  # in pieces, as they came
    assert vendors.keys("/v1/chat") == {f"Bearer {KEYS['openai']}"}
    assert vendors.keys("/v1/messages") == {f"Bearer {KEYS['anthropic']}"}  # as this version sends it
    assert not vendors.keys("/v1/batches")
    assert all(key not in done.stdout + done.stderr for key in KEYS.values())
    assert [line["rule"] for line in site.ledger(ev="intent")] == [
        "openai.openai-inference/generate",
        "anthropic.anthropic-inference/messages",
    ]


@pytest.mark.needs("gh")
def test_gh_api(site: Site, vendors: Vendors) -> None:
    set_up(site, vendors)
    script = (
        "gh api repos/acme/app --jq .full_name && gh api -X POST repos/acme/app/keys -f key=x; echo; echo $GH_TOKEN"
    )
    done = site.run("sh", "-c", script)
    lines = done.stdout.splitlines()
    assert lines[0] == "acme/app", done.stdout + done.stderr
    assert lines[-1].startswith("ghp_")
    assert vendors.seen == [("GET", "/repos/acme/app", f"token {KEYS['github']}")]
    refused = site.ledger(ev="deny", path="/repos/acme/app/keys")
    assert [(line["reason"], line["method"]) for line in refused] == [("deny_rule", "POST")]
    assert KEYS["github"] not in done.stdout + done.stderr
