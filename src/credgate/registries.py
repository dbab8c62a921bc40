"""`host_from`: what npm, pip and uv are configured for on this host, told by the clients themselves.

npm and pip print it, their own defaults included. uv prints its built-in default in its help and the rest only in a
debugging form, so its documented files and variables are read here.
"""

import ast
import json
import os
import re
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from credgate.clientconfig import Caller, ClientError, ask
from credgate.indexfiles import pip_files, uv_files
from rules.registries import EXTRA, Client, Registry, RegistryError, parse_registry

type Stamp = tuple[str, int, int]  # path, mtime, inode: 0 where there is no such file
type Urls = Iterator[tuple[str, str]]  # url and scope, as in Registry

MAX_AGE = 600.0  # seconds; a file that no client names may have changed
_MAX_CACHED = 64
_DEFAULT = re.compile(r"\((?:by )?default:?\s+<?([^\s<>]+?)>?\)")
_PIP_LINE = re.compile(r"^(?:global|install|download|site|user|:env:)\.((?:extra-)?index-url)=(.*)$")
_UV_NAME = re.compile(r"^[A-Za-z0-9._-]+=(?=[a-z]+:)")


def resolve(clients: Iterable[Client], caller: Caller) -> dict[Client, tuple[Registry, ...]]:
    """Ask each client once. Raises ClientError: not installed, no answer, nothing that could be reached over HTTP.

    An answer is kept for MAX_AGE, as long as neither the environment nor a file that the client named has changed.
    """
    return {client: _kept(client, caller) for client in clients}


def _kept(client: Client, caller: Caller) -> tuple[Registry, ...]:
    key = (client, frozenset(caller.environment().items()), caller.written)
    known = _cache.get(key)
    if known is not None and known.until > time.monotonic() and known.files == _stamps(known.files):
        return known.registries
    files = _files_of(client, caller)  # before the answer: a change in between is seen the next time
    registries = _of(client, caller)
    if len(_cache) >= _MAX_CACHED:
        _cache.clear()
    _cache[key] = _Answer(registries, files, time.monotonic() + MAX_AGE)
    return registries


@dataclass(frozen=True, slots=True)
class _Answer:
    registries: tuple[Registry, ...]
    files: tuple[Stamp, ...]
    until: float


_cache: dict[tuple[Client, frozenset[tuple[str, str]], tuple[str, ...]], _Answer] = {}


