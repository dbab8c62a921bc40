"""Which files of a work tree are hidden from the jail: a built-in table, a role's `hide` added, its `show` taken out.

Names are compared without regard to case: a file system may not tell ".ENV" from ".env". Pure: who asks reads the
directory.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rules.treenames import TreePattern, union

__all__ = ["BELOW", "HIDDEN", "KEYLIKE", "TOLD", "Hiding", "Kind", "public"]

# Regular expressions for whole names, lower case; what each holds where it holds a secret.
HIDDEN: tuple[tuple[str, str], ...] = (
    (r"\.env(?:rc\.local|\..+)?", "variables of an application, with its passwords"),
    (r".+\.env", "the same, named after its place"),
    (r"\.npmrc|\.yarnrc\.local", "npm's registry tokens"),
    (r"\.pypirc|pip\.conf|pip\.ini", "PyPI's tokens, an index URL with its password"),
    (r"[._]netrc", "passwords of hosts"),
    (r"\.pgpass|\.my\.cnf|\.mylogin\.cnf", "passwords of databases"),
    (r"\.git-credentials|\.htpasswd|\.dockercfg|\.vault-token|\.s3cfg|\.boto", "credentials"),
    (r"kubeconfig|.+\.kubeconfig|kubeconfig\.ya?ml", "keys and tokens of a cluster"),
    (r".+\.tfstate(?:\.backup)?|\.terraformrc|terraform\.rc", "Terraform's state and tokens"),
    (r"(?:.*[-_.])?service[-_]?account(?:[-_.].*)?\.json", "a service account's key"),
    (r"application_default_credentials\.json|client_secret.*\.json|credentials\.json", "Google's credentials"),
)
# Hidden unless what is in them is public (certificates, public keys): many are shipped with packages.
KEYLIKE: tuple[tuple[str, str], ...] = (
    (r".+\.(?:pem|key|p8|pk8)", "a private key"),
    (r".+\.(?:p12|pfx|jks|keystore|bks|ppk|kdbx|keytab)", "a store of keys"),
    (r"id_(?:rsa|dsa|ecdsa|ed25519|xmss)(?:[-_.].*)?", "an SSH key"),
    (r"id_[a-z0-9]+", "an SSH key by another name"),
)
# Told, not hidden: as often source as secret (a chart's template, a translation).
TOLD: tuple[tuple[str, str], ...] = (
    (r"(?:.*[-_.])?secrets?\.(?:ya?ml|json|toml|ini|properties|env\..+)", "secrets, by its name"),
    (r"(?:.*[-_.])?credentials?\.(?:ya?ml|toml|ini|properties)", "credentials, by its name"),
    (r"\.envrc", "variables of a directory, passwords among them"),
    (r"auth\.json", "Composer's tokens"),
    (r"terraform\.tfvars|.+\.auto\.tfvars", "values of Terraform, passwords among them"),
    (r"wp-config\.php|database\.ya?ml|settings\.local\.(?:py|ya?ml)", "an application's database password"),
)
# Hidden in a directory of this name alone.
BELOW: tuple[tuple[str, str], ...] = (
    (".aws", r"credentials|config"),
    (".docker", r"config\.json"),
    (".kube", r"config"),
    (".cargo", r"credentials(?:\.toml)?"),
    (".gnupg", r".+"),
    (".ssh", r"(?!known_hosts|config|.*\.pub$).+"),
    ("gcloud", r"credentials\.db|access_tokens\.db"),
    ("gh", r"hosts\.yml"),
)
# Of the names above those that hold no secret by custom.
HARMLESS = re.compile(r"\.env\.(?:example|sample|template|dist|defaults?|schema|test\.example)|.+\.pub")
# What is in files of these directories came from a package registry, and is everybody's.
DEPENDENCIES = frozenset({"node_modules", "site-packages", "dist-packages"})
# Stores in a form of their own are never public by what stands in them.
_STORES = re.compile(r".+\.(?:p12|pfx|jks|keystore|bks|ppk|kdbx|keytab)")
_BY_CUSTOM = re.compile(r"(?!id_(?:rsa|dsa|ecdsa|ed25519|xmss)$)id_[a-z0-9]+")
_PRIVATE = (b"PRIVATE KEY", b"PuTTY-User-Key-File")
_PUBLIC = (b"-----BEGIN CERTIFICATE", b"-----BEGIN PUBLIC KEY", b"-----BEGIN TRUSTED CERTIFICATE", b"BEGIN X509 CRL")


def _any(*tables: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for table in tables for pattern, _ in table), re.DOTALL)


# One look at a name, for all tables: what does not match is none of them.
_ONE, _HIDDEN, _TOLD = _any(HIDDEN, KEYLIKE, TOLD), _any(HIDDEN), _any(TOLD)
_BELOW = {folder: re.compile(pattern, re.DOTALL) for folder, pattern in BELOW}


# A name that begins or ends with none of these, and has none of these words in it, is of no table: asked of every file
# of a work tree, where one look by all expressions would cost ten times as much.
_BEGINS = (".", "_netrc", "id_")
_WORDS = ("secret", "credential", "service", "kubeconfig", "auth.json", "wp-config", "database.", "settings.local")
_ENDS = frozenset(
    (
        *("env", "pem", "key", "p8", "pk8", "p12", "pfx", "jks", "keystore", "bks", "ppk", "kdbx", "keytab"),
        *("kubeconfig", "tfstate", "backup", "tfvars", "rc", "conf", "ini"),
    )
)


def _perhaps(name: str) -> bool:
    low = name.lower()
    return low.startswith(_BEGINS) or low.rpartition(".")[2] in _ENDS or any(word in low for word in _WORDS)


def _always(_name: str) -> bool:
    return True


class Kind(StrEnum):
    """What a file's name says of it."""

    HIDDEN = "hidden"
    UNLESS_PUBLIC = "hidden unless public"  # see `public`
    TOLD = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """One role's rule. `more`: what `hide` adds, None for nothing; `shown`: relative paths that stay visible."""

    more: re.Pattern[str] | None
    more_directories: re.Pattern[str] | None
    shown: frozenset[str]

    @classmethod
    def of(cls, hide: Sequence[str], show: Sequence[str]) -> "Hiding":
        """From texts that were checked when the policy was loaded."""
        patterns = [TreePattern.parse(text) for text in hide]
        return cls(
            more=union([p for p in patterns if not p.directory]),
            more_directories=union(patterns),
            shown=frozenset(TreePattern.parse(text).path for text in show),
        )

    def within(self, folder: str) -> Callable[[str], bool] | None:
        """A quick look for the files of one directory: what it says no to, `file` says None to. None: no to all."""
        if self.more is not None or folder.rpartition("/")[2] in _BELOW:
            return _always
        parts = folder.split("/")
        return None if ".git" in parts or not DEPENDENCIES.isdisjoint(parts) else _perhaps

    def file(self, folder: str, name: str) -> Kind | None:
        """Judge a file by its relative path's directory ("" at the root) and its name; None: nothing of it."""
        kind = _builtin(folder, name.lower())
        if kind is None and self.more is None:
            return None
        path = f"{folder}/{name}" if folder else name
        if path in self.shown:
            return None
        return Kind.HIDDEN if self.more is not None and self.more.fullmatch(path) else kind

    def directory(self, path: str) -> bool:
        """Tell whether a directory is hidden as a whole, by `hide` alone."""
        hit = self.more_directories is not None and self.more_directories.fullmatch(path)
        return bool(hit) and path not in self.shown


def _builtin(folder: str, name: str) -> Kind | None:
    parts = folder.split("/")
    parent = parts[-1]
    if parent in _BELOW and _BELOW[parent].fullmatch(name):
        return Kind.HIDDEN
    if not _ONE.fullmatch(name) or HARMLESS.fullmatch(name) or ".git" in parts or not DEPENDENCIES.isdisjoint(parts):
        return None
    if _STORES.fullmatch(name) or _HIDDEN.fullmatch(name):
        return Kind.HIDDEN
    return Kind.TOLD if _TOLD.fullmatch(name) else Kind.UNLESS_PUBLIC


def public(name: str, content: bytes) -> bool:
    """Whether what stands in a file of KEYLIKE shows that it is no secret.

    A name that means a key by custom alone ("id_map") needs a private key in it to count; ".pem" and ".key" need a
    public one in them, and no private one, to be let through.
    """
    if any(mark in content for mark in _PRIVATE):
        return False
    return bool(_BY_CUSTOM.fullmatch(name.lower())) or any(mark in content for mark in _PUBLIC)
