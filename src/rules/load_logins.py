"""[agent.NAME.login] into a value: how an agent's login by subscription is kept and refreshed."""

import re
from collections.abc import Iterator

from rules.envnames import ENV_NAME
from rules.logins import Login
from rules.placeholders import ShapeError, check_shape
from rules.tables import Table, is_name, show

__all__ = ["LOGIN_KEYS", "load_login"]

LOGIN_KEYS = (
    *("file", "take", "expect", "endpoint", "path", "env", "shape", "client_id", "client_secret", "client_pattern"),
    *("form", "rotates"),
)
_PLACE = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,7}")
_FILE = re.compile(r"~(/[A-Za-z0-9._-]+)+")
_FORMS = ("form", "json")


def load_login(table: Table) -> Login | None:
    """The login of a profile; None where it has none."""
    if not table.has("login"):
        return None
    inner = table.table("login", known=LOGIN_KEYS)
    file, form = inner.text("file", required=True), inner.text("form", "form")
    if file and (not _FILE.fullmatch(file) or {".", ".."} & set(file.split("/"))):
        inner.fault("file", f"got {show(file)}, expected a file below the home", 'as in "~/.tool/login.json"')
    if form not in _FORMS:
        inner.fault("form", f"got {show(form)}, expected {' or '.join(map(show, _FORMS))}")
    return Login(
        file=file,
        takes=tuple(_takes(inner)),
        expects=tuple(_places(inner, "expect")),
        endpoint=inner.text("endpoint", required=True),
        path=inner.text("path", required=True),
        env=_env(inner),
        shape=_shape(inner),
        client_id=inner.text("client_id"),
        client_secret=inner.text("client_secret"),
        client_pattern=_pattern(inner),
        form=form,
        rotates=inner.flag("rotates", default=True),
    )


def _takes(table: Table) -> Iterator[tuple[str, str]]:
    """Secret's name and its place in the file; the first is the refresh token."""
    if not table.mapping("take"):
        hint = 'as in { acme-refresh = "tokens.refresh" }'
        table.fault("take", "missing, expected where the refresh token stands", hint)
    for name, place in _places(table, "take"):
        if not is_name(name):
            table.fault("take", f"{show(name)} is no name of a secret")
        yield name, place


def _places(table: Table, key: str) -> Iterator[tuple[str, str]]:
    """Pairs of text, one side a dotted place of the file: the value in `take`, the name in `expect`."""
    for name, value in table.mapping(key):
        text = value if isinstance(value, str) and value.isprintable() else ""
        if not text or not _PLACE.fullmatch(text if key == "take" else name):
            table.fault(key, f"got {show(name)} = {show(value)}, expected a dotted place", 'as in "tokens.refresh"')
        yield name, text


def _env(table: Table) -> str:
    env = table.text("env", required=True)
    if env and not ENV_NAME.fullmatch(env):
        table.fault("env", f"got {show(env)}, expected a name of an environment variable")
    return env


def _shape(table: Table) -> str:
    shape = table.text("shape", required=True)
    try:
        check_shape(shape or "x{16}")
    except ShapeError as fault:
        table.fault("shape", fault.detail, fault.hint)
    return shape


def _pattern(table: Table) -> str:
    """A regular expression with one group. The profiles that we ship alone are searched by."""
    text = table.text("client_pattern")
    try:
        groups = re.compile(text).groups
    except re.error as fault:
        table.fault("client_pattern", f"got {show(text)}: {fault}")
    else:
        if text and groups != 1:
            table.fault("client_pattern", f"got {groups} groups, expected one")
    return text
