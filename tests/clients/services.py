"""The stand-ins that the clients of the matrix talk to, each with its policy and what it must have been sent."""

import base64
import contextlib
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from botocore.credentials import Credentials

from tests.e2e.site import bound, endpoint
from tests.targets.aws import Aws
from tests.targets.fixtures import https_target_at
from tests.targets.pki import Authority
from tests.targets.served import Target

LLM = Path(__file__).parents[1] / "targets/llm_target.py"
S3 = "acme.s3.eu-central-1.amazonaws.com"  # as a client names a bucket by itself
REFUSED = "refused.acme.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`token` is kept as the secret `name`; `expected` is the credential that the target sees, in its own form.

    `arrived` waits for so many requests: some servers log after they have answered. `refused`: a host of no policy.
    """

    name: str
    host: str
    refused: str = REFUSED
    policy: str
    token: str
    expected: str
    ca: Path
    forget: Callable[[], None]
    arrived: Callable[[int], set[str]]


type Services = Mapping[str, Service]


def _policy(name: str, target: Target, binding: str, allow: str = "") -> str:
    role = f'[role.dev]\nbindings = ["{name}"]\nworkdir = "write"\n'
    return "version = 1\n" + endpoint(target, name, allow=allow) + binding + role


def _service(name: str, target: Target, binding: str, expected: str, *, allow: str = "") -> Service:
    return Service(
        name=name,
        host=target.host,
        policy=_policy(name, target, binding, allow),
        token=target.token,
        expected=expected,
        ca=target.ca,
        forget=target.forget,
        arrived=lambda count: {request.authorization for request in target.seen(count=count)},
    )


def _basic(name: str, target: Target) -> Service:
    value = "Basic " + base64.b64encode(f"{target.user}:{target.token}".encode()).decode()
    return _service(name, target, bound(name, place="basic", fmt=f"{target.user}:{{secret}}"), value)


def _npm(target: Target) -> Service:
    allow = 'methods = ["GET"]\npaths = ["/**"]\nencoded_slash = true'
    return _service("npm", target, bound("npm"), f"Bearer {target.token}", allow=allow)


def _model(name: str, target: Target) -> Service:
    swap = f'mode = "placeholder"\nplaceholder = {{ env = "{name.upper()}_API_KEY", shape = "sk-{{60}}" }}\n'
    return _service(name, target, bound(name) + swap, f"Bearer {target.token}")


@contextlib.contextmanager
def _s3(state: Path, authority: Authority) -> Iterator[Service]:
    pair = authority.issue(S3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    key = "AKIA" + "".join(secrets.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") for _ in range(16))
    secret = base64.b64encode(secrets.token_bytes(30)).decode()
    aws = Aws(context, Credentials(key, secret))
    served = Target(
        host=S3, port=aws.port, ca=authority.ca, token=f"{key}:{secret}", witness=state, access_log=state, tls=True
    )
    binding = bound("s3", place="sigv4").replace('format = "Bearer {secret}"', 'mode = "placeholder"')
    try:
        yield Service(
            name="s3",
            host=S3,
            refused=f"refused.{S3.partition('.')[2]}",
            policy=_policy("s3", served, binding),
            token=served.token,
            expected=key,
            ca=authority.ca,
            forget=aws.seen.clear,
            arrived=lambda _: {arrived.signed for arrived in aws.seen},
        )
    finally:
        aws.stop()


@contextlib.contextmanager
def started(api: Target, hub: Mapping[str, Target], state: Path, authority: Authority) -> Iterator[Services]:
    """All of them, by the names that rows use."""
    with contextlib.ExitStack() as stack:
        models = {
            name: stack.enter_context(https_target_at(state, authority, f"api.{name}.com", script=LLM))
            for name in ("openai", "anthropic")
        }
        yield {
            "api": _service("api", api, bound(), f"Bearer {api.token}"),
            "git": _basic("git", hub["git"]),
            "pypi": _basic("pypi", hub["pypi"]),
            "npm": _npm(hub["npm"]),
            **{name: _model(name, target) for name, target in models.items()},
            "s3": stack.enter_context(_s3(state, authority)),
        }
