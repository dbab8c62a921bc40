"""The clients of the matrix: how each is called, as anybody would call it, with nothing set up for the jail.

`{host}` in the words is the target's name, or one that the policy does not have; `{bucket}` its first label.
"""

from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "targets/matrix"
GET = "https://{host}/private/x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One client.

    `via`: how its requests reach the gateway by themselves: by the proxy variables ("connect"), by name and address
    ("direct"). `bare`: whether it needs no variable at all, only what is mounted and the resolver; None where that
    hangs on the host's configuration of it. `told`: what of a refusal its user reads: our "sentence", the "status"
    alone or "nothing". `unasked`: a refused host hears nothing of it. `lacks`: why it can't be green, and who
    could mend it.
    """

    name: str
    argv: tuple[str, ...]
    version: tuple[str, ...] = ()
    service: str = "api"
    via: tuple[str, ...] = ("connect",)
    bare: bool | None = True
    unasked: bool = False
    told: str = "sentence"
    lacks: str = ""


def _python(name: str, code: str, package: str = "", **more: object) -> Row:
    version = f"import importlib.metadata as m; print(m.version('{package or name}'))"
    said = ("python", "-c", version) if package != "-" else ("python", "--version")
    return Row(name=name, argv=("python", "-c", code, "{host}"), version=said, **more)  # type: ignore[arg-type]


REQUESTS = """
import requests, sys
answer = requests.get(f"https://{sys.argv[1]}/private/x")
print(answer.status_code, answer.text)
"""
HTTPX = """
import httpx, sys
answer = httpx.get(f"https://{sys.argv[1]}/private/x")
print(answer.status_code, answer.text)
"""
AIOHTTP = """
import aiohttp, asyncio, sys
async def main():
    async with aiohttp.ClientSession() as session, session.get(f"https://{sys.argv[1]}/private/x") as answer:
        print(answer.status, await answer.text())
