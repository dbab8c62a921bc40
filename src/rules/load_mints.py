"""[mint.NAME] tables into values. That their names lead somewhere is checked by load_refs."""

import re
from collections.abc import Callable, Mapping

from rules.envnames import ENV_NAME, refused
from rules.mints import ClientAuth, GcpJwt, GcpServiceAccount, GithubApp, Mint, MintType, OAuthRefresh, TokenForm
from rules.placeholders import ShapeError, check_shape
from rules.policy import Placeholder
from rules.tables import Table, closest, show

_COMMON = ("type", "secret")
_OF_TYPE: Mapping[MintType, tuple[str, ...]] = {
    MintType.GITHUB_APP: ("endpoint", "app", "installation", "permissions", "repositories", "api"),
    MintType.OAUTH2_REFRESH: (
        *("endpoint", "path", "client_id", "client_secret", "auth", "form", "scopes", "rotates", "placeholder"),
    ),
    MintType.GCP_SERVICE_ACCOUNT: ("endpoint", "path", "scopes", "subject", "revoke"),
    MintType.GCP_JWT: ("audience",),
}
MINT_KEYS = tuple(dict.fromkeys((*_COMMON, *(key for keys in _OF_TYPE.values() for key in keys))))
LEVELS = ("read", "write", "admin")
_PATH = re.compile(r"/[A-Za-z0-9/._~-]{0,255}")
_WORD = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # RFC 6749 3.3: the characters of a scope
_REPOSITORY = re.compile(r"[A-Za-z0-9._-]{1,100}")
_APP = re.compile(r"[A-Za-z0-9.]{1,64}")


def load_mints(tables: Mapping[str, Table]) -> dict[str, Mint]:
    """Return the mints by name."""
    return {name: _mint(name, table) for name, table in tables.items()}


def _mint(name: str, table: Table) -> Mint:
    kinds = [kind.value for kind in MintType]
    word = table.text("type", required=True)
    if word and word not in kinds:
        table.fault("type", f"got {show(word)}, expected {' or '.join(map(show, kinds))}", closest(word, kinds))
    kind = MintType(word) if word in kinds else MintType.OAUTH2_REFRESH
    for key in MINT_KEYS:
        if word in kinds and table.has(key) and key not in (*_COMMON, *_OF_TYPE[kind]):
            table.fault(key, f'does not go with type "{kind}"', f"keys of it: {', '.join(_OF_TYPE[kind])}")
    return _LOADERS[kind](name, table)


def _github(name: str, table: Table) -> GithubApp:
    app = table.text("app", required=True)
    if app and not _APP.fullmatch(app):
        table.fault("app", f"got {show(app)}, expected the app's client id or number", 'as in "Iv23liAbCdEf"')
    if not table.has("installation"):
        table.fault("installation", "missing, expected the installation's number", "add: installation = ...")
    repositories = table.texts("repositories", empty=False)
    for repository in repositories:
        if not _REPOSITORY.fullmatch(repository):
            table.fault("repositories", f"got {show(repository)}, expected a name without its owner", 'as in "app"')
    return GithubApp(
        name=name,
        secret=table.text("secret", required=True),
        endpoint=table.text("endpoint", required=True),
        app=app,
        installation=table.number("installation", 0, low=1),
        permissions=_permissions(table),
        repositories=repositories,
        api=_path(table, "api", ""),
    )


def _permissions(table: Table) -> tuple[tuple[str, str], ...]:
    """Read them; without any the token would have all that the app was ever given."""
    found: dict[str, str] = {}
    for key, value in table.mapping("permissions"):
        if isinstance(value, str) and value in LEVELS and re.fullmatch(r"[a-z_]{1,64}", key):
            found[key] = value
        else:
            levels = ", ".join(map(show, LEVELS))
            table.fault(
                "permissions", f"got {show(key)} = {show(value)}, expected one of {levels}", 'as in issues = "read"'
            )
    if not table.has("permissions"):
        hint = 'add: permissions = { contents = "read" }'
        table.fault("permissions", "missing: the token would have all that the app has", hint)
    elif not table.mapping("permissions"):
        table.fault("permissions", "got none, expected at least one", 'as in { contents = "read" }')
    return tuple(sorted(found.items()))


