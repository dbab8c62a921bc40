"""The calls of each kind of mint as values: what is asked, and what an answer says. No socket, no clock."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeGuard
from urllib.parse import quote_plus, urlencode

from credgate.minting import jwt
from credgate.secretvalue import Secret, SecretUnavailable
from rules.mints import ClientAuth, GcpJwt, GcpServiceAccount, GithubApp, OAuthRefresh, TokenForm

DEFAULT_LIFETIME = 300  # seconds, where an answer gives none (RFC 6749 5.1 recommends one)
MAX_LIFETIME = 24 * 3600
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # RFC 7523 2.1
_LEVELS = ("", "read", "write", "admin")
_ERROR_CHARS = 64
_PERMISSION = re.compile(r"[a-z_]{1,64}")

type Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request of our own; it carries a secret, so its repr has neither fields nor body."""

    method: str
    path: str
    fields: Fields = field(repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The whole answer to it."""

    status: int
    fields: Fields = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an answer gives: `lifetime` in seconds; `refresh` is the next refresh token, "" where it stays."""

    token: str = field(repr=False)
    lifetime: float
    refresh: str = field(default="", repr=False)


class Unusable(Exception):
    """An answer without a token. The text says why in words of ours and the provider's error code, no more."""


def refresh_request(mint: OAuthRefresh, refresh: str, client_secret: str) -> Asked:
    """RFC 6749 6, the client named as 2.3.1 has it."""
    body = {"grant_type": "refresh_token", "refresh_token": refresh}
    if mint.scopes:
        body["scope"] = " ".join(mint.scopes)
    extra: Fields = ()
    if mint.auth is ClientAuth.BASIC:
        pair = f"{quote_plus(mint.client_id)}:{quote_plus(client_secret)}"
        extra = ((b"authorization", b"Basic " + base64.b64encode(pair.encode())),)
    elif mint.client_id:
        body |= {"client_id": mint.client_id} | ({"client_secret": client_secret} if client_secret else {})
    if mint.form is TokenForm.JSON:
        return _post(mint.path, json.dumps(body).encode(), b"application/json", extra)
    return _form(mint.path, body, extra)


def google_request(mint: GcpServiceAccount, secret: Secret, audience: str, now: int) -> Asked:
    """RFC 7523: `audience` is the URL of the token endpoint. Raises SecretUnavailable."""
    account = jwt.read_account(secret)
    claims: dict[str, object] = {
        "iss": account.email,
        "scope": " ".join(mint.scopes),
        "aud": audience,
        "iat": now - jwt.BEFORE,
        "exp": now + jwt.LIFETIME,
    }
    if mint.subject:
        claims["sub"] = mint.subject
    assertion = jwt.signed(account.key, claims, account.key_id)
    return _form(mint.path, {"grant_type": _GRANT, "assertion": assertion})


def google_token(mint: GcpJwt, secret: Secret, now: int) -> Grant:
    """A token that the key itself signs. Raises SecretUnavailable."""
    account = jwt.read_account(secret)
    claims = {
        "iss": account.email,
        "sub": account.email,
        "aud": mint.audience,
        "iat": now - jwt.BEFORE,
        "exp": now + 3600,
    }
    return Grant(token=jwt.signed(account.key, claims, account.key_id), lifetime=3600.0)


def github_request(mint: GithubApp, secret: Secret, now: int) -> Asked:
    """Ask for an installation token, no wider than the policy says. Raises SecretUnavailable."""
    claims = {"iss": mint.app, "iat": now - jwt.BEFORE, "exp": now + jwt.LIFETIME}
    wanted: dict[str, object] = {"permissions": dict(mint.permissions)}
    if mint.repositories:
        wanted["repositories"] = list(mint.repositories)
    path = f"{mint.api}/app/installations/{mint.installation}/access_tokens"
    token = jwt.signed(jwt.read_key(secret), claims)
    return _post(path, json.dumps(wanted).encode(), b"application/json", _github(token))


def github_revocation(mint: GithubApp, token: str) -> Asked:
    """Take an installation token back, by itself."""
    return Asked(method="DELETE", path=f"{mint.api}/installation/token", fields=_github(token))


def revocation(path: str, token: str) -> Asked:
    """RFC 7009 2.1."""
    return _form(path, {"token": token, "token_type_hint": "access_token"})


def _github(token: str) -> Fields:
    return (
        (b"authorization", b"Bearer " + token.encode("ascii")),
        (b"accept", b"application/vnd.github+json"),
        (b"x-github-api-version", b"2022-11-28"),
    )


def _form(path: str, body: Mapping[str, str], extra: Fields = ()) -> Asked:
    return _post(path, urlencode(body).encode(), b"application/x-www-form-urlencoded", extra)


def _post(path: str, body: bytes, kind: bytes, extra: Fields) -> Asked:
    accept = () if any(name == b"accept" for name, _ in extra) else ((b"accept", b"application/json"),)
    return Asked(method="POST", path=path, fields=((b"content-type", kind), *accept, *extra), body=body)


def granted(answer: Answered) -> Grant:
    """Read RFC 6749 5.1. Raises Unusable, with the error code of 5.2 where there is one."""
    document = _document(answer)
    if not 200 <= answer.status < 300:
        raise Unusable(f"status {answer.status}{_code(document)}")
    token, kind = document.get("access_token"), document.get("token_type", "bearer")
    if not _is_token(token) or not isinstance(kind, str) or kind.lower() != "bearer":
        raise Unusable("no bearer token in the answer")
    refresh = document.get("refresh_token") or ""
    if refresh and not _is_token(refresh):
        raise Unusable("a refresh token that is no text")
    return Grant(token=token, lifetime=_lifetime(document.get("expires_in")), refresh=str(refresh))


def github_granted(mint: GithubApp, answer: Answered, now: float) -> Grant:
    """Read an installation token. Raises Unusable, also where it may do more than was asked."""
    document = _document(answer)
    if answer.status != 201:
        raise Unusable(f"status {answer.status}")
    token, given = document.get("token"), document.get("permissions")
    if not _is_token(token) or not isinstance(given, dict):
        raise Unusable("no token with its permissions in the answer")
    wider = sorted({_shown(str(name)) for name, level in given.items() if not _within(mint, str(name), level)})
    if wider:
        raise Unusable(f"the token may do more than was asked: {', '.join(wider[:8])}")
    try:
        ends = datetime.fromisoformat(str(document.get("expires_at"))).timestamp()
    except (ValueError, OverflowError):
        raise Unusable("no time at which the token ends") from None
    return Grant(token=token, lifetime=max(0.0, min(ends - now, 3600.0)))


def token_in(answer: Answered) -> str:
    """The token in an answer, whether it is taken or not; "" where there is none."""
    document = _document(answer) if 200 <= answer.status < 300 else {}
    token = document.get("access_token", document.get("token"))
    return token if _is_token(token) else ""


def _within(mint: GithubApp, name: str, level: object) -> bool:
    """Every token may read metadata: GitHub adds it by itself."""
    asked = dict(mint.permissions).get(name, "read" if name == "metadata" else "")
    return level in _LEVELS and _LEVELS.index(str(level)) <= _LEVELS.index(asked)


def _document(answer: Answered) -> dict[str, object]:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    return document if isinstance(document, dict) else {}


def _shown(name: str) -> str:
    return name if _PERMISSION.fullmatch(name) else "one of no known name"


def _code(document: Mapping[str, object]) -> str:
    """The provider's error code: its alphabet is that of RFC 6749 5.2, its description is not repeated."""
    code = document.get("error")
    if isinstance(code, dict):
        code = code.get("type") or code.get("code")
    plain = isinstance(code, str) and code.replace("_", "").replace("-", "").isalnum() and code.isascii()
    return f", {str(code)[:_ERROR_CHARS]}" if plain else ""


def _is_token(value: object) -> TypeGuard[str]:
    """RFC 6749 A.12: visible ASCII; and a length that a header takes."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= 16384
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


def _lifetime(value: object) -> float:
    if isinstance(value, str) and value.isascii() and value.isdigit():  # some providers quote it
        value = int(value[:10])
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return float(DEFAULT_LIFETIME)
    return float(min(value, MAX_LIFETIME))


def refused(name: str, why: str, hint: str = "") -> SecretUnavailable:
    """The provider gave no token."""
    return SecretUnavailable("mint_refused", f"mint {name!r}: {why}", hint)
