"""Where a Python index keeps its files: it says so in its pages, often on another host, and the client reads them.

One small project is looked up by the client, which uses its own index, trust and proxy; nothing is installed.
"""

import json
import tomllib
from collections.abc import Iterator
from urllib.parse import urlsplit

from credgate.clientconfig import Caller, ClientError, ask

_PIP = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--no-input", "--report", "-", "pip")
_UV = ("pip", "compile", "-", "--no-deps", "--no-header", "--quiet", "--no-cache", "--format", "pylock.toml")


def pip_files(caller: Caller) -> tuple[str, ...]:
    """Return the root of the host that pip would fetch a file from. Raises ClientError."""
    report = ask(caller, caller.find("pip", "pip3"), *_PIP)
    try:
        return _roots(item["download_info"]["url"] for item in json.loads(report)["install"])
    except (ValueError, KeyError, TypeError):
        raise _unread("pip") from None


def uv_files(caller: Caller) -> tuple[str, ...]:
    """Return the roots of the hosts that uv would fetch the files of one project from. Raises ClientError."""
    lock = ask(caller, caller.find("uv"), *_UV, sent="uv\n")
    try:
        return _roots(_uv_urls(tomllib.loads(lock)))
    except (ValueError, KeyError, TypeError):
        raise _unread("uv") from None


def _uv_urls(lock: dict[str, list[dict[str, list[dict[str, str]]]]]) -> Iterator[str]:
    """The files of a pylock.toml (PEP 751)."""
    for package in lock["packages"]:
        yield from (wheel["url"] for wheel in package["wheels"])


def _roots(urls: Iterator[str]) -> tuple[str, ...]:
    parts = [urlsplit(url) for url in urls]
    return tuple(dict.fromkeys(f"{p.scheme}://{p.netloc.rpartition('@')[2]}/" for p in parts))


def _unread(client: str) -> ClientError:
    return ClientError(
        "client_failed", f"{client} does not say where it would fetch a file from", "write host = ... instead"
    )
