"""Logins by subscription, as far as a profile knows them: where the agent keeps one, how tokens are had for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rules.problems import RulesError

__all__ = ["Login", "LoginError", "taken"]

_MISSING = object()


class LoginError(RulesError):
    """A login's file that is not as the profile knows it. `detail` names the place, never a value of the file."""

    code = "login_unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """`file` is the agent's own on the host, "~/..." and JSON; `takes` says what goes into the vault from it: secret's
    usual name and dotted place, the refresh token first. `expects` are places that hold a text known beforehand.

    `endpoint` names the pack of the token endpoint's host; `env` and `shape` are those of the jail's decoy refresh
    token. `client_secret` is the usual name of the secret that an installed program's client id goes with, "" for none;
    `client_pattern` finds it in the program's own files.
    """

    file: str
    takes: tuple[tuple[str, str], ...]
    expects: tuple[tuple[str, str], ...] = ()
    endpoint: str
    path: str
    env: str
    shape: str
    client_id: str = ""
    client_secret: str = ""
    client_pattern: str = field(default="", repr=False)
    form: str = "form"  # or "json"
    rotates: bool = True


def taken(login: Login, document: object) -> dict[str, str]:
    """The values that the vault gets, by secret's name. Raises LoginError where the file's schema is another one."""
    for place, text in login.expects:
        found = _at(document, place)
        if found is not _MISSING and found != text:
            raise _unknown(login, f"at {place} there is another text than {text!r}")
    values: dict[str, str] = {}
    for name, place in login.takes:
        value = _at(document, place)
        if not isinstance(value, str) or not value.strip():
            raise _unknown(login, f"expected text at {place}, got {_kind(value)}")
        values[name] = value
    return values


def _at(document: object, place: str) -> object:
    for key in place.split("."):
        if not isinstance(document, Mapping) or key not in document:
            return _MISSING
        document = document[key]
    return document


def _unknown(login: Login, what: str) -> LoginError:
    places = ", ".join(place for _, place in login.takes)
    hint = f"this version knows a JSON object with {places}; sign in with the agent anew, or keep them: secret set"
    return LoginError(what, hint)


def _kind(value: object) -> str:
    match value:
        case str():
            return "an empty one"
        case None:
            return "null"
        case dict() | list() | bool() | int() | float():
            return f"{type(value).__name__}"
        case _:
            return "nothing"