asyncio.run(main())
"""
URLLIB3 = """
import sys, urllib3
answer = urllib3.PoolManager().request("GET", f"https://{sys.argv[1]}/private/x")
print(answer.status, answer.data.decode())
"""
URLLIB = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(f"https://{sys.argv[1]}/private/x")
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""
BOTO3 = """
import boto3, sys
bucket = sys.argv[1].partition(".")[0]
print(boto3.client("s3", region_name="eu-central-1").list_objects_v2(Bucket=bucket)["KeyCount"])
"""
OPENAI = """
import openai, sys
at = {} if sys.argv[1] == "api.openai.com" else {"base_url": f"https://{sys.argv[1]}/v1"}
print(openai.OpenAI(**at).responses.create(model="m", input="say a word").output_text)
"""
ANTHROPIC = """
import anthropic, sys
at = {} if sys.argv[1] == "api.anthropic.com" else {"base_url": f"https://{sys.argv[1]}"}
message = [{"role": "user", "content": "say a word"}]
print(anthropic.Anthropic(**at).messages.create(model="m", max_tokens=9, messages=message).content[0].text)
"""
FETCH = "fetch('https://{host}/private/x').then(async r => console.log(r.status, await r.text()))"
HTTPS = (
    "require('node:https').get('https://{host}/private/x',"
    " r => { let t = ''; r.on('data', d => t += d); r.on('end', () => console.log(r.statusCode, t)) })"
)
RUBY = "answer = Net::HTTP.get_response(URI(ARGV[0])); puts answer.code, answer.body"
PHP = "echo file_get_contents($argv[1], false, stream_context_create(['http' => ['ignore_errors' => true]]));"
LWP = "my $answer = LWP::UserAgent->new->get($ARGV[0]); print $answer->code, $answer->content"
TINY = "my $answer = HTTP::Tiny->new->get($ARGV[0]); print $answer->{status}, $answer->{content}"
PIP = ("pip", "--disable-pip-version-check", "download", "--no-cache-dir", "-d", "wheels", "-i")
UV = ("uv", "pip", "install", "--no-cache", "--target", "installed", "--default-index")
NPM = ("npm", "install", "--no-audit", "--no-fund")
CLONE = 'rm -rf app && git clone -q "$1" app && git -C app log --format=%s'

ROWS = (
    Row(name="curl", argv=("curl", "-sS", GET), version=("curl", "--version")),
    Row(name="wget", argv=("wget", "-nv", "-O-", GET), version=("wget", "--version")),
    Row(
        name="git",
        argv=("sh", "-c", CLONE, "sh", "https://{host}/acme/app.git"),
        version=("git", "--version"),
        service="git",
    ),
    Row(
        name="git, ssh URL",
        bare=False,
        argv=("sh", "-c", CLONE, "sh", "git@{host}:acme/app.git"),
        version=("git", "--version"),
        service="git",
        unasked=True,
    ),
    Row(
        name="pip",
        argv=(*PIP, "https://{host}/simple/", "acme-greeting"),
        version=("pip", "--version"),
        service="pypi",
        told="nothing",
    ),
    Row(
        name="uv",
        bare=False,
        argv=(*UV, "https://{host}/simple/", "acme-greeting"),
        version=("uv", "--version"),
        service="pypi",
        told="status",
    ),
    Row(
        name="npm",
        bare=None,
        argv=(*NPM, "--registry=https://{host}/", "@acme/greeting"),
        version=("npm", "--version"),
        service="npm",
    ),
    Row(
        name="pnpm",
        bare=None,
        argv=("pnpm", "add", "--registry=https://{host}/", "@acme/greeting"),
        version=("pnpm", "--version"),
        service="npm",
    ),
    Row(
        bare=False,
        name="node 20, fetch",
        argv=("node20", "-e", FETCH),
        version=("node20", "--version"),
        via=("direct",),
    ),
    Row(
        name="node 20, https",
        bare=False,
        argv=("node20", "-e", HTTPS),
        version=("node20", "--version"),
        via=("direct",),
    ),
    Row(name="node 24, fetch", bare=False, argv=("node24", "-e", FETCH), version=("node24", "--version")),
    Row(name="node 24, https", bare=False, argv=("node24", "-e", HTTPS), version=("node24", "--version")),
    Row(name="bun, fetch", argv=("bun", "-e", FETCH), version=("bun", "--version")),
    Row(name="bun, https", argv=("bun", "-e", HTTPS), version=("bun", "--version")),
    Row(name="deno", bare=False, argv=("deno", "eval", FETCH), version=("deno", "--version")),
    Row(
        name="Java",
        argv=("java", "Get.java", GET),
        version=("java", "--version"),
        via=("direct",),
    ),
    Row(
        name="Ruby",
        argv=("ruby", "-rnet/http", "-e", RUBY, GET),
        version=("ruby", "--version"),
    ),
    Row(name="PHP", argv=("php", "-r", PHP, GET), version=("php", "--version"), via=("direct",)),
    Row(
        name="Perl, LWP",
        argv=("perl", "-MLWP::UserAgent", "-e", LWP, GET),
        version=("perl", "-MLWP", "-e", "print $LWP::VERSION"),
        via=("direct",),
    ),
    Row(name="Perl, HTTP::Tiny", argv=("perl", "-MHTTP::Tiny", "-e", TINY, GET), version=("perl", "-e", "print $^V")),
    Row(name="Go", argv=("goget", GET), version=("go", "version")),
    _python("boto3", BOTO3, bare=False, service="s3"),
    Row(
        name="aws",
        bare=False,
        argv=("aws", "s3api", "list-objects-v2", "--region", "eu-central-1", "--bucket", "{bucket}"),
        version=("aws", "--version"),
        service="s3",
    ),
    _python("openai", OPENAI, service="openai"),
    _python("anthropic", ANTHROPIC, service="anthropic"),
    _python("requests", REQUESTS, bare=False),
    _python("httpx", HTTPX, bare=False),
    _python("aiohttp", AIOHTTP, via=("direct",)),
    _python("urllib3", URLLIB3, via=("direct",)),
    _python("urllib", URLLIB, "-"),
)
