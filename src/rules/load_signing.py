"""The keys of a binding whose secret is in no field of the request: place "sigv4" and place "certificate"."""

import re

from rules import load_units
from rules.aws_operations import PATTERN
from rules.policy import Mode, Placeholder, PlaceKind, Signing
from rules.tables import Table, show

SIGN_KEYS = ("service", "region", "max", "operations", "copy")
MAX_SIGNED = 32 << 20
# What the AWS SDKs read; the secret's own decoy is never looked at, as it never leaves the client.
AWS_DECOY = Placeholder(env="AWS_ACCESS_KEY_ID", shape="AKIA{16:base32}")
AWS_SECRET_ENV = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - a name
_WORD = re.compile(r"[a-z0-9-]{1,64}")


def load_signing(table: Table, place: PlaceKind, mode: Mode) -> Signing | None:
    """Read `sign`, and record keys that do not go with the place."""
    if place in {PlaceKind.SIGV4, PlaceKind.CERTIFICATE} and table.has("format"):
        table.fault("format", f'got one, but place is "{place}", which puts the secret into no field', "take it out")
    if place is PlaceKind.CERTIFICATE and mode is Mode.PLACEHOLDER:
        hint = 'write mode = "overwrite", or leave it out'
        table.fault("mode", 'got "placeholder", but a certificate is shown before a request could hold one', hint)
    if place is not PlaceKind.SIGV4:
        if table.has("sign"):
            table.fault("sign", f'got one, but place is "{place}"', 'write place = "sigv4", or take it out')
        return None
    inner = table.table("sign", known=SIGN_KEYS)
    return Signing(
        service=_word(inner, "service"),
        region=_word(inner, "region"),
        max=_max(inner),
        operations=_operations(inner),
        copy=inner.flag("copy", default=False),
    )


def _operations(table: Table) -> tuple[str, ...]:
    names = table.texts("operations", empty=False)
    for name in names:
        if not PATTERN.fullmatch(name):
            hint = 'as in "DynamoDB_20120810.GetItem", "GetCallerIdentity" or "DynamoDB_20120810.Get*"'
            table.fault("operations", f"got {show(name)}, expected an operation's name", hint)
    return names


def _word(table: Table, key: str) -> str:
    text = table.text(key)
    if text and not _WORD.fullmatch(text):
        table.fault(key, f"got {show(text)}, expected lower-case letters, digits and -", 'as in "s3", "eu-central-1"')
    return text


def _max(table: Table) -> int:
    text = table.text("max")
    size = load_units.parse_size(text)
    if text and size is None:
        table.fault("max", f"got {show(text)}", load_units.size_hint(text))
    elif size is not None and size > MAX_SIGNED:
        table.fault("max", f"got {size} bytes, expected at most {MAX_SIGNED}", 'write "32MiB"')
    return Signing().max if size is None else size
