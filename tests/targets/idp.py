"""A stand-in for providers of tokens: OAuth with rotating refresh tokens, GitHub's installations, Google's accounts.

It keeps what it was asked, and its API takes living tokens alone. A refresh token that comes a second time ends its
chain, as RFC 9700 2.2.2 wants it.
"""

import base64
import gzip
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.targets.overtls import Handler, Served

type Reply = tuple[int, Mapping[str, Any] | None]


def unsigned(text: str, key: rsa.RSAPublicKey) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and claims of a token that this key signed. Raises InvalidSignature, ValueError."""
    head, claims, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split("."))
    key.verify(signature, text.rpartition(".")[0].encode(), padding.PKCS1v15(), hashes.SHA256())
    return json.loads(head), json.loads(claims)


@dataclass
class Asked:
    """One request: `body` as a form or JSON, parsed."""

    method: str
    path: str
    authorization: str
    body: dict[str, Any]
    status: int = 0
    bearer: bool = False  # a living token
    agent: str = ""
    at: float = field(default_factory=time.monotonic)


@dataclass
class Provider:
    """What is true of the stand-in; `seen` is what arrived, in order."""

    refresh: str = "refresh-0"
    lifetime: float = 3600.0
    grace: float = (
        0.0  # seconds that it takes a token for longer than it says: the way from a busy gateway takes its time
    )
    rotates: bool = True
    key: rsa.RSAPublicKey | None = None
    permissions: dict[str, str] = field(default_factory=dict)  # GitHub: more than was asked
    fault: Callable[[], Reply | None] = lambda: None  # a reply in place of the right one
    hang: float = 0.0
    gzip: bool = False  # compresses, asked or not
    seen: list[Asked] = field(default_factory=list)
    living: dict[str, float] = field(default_factory=dict)  # token: its end
    chain_over: bool = False

    def minted(self) -> list[Asked]:
        return [asked for asked in self.seen if asked.method == "POST"]

    def answer(self, asked: Asked) -> Reply:
        token = asked.authorization.removeprefix("Bearer ")
        asked.bearer = self.living.get(token, 0) > time.time()
        if asked.method == "POST" and (wrong := self.fault()) is not None:
            return wrong
        match asked.method, asked.path:
            case "POST", "/oauth/token":
                return self._refreshed(asked)
            case "POST", "/token":
                return self._google(asked)
            case "POST", "/revoke":
                self.living.pop(asked.body["token"], None)
                return 200, {}
            case "POST", "/app/installations/42/access_tokens":
                return self._installation(asked, token)
            case "DELETE", "/installation/token":
                return (204, None) if self.living.pop(token, 0) else (401, {})
            case _:
                return (200, {"ok": True}) if asked.bearer else (401, {"error": "dead"})

    def _new(self) -> str:
        token = f"access-{secrets.token_hex(12)}"
        self.living[token] = time.time() + self.lifetime + self.grace
        return token

    def _refreshed(self, asked: Asked) -> Reply:
        if self.chain_over or asked.body.get("refresh_token") != self.refresh:
            self.chain_over = True
            return 400, {"error": "invalid_grant", "error_description": f"{self.refresh} was wanted"}
        document = {"access_token": self._new(), "token_type": "Bearer", "expires_in": self.lifetime}
        if self.rotates:
            self.refresh = f"refresh-{secrets.token_hex(12)}"
            document["refresh_token"] = self.refresh
        return 200, document

    def _google(self, asked: Asked) -> Reply:
        assert self.key is not None
        head, claims = unsigned(asked.body["assertion"], self.key)
        asked.body |= {"head": head, "claims": claims}
        return 200, {"access_token": self._new(), "token_type": "Bearer", "expires_in": int(self.lifetime)}

    def _installation(self, asked: Asked, token: str) -> Reply:
        assert self.key is not None
        asked.body["claims"] = unsigned(token, self.key)[1]
        ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.lifetime))
        given = {"metadata": "read", **asked.body["permissions"], **self.permissions}
        return 201, {"token": self._new(), "expires_at": ends, "permissions": given}


class Idp:
    """Serves a Provider on loopback over TLS until `stop`."""

    def __init__(self, tls: ssl.SSLContext, provider: Provider) -> None:
        self.provider = provider
        served = Served(tls, _handler(provider))
        self.port, self.stop = served.port, served.stop


_LOCK = threading.Lock()


def _handler(provider: Provider) -> type[Handler]:
    class OfIdp(Handler):
        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
            body = json.loads(raw) if raw.startswith("{") else {k: v[0] for k, v in parse_qs(raw).items()}
            asked = Asked(self.command, self.path, self.headers.get("authorization", ""), body)
            asked.agent = self.headers.get("user-agent", "")
            with _LOCK:
                provider.seen.append(asked)
                asked.status, document = provider.answer(asked)
            time.sleep(provider.hang)
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(asked.status)
            if provider.gzip:
                data = gzip.compress(data)
                self.send_header("content-encoding", "gzip")
            self.send_header("content-type", "application/json")
            self.send_header("x-request-id", f"idp-{len(provider.seen)}")
            if document is not None:
                self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve

    return OfIdp