def _oauth(name: str, table: Table) -> OAuthRefresh:
    auth = table.choice("auth", ClientAuth, ClientAuth.POST)
    client_id, client_secret = table.text("client_id"), table.text("client_secret")
    if client_secret and not client_id:
        table.fault("client_secret", "got one without client_id", "add: client_id = ...")
    if auth is ClientAuth.BASIC and not client_secret:
        table.fault("auth", 'got "basic", but there is no client_secret to send by it', 'write auth = "post"')
    return OAuthRefresh(
        name=name,
        secret=table.text("secret", required=True),
        endpoint=table.text("endpoint", required=True),
        path=_path(table, "path", required=True),
        client_id=client_id,
        client_secret=client_secret,
        auth=auth,
        form=table.choice("form", TokenForm, TokenForm.FORM),
        scopes=_scopes(table),
        rotates=table.flag("rotates", default=True),
        placeholder=_placeholder(table),
    )


def _placeholder(table: Table) -> Placeholder | None:
    if not table.has("placeholder"):
        return None
    inner = table.table("placeholder", known=("env", "shape"))
    env, shape = inner.text("env", required=True), inner.text("shape", required=True)
    why = refused(env) if env else ""
    if why and (not ENV_NAME.fullmatch(env) or "credential" not in why):
        inner.fault("env", f"got {show(env)}: {why}", 'as in "OAUTH_REFRESH_TOKEN"')
    try:
        check_shape(shape or "x{16}")
    except ShapeError as fault:
        inner.fault("shape", fault.detail, fault.hint)
    return Placeholder(env=env, shape=shape)


def _google(name: str, table: Table) -> GcpServiceAccount:
    if not table.has("scopes"):
        hint = 'add: scopes = ["https://www.googleapis.com/auth/devstorage.read_only"]'
        table.fault("scopes", "missing, expected what the token is for", hint)
    return GcpServiceAccount(
        name=name,
        secret=table.text("secret", required=True),
        endpoint=table.text("endpoint", required=True),
        scopes=_scopes(table),
        path=_path(table, "path", "/token"),
        subject=table.text("subject"),
        revoke=_path(table, "revoke", ""),
    )


def _google_jwt(name: str, table: Table) -> GcpJwt:
    audience = table.text("audience", required=True)
    if audience and not re.fullmatch(r"https://[a-z0-9.-]+/", audience):
        hint = 'as in "https://pubsub.googleapis.com/", with its last slash'
        table.fault("audience", f"got {show(audience)}, expected the URL of an API", hint)
    return GcpJwt(name=name, secret=table.text("secret", required=True), audience=audience)


_LOADERS: Mapping[MintType, Callable[[str, Table], Mint]] = {
    MintType.GITHUB_APP: _github,
    MintType.OAUTH2_REFRESH: _oauth,
    MintType.GCP_SERVICE_ACCOUNT: _google,
    MintType.GCP_JWT: _google_jwt,
}


def _scopes(table: Table) -> tuple[str, ...]:
    scopes = table.texts("scopes", empty=False)
    for scope in scopes:
        if not _WORD.fullmatch(scope):
            table.fault("scopes", f"got {show(scope)}, expected a scope without spaces", "one entry for each scope")
    return scopes


def _path(table: Table, key: str, default: str = "", *, required: bool = False) -> str:
    text = table.text(key, default, required=required)
    plain = _PATH.fullmatch(text) and not {"", ".", ".."} & set(text.split("/")[1:])
    if text and not plain:
        table.fault(key, f"got {show(text)}, expected a plain path", 'as in "/oauth/token"')
    return text
