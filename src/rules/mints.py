"""[mint.NAME]: secrets that are had for another one, by a call of the gateway's own. Values, no behaviour.

`secret` names the long-lived one, which goes to `endpoint` alone; a secret with source = "mint:NAME" comes back.
"""

from dataclasses import dataclass
from enum import StrEnum

from rules.policy import Placeholder

__all__ = [
    "ClientAuth",
    "GcpJwt",
    "GcpServiceAccount",
    "GithubApp",
    "Mint",
    "MintType",
    "OAuthRefresh",
    "TokenForm",
    "decoy_key",
]


def decoy_key(mint: str) -> str:
    """Under which the decoys of a run hold that of a mint: no binding has a dot in its name."""
    return f"mint.{mint}"


class MintType(StrEnum):
    """What kind of call gives the token."""

    GITHUB_APP = "github-app"
    OAUTH2_REFRESH = "oauth2-refresh"
    GCP_SERVICE_ACCOUNT = "gcp-service-account"
    GCP_JWT = "gcp-jwt"


class ClientAuth(StrEnum):
    """How a client shows its secret to a token endpoint (RFC 6749 2.3.1)."""

    BASIC = "basic"
    POST = "post"


class TokenForm(StrEnum):
    """How a token request is written: RFC 6749 has a form, some providers take JSON instead."""

    FORM = "form"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GithubApp:
    """An installation token. `secret` is the app's key, PEM; `permissions` and `repositories` narrow what it may do.

    `api` is what stands before /app in the path: "" at github.com, "/api/v3" at an enterprise's own server.
    """

    name: str
    secret: str
    endpoint: str
    app: str
    installation: int
    permissions: tuple[tuple[str, str], ...]  # name and level
    repositories: tuple[str, ...] = ()
    api: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthRefresh:
    """An access token for a refresh token (RFC 6749 6). `rotates`: the provider may answer with a new refresh token.

    `placeholder` is the decoy refresh token of the jail, whose own call is answered here.
    """

    name: str
    secret: str
    endpoint: str
    path: str
    client_id: str = ""
    client_secret: str = ""  # name of a secret
    auth: ClientAuth = ClientAuth.POST
    form: TokenForm = TokenForm.FORM
    scopes: tuple[str, ...] = ()
    rotates: bool = True
    placeholder: Placeholder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpServiceAccount:
    """An access token for a service account's key file (RFC 7523). `subject`: on whose behalf, "" for its own.

    `revoke`: path of the same endpoint that takes a token back (RFC 7009), "" where there is none.
    """

    name: str
    secret: str
    endpoint: str
    scopes: tuple[str, ...]
    path: str = "/token"
    subject: str = ""
    revoke: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpJwt:
    """A token that the service account's key itself signs, for one API: nothing is asked of anybody."""

    name: str
    secret: str
    audience: str


type Mint = GithubApp | OAuthRefresh | GcpServiceAccount | GcpJwt