def _files_of(client: Client, caller: Caller) -> tuple[Stamp, ...]:
    """The client's program and the files that it may be configured by, present or not."""
    env, home = caller.environment(), caller.home
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    match client:
        case Client.NPM:
            given = [Path(v) for k, v in env.items() if k.lower().startswith("npm_config_") and v.startswith("/")]
            names, program = (home / ".npmrc", *given), caller.find("npm")
        case Client.PIP | Client.PIP_FILES:
            given = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
            system = (Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf"))
            names = (home / ".pip/pip.conf", config / "pip/pip.conf", *system, *given)
            program = caller.find("pip", "pip3")
        case Client.UV | Client.UV_FILES:
            names, program = _uv_paths(caller, env), caller.find("uv")
        case _:
            assert_never(client)
    return _stamps((str(path), 0, 0) for path in (Path(program), *names))


def _stamps(files: Iterable[Stamp]) -> tuple[Stamp, ...]:
    return tuple(_stamp(path) for path, _, _ in files)


def _stamp(path: str) -> Stamp:
    try:
        facts = os.stat(path)  # noqa: PTH116 - a name
    except OSError:
        return (path, 0, 0)
    return (path, facts.st_mtime_ns, facts.st_ino)


def _of(client: Client, caller: Caller) -> tuple[Registry, ...]:
    match client:
        case Client.NPM:
            urls = list(_npm(caller))
        case Client.PIP:
            urls = list(_pip(caller))
        case Client.UV:
            urls = list(_uv(caller))
        case Client.PIP_FILES:
            urls = [(url, "") for url in pip_files(caller)]
        case Client.UV_FILES:
            urls = [(url, "") for url in uv_files(caller)]
        case _:
            assert_never(client)
    found = tuple(dict.fromkeys(_parsed(client, urls)))
    if not found:
        raise ClientError(
            "registry_missing",
            f"{client} is configured for no registry that is reached over HTTP",
            "see its configuration, or write host = ... instead of host_from",
        )
    return found


def _parsed(client: Client, urls: Iterable[tuple[str, str]]) -> Iterator[Registry]:
    for url, scope in urls:
        if url.partition(":")[0].lower() not in ("http", "https"):
            continue  # a directory of this host
        try:
            yield parse_registry(url, scope)
        except RegistryError as fault:
            raise ClientError("registry_invalid", f"{client}: {fault.detail}", fault.hint) from None


def _npm(caller: Caller) -> Urls:
    """`npm config list --json` holds the default registry and each "@scope:registry", without credentials."""
    text = ask(caller, caller.find("npm"), "config", "list", "--json")
    try:
        settings = json.loads(text)
    except ValueError:
        raise ClientError("client_failed", "npm config list --json: not JSON", "run it by hand") from None
    for name in ("userconfig", "globalconfig"):
        caller.check_file(Path(str(settings.get(name, "/"))), f"npm's {name}")
    yield str(settings.get("registry", "")), ""
    for key, value in settings.items():
        scope, colon, what = key.partition(":")
        if scope.startswith("@") and colon and what == "registry":
            yield str(value), scope


def _pip(caller: Caller) -> Urls:
    """The help of `pip install` says the index that is configured or built in, `pip config list` the further ones."""
    pip = caller.find("pip", "pip3")
    found = _DEFAULT.search(_option(ask(caller, pip, "install", "--help"), "--index-url"))
    settings = [
        match.groups() for line in ask(caller, pip, "config", "list").splitlines() if (match := _PIP_LINE.match(line))
    ]
    if found is None:
        raise ClientError("client_failed", "pip install --help: no default of --index-url", "run it by hand")
    yield found[1], ""
    for key, value in settings:
        for url in _literal(value).split():
            if key == "extra-index-url":
                yield url, EXTRA


def _literal(value: str) -> str:
    """Pip prints values as Python literals."""
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        raise ClientError("client_failed", "pip config list: an extra-index-url that is no text", "run it") from None


def _option(text: str, name: str) -> str:
    """What a help says of one option, up to the next one."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if re.search(rf"{name}\b", line.strip()[:60])), len(lines))
    rest = lines[start + 1 :]
    end = next((i for i, line in enumerate(rest) if line.strip().startswith("-")), len(rest))
    return " ".join(line.strip() for line in lines[start : start + 1 + end])


def _uv(caller: Caller) -> Urls:
    """Variables before files, the user's before the system's (docs: concepts/configuration-files, concepts/indexes)."""
    uv, env = caller.find("uv"), caller.environment()
    tables = [] if env.get("UV_NO_CONFIG") else list(_uv_files(caller, env))
    default = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or next(_uv_defaults(tables), "")
    if not default:
        found = _DEFAULT.search(_option(ask(caller, uv, "pip", "install", "--help"), "--default-index"))
        if found is None:
            raise ClientError("client_failed", "uv pip install --help: no default of --default-index", "run it by hand")
        default = found[1]
    yield _UV_NAME.sub("", default), ""
    for text in (*env.get("UV_INDEX", "").split(), *env.get("UV_EXTRA_INDEX_URL", "").split(), *_uv_more(tables)):
        yield _UV_NAME.sub("", text), EXTRA


def _uv_paths(caller: Caller, env: Mapping[str, str]) -> tuple[Path, ...]:
    if env.get("UV_CONFIG_FILE"):
        return (Path(env["UV_CONFIG_FILE"]),)
    user = Path(env.get("XDG_CONFIG_HOME") or caller.home / ".config")
    system = [Path(folder) for folder in env.get("XDG_CONFIG_DIRS", "").split(os.pathsep) if folder]
    return tuple(dict.fromkeys(folder / "uv/uv.toml" for folder in (user, *system, Path("/etc"))))


def _uv_files(caller: Caller, env: Mapping[str, str]) -> Iterator[dict[str, object]]:
    for path in _uv_paths(caller, env):
        caller.check_file(path, "uv's configuration")
        try:
            yield tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise ClientError("client_config_invalid", f"{path}: {type(error).__name__}", "mend it") from error


def _uv_indexes(tables: Iterable[dict[str, object]]) -> Iterator[tuple[str, bool]]:
    """Each index of the files, and whether it is the default."""
    for table in tables:
        listed = table.get("index")
        for index in listed if isinstance(listed, list) else []:
            if isinstance(index, dict) and isinstance(index.get("url"), str):
                yield index["url"], index.get("default") is True
        pip = table.get("pip")
        for part in (table, pip if isinstance(pip, dict) else {}):
            if isinstance(part.get("index-url"), str):
                yield str(part["index-url"]), True
            extra = part.get("extra-index-url")
            for url in extra if isinstance(extra, list) else []:
                yield str(url), False


def _uv_defaults(tables: Iterable[dict[str, object]]) -> Iterator[str]:
    return (url for url, default in _uv_indexes(tables) if default)


def _uv_more(tables: Iterable[dict[str, object]]) -> Iterator[str]:
    return (url for url, default in _uv_indexes(tables) if not default)
