"""One whole policy that loads, and a loader for variants of it."""

from pathlib import Path

from rules.load import load_policy
from rules.policy import Policy
from rules.problems import PolicyError, Problem

PACKS = {p.stem: p.read_text() for p in (Path(__file__).parents[2] / "src/rules/packs").glob("*.toml")}

WHOLE = """\
version = 1
default_role = "dev"
[dns]
unlisted = "nxdomain"
[secret.github]
source = "keyring:credgate/github"
[endpoint.github-api]
host = "api.github.com"
port = 443
address = ["10.20.0.0/16", "10.9.9.9"]
dial_port = 8443
alpn = ["http/1.1"]
ca = "internal-ca.pem"
foreign = "strip"
protocol = "http"
[[endpoint.github-api.allow]]
id = "issues"
methods = ["GET", "POST"]
paths = ["/repos/acme/app/issues", "/repos/acme/app/issues/*"]
query = { allow = ["page", "per_page"] }
encoded_slash = true
upgrade = false
[[endpoint.github-api.deny]]
id = "locks"
methods = ["PUT"]
paths = ["/repos/*/*/issues/*/lock"]
[[endpoint.github-api.deny]]
pack = "github-credential-minting"
[endpoint.mirror]
host = "mirror.example.org"
[[endpoint.mirror.allow]]
id = "read"
methods = ["GET"]
paths = ["/**"]
[binding.github]
secret = "github"
endpoint = "github-api"
rules = ["issues"]
place = "header:authorization"
format = "Bearer {secret}"
mode = "placeholder"
placeholder = { env = "GITHUB_TOKEN", shape = "ghp_{36}" }
foreign = "deny"
response = { scrub = false, set_cookie = "keep" }
ttl = "8h"
max_uses = 500
rate = "60/m"
[role.dev]
bindings = ["github"]
endpoints = ["mirror"]
workdir = "write"
tools = ["~/.cargo/bin", "/opt/tools"]
read = ["~/.gitconfig"]
env = ["TERM", "LANG"]
allow_debug = false
allow_userns = false
children = ["dev"]
on_alarm = "kill"
deadline = "2h"
budget = { requests = 5000, bytes_out = "200MiB" }
limits = { memory = "2GiB", processes = 64, open_files = 1024, cpu = "30m", file_size = "1GiB" }
[[test]]
role = "dev"
method = "GET"
url = "https://api.github.com/repos/acme/app/issues"
verdict = "allow"
rule = "github-api.issues"
"""


def load(text: str, base_dir: str = "/etc/x") -> Policy:
    return load_policy(text.encode(), packs=PACKS, base_dir=base_dir)


def problems(text: str) -> dict[str, Problem]:
    """The faults of a policy by place; empty where it loads."""
    try:
        load(text)
    except PolicyError as fault:
        return {problem.where: problem for problem in fault.problems}
    return {}


def changed(old: str, new: str) -> str:
    assert WHOLE.count(old) == 1, old
    return WHOLE.replace(old, new)
