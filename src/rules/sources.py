"""Where a secret's value comes from, beyond a keyring, a variable and a file. Values, no behaviour."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rules.policy import Endpoint

__all__ = ["CommandTerms", "Output", "SecretRule", "SourceKind", "VaultPlace", "VaultServer"]


class SourceKind(StrEnum):
    """Where a secret's value comes from."""

    KEYRING = "keyring"
    ENV = "env"
    FILE = "file"
    COMMAND = "command"
    VAULT = "vault"  # a HashiCorp Vault or an OpenBao
    MINT = "mint"  # had for another secret, by a call of the gateway's own: `ref` is the name of a [mint.NAME]


class Output(StrEnum):
    """How a command writes the value: as it is, or as an object with `value` and its end."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTerms:
    """`program` is a whole path or begins with "~/"; `env` are names passed from the caller; seconds."""

    program: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    output: Output = Output.TEXT
    timeout: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultServer:
    """[vault.NAME], a HashiCorp Vault or an OpenBao: how it is reached, and who we are there.

    `token` is a secret's rule, None with AppRole; then `role_id` and `secret_id` log in at auth/`mount`.
    """

    name: str
    endpoint: "Endpoint"
    token: "SecretRule | None" = None
    role_id: str = ""
    secret_id: "SecretRule | None" = None
    mount: str = "approle"
    namespace: str = ""
    proxy_secret: "SecretRule | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultPlace:
    """A field of what the server answers for `path` ("secret/data/github"). `server` None: not resolved yet."""

    name: str
    path: str
    field: str
    server: VaultServer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """A secret's name and source; `ref` is the text behind "keyring:" and its like.

    `terms` are of "command:" and "vault:"; `keep`: seconds that a value without an end of its own is used again.
    """

    name: str
    kind: SourceKind
    ref: str
    terms: CommandTerms | VaultPlace | None = None
    keep: int = 0
