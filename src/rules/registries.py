"""Package registries, whose hosts no pack and no policy names: the client's own configuration says where they are.

`host_from = "npm"` stands for what was resolved when the policy was loaded. Asking the client is not done here.
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from rules.hosts import AddressLiteral, HostError, normalize_host
from rules.paths import Ambiguity, normal_form
from rules.problems import PolicyError, RulesError
from rules.tomltext import read_toml

EXTRA = "extra"
_MEND = "see the client's own configuration, or write host = ... instead of host_from"
_DEFAULT_PORT = {"https": 443, "http": 80}


class Client(StrEnum):
    """Whose configuration is asked. `*-files`: where the index of that client says that its files are."""

    NPM = "npm"
    PIP = "pip"
    UV = "uv"
    PIP_FILES = "pip-files"
    UV_FILES = "uv-files"


class RegistryError(RulesError, ValueError):
    """A URL that is no registry's. Never holds the user or password of the URL."""

    code = "registry_invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Where a registry is. `path` is "" or "/a/b": what its URL has before the paths that the client adds.

    `scope` is npm's "@scope" that it is for, EXTRA for a further index of pip or uv, "" for the one that everything
    else comes from.
    """

    scheme: str
    host: str
    port: int
    path: str
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"

    @property
    def url(self) -> str:
        """As a client takes it, the port only where it is not the scheme's."""
        port = "" if self.port == _DEFAULT_PORT[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.path}/"


def parse_registry(url: str, scope: str = "") -> Registry:
    """Return the registry of an http or https URL; a user and password in it are left out. Raises RegistryError."""
    try:
        parts = urlsplit(url)
        port = parts.port
        name = normalize_host((parts.hostname or "").encode("utf-8", "surrogateescape"))
    except HostError as fault:
        raise RegistryError(f"a registry's host: {fault.detail}", fault.hint or _MEND) from None
    except ValueError:
        raise RegistryError("a registry's url that is none", _MEND) from None
    if parts.scheme not in _DEFAULT_PORT:
        raise RegistryError(f"a registry's url with the scheme {parts.scheme!a}, expected https", _MEND)
    if isinstance(name, AddressLiteral):
        raise RegistryError("a registry's url with an address as its host, expected a name", _MEND)
    path = parts.path.rstrip("/")
    if path and isinstance(normal_form(path.encode()), Ambiguity):
        raise RegistryError(f"a registry's url of {name} with a path that servers read differently", _MEND)
    return Registry(scheme=parts.scheme, host=name, port=port or _DEFAULT_PORT[parts.scheme], path=path, scope=scope)


def clients_of(data: bytes) -> tuple[Client, ...]:
    """Return whose configuration a policy file asks for, each once. Faults of the file are load_policy's to say."""
    try:
        endpoints = read_toml(data).get("endpoint")
    except PolicyError:
        return ()
    if not isinstance(endpoints, dict):
        return ()
    words = [table.get("host_from") for table in endpoints.values() if isinstance(table, dict)]
    return tuple(client for client in Client if client.value in words)
