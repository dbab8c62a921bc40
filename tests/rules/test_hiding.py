"""Which names hide a file, which let it be, and what shows that a key-like one is public."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.hiding import Hiding, Kind, _builtin, _perhaps, public

BUILT_IN = Hiding.of((), ())
HIDDEN = [
    ".env",
    ".env.local",
    ".env.production",
    "prod.env",
    ".ENV",
    ".npmrc",
    ".pypirc",
    "pip.conf",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".htpasswd",
    "kubeconfig",
    "dev.kubeconfig",
    "terraform.tfstate",
    "terraform.tfstate.backup",
    "service-account.json",
    "my-service_account-prod.json",
    "application_default_credentials.json",
    "credentials.json",
    "client_secret_1.json",
    "a.p12",
    "a.pfx",
    "a.jks",
    "a.kdbx",
    ".vault-token",
    ".dockercfg",
    ".s3cfg",
]
BY_CONTENT = [
    "server.pem",
    "server.key",
    "id_rsa",
    "id_ed25519",
    "id_rsa_work",
    "id_ecdsa.old",
    "id_github",
    "AuthKey.p8",
]
TOLD = [
    "secrets.yaml",
    "my-secrets.json",
    "credentials.ini",
    "auth.json",
    "terraform.tfvars",
    ".envrc",
    "wp-config.php",
    "database.yml",
]
LEFT = [
    ".env.example",
    ".env.sample",
    ".env.template",
    "env.py",
    "environment.ts",
    ".environment",
    "id_rsa.pub",
    "key.py",
    "keys.json",
    "pem.txt",
    "secret.py",
    "secrets",
    "credentials.py",
    "README.md",
    ".gitignore",
    ".npmignore",
    "package.json",
    "id_map.py",
    "service.json",
    "monkey",
]


@pytest.mark.parametrize("folder", ["", "a/b"])
def test_names(folder: str) -> None:
    for names, kind in ((HIDDEN, Kind.HIDDEN), (BY_CONTENT, Kind.UNLESS_PUBLIC), (TOLD, Kind.TOLD), (LEFT, None)):
        assert {name: BUILT_IN.file(folder, name) for name in names} == dict.fromkeys(names, kind)


@pytest.mark.parametrize("name", [*HIDDEN, *BY_CONTENT, *TOLD])
def test_the_quick_look_passes_over_nothing(name: str) -> None:
    quick = BUILT_IN.within("a")
    assert quick is not None
    assert quick(name)


@given(st.text(alphabet="abcdeikmnprstvy_-.01ENV", max_size=16))
def test_the_quick_look_never_says_no_where_a_table_says_yes(name: str) -> None:
    assert _perhaps(name) or _builtin("", name.lower()) is None


def test_directories_of_tools() -> None:
    for folder, name in ((".aws", "credentials"), ("x/.kube", "config"), (".ssh", "mine"), (".docker", "config.json")):
        assert BUILT_IN.file(folder, name) is Kind.HIDDEN
        assert BUILT_IN.file("src", name) in (None, Kind.TOLD)
    assert BUILT_IN.file(".ssh", "known_hosts") is None


def test_what_came_from_a_registry_is_everybodys() -> None:
    for folder in ("node_modules/x/test", ".venv/lib/python3.12/site-packages/certifi"):
        assert BUILT_IN.file(folder, "a.pem") is None
        assert BUILT_IN.within(folder) is None


def test_a_role_hides_more_and_shows_by_name() -> None:
    role = Hiding.of(("*.sqlite", "private/"), ("tests/.env", "a/private"))
    assert role.file("x", "a.sqlite") is Kind.HIDDEN
    assert role.file("tests", ".env") is None
    assert role.file("", ".env") is Kind.HIDDEN
    assert role.directory("b/private")
    assert not role.directory("a/private")
    assert role.file("b", "private") is None  # a file of that name
    assert Hiding.of(("x/*",), ("x/a",)).file("x", "a") is None


@pytest.mark.parametrize(
    ("name", "content", "free"),
    [
        ("ca.pem", b"-----BEGIN CERTIFICATE-----\n", True),
        ("all.pem", b"-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n", False),
        ("x.key", b"-----BEGIN EC PRIVATE KEY-----", False),
        ("x.key", b"-----BEGIN PUBLIC KEY-----", True),
        ("x.key", b"0123456789", False),
        ("x.pem", b"", False),
        ("id_map", b"#!/bin/sh\n", True),
        ("id_map", b"-----BEGIN OPENSSH PRIVATE KEY-----", False),
        ("id_rsa", b"something", False),
    ],
)
def test_content(name: str, content: bytes, free: bool) -> None:
    assert public(name, content) is free
