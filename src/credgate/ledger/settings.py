"""`ledger.toml` in the configuration directory: how segments are cut and kept, and which witnesses are told.

Not the policy: that is a matter of what may pass, and may lie in a work tree. Read strictly, all faults at once.
"""

import ipaddress
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from credgate.ledger.record import LedgerError

FILE = "ledger.toml"
_MAX_FILE = 64 * 1024
_MAX_WITNESSES = 8
_MIN_SEGMENT = 64 * 1024
_TRANSPORTS = ("udp", "tcp", "unix")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWitness:
    """A file of another owner's, best append-only (chattr +a), that notes are appended to."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogWitness:
    """A syslog receiver (RFC 5424). `address`: host and port, or the path of a datagram socket for `unix`."""

    transport: str
    address: tuple[str, int] | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpWitness:
    """An OTLP receiver of logs, HTTP with JSON."""

    url: str


type WitnessSettings = FileWitness | SyslogWitness | OtlpWitness


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`keep` 0: all segments. `pack`: closed segments are gzipped. Checkpoints: after so many lines or seconds."""

    max_bytes: int = 32 * 1024 * 1024
    keep: int = 0
    pack: bool = False
    every_lines: int = 256
    every_seconds: float = 1.0
    witnesses: tuple[WitnessSettings, ...] = ()


def load_settings(path: Path) -> Settings:
    """Read the file; without one, the defaults. Raises LedgerError with all its faults."""
    try:
        data = _read(path)
    except FileNotFoundError:
        return Settings()
    try:
        return parse_settings(data)
    except ValueError as error:
        hint = "see docs/ledger.md, Settings"
        raise LedgerError("ledger_settings", f"{path}: {error}", hint, exit_status=2) from error


def _read(path: Path) -> str:
    hint = f"chmod go-w {path}"
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            facts = os.fstat(file.fileno())
            ours = facts.st_uid in (0, os.geteuid()) and not facts.st_mode & 0o022
            if not ours or not stat.S_ISREG(facts.st_mode):
                raise LedgerError("ledger_settings", f"{path}: others could write it", hint, exit_status=2)
            return file.read(_MAX_FILE + 1)[: _MAX_FILE + 1].decode("utf-8", "strict")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError("ledger_settings", f"can't read {path}: {error}", hint, exit_status=2) from error


def parse_settings(text: str) -> Settings:
    """The settings that a file's text gives. Raises ValueError that names every fault."""
    if len(text) > _MAX_FILE:
        raise ValueError(f"more than {_MAX_FILE} characters")
    table = tomllib.loads(text)
    faults = _unknown(table, {"segments", "witness"}, "")
    segments, witnesses = table.get("segments", {}), table.get("witness", [])
    if not isinstance(segments, dict) or not isinstance(witnesses, list):
        raise ValueError("expected a table [segments] and tables [[witness]]")
    faults += _unknown(segments, {"max_bytes", "keep", "gzip"}, "segments.")
    max_bytes = _whole(segments, "max_bytes", Settings().max_bytes, _MIN_SEGMENT, faults)
    keep = _whole(segments, "keep", 0, 0, faults)
    pack = segments.get("gzip", False)
    if not isinstance(pack, bool):
        faults.append("segments.gzip: expected true or false")
    if len(witnesses) > _MAX_WITNESSES:
        faults.append(f"{len(witnesses)} witnesses, at most {_MAX_WITNESSES}")
    found = [_witness(item, f"witness {n}", faults) for n, item in enumerate(witnesses, start=1)]
    if faults:
        raise ValueError("; ".join(faults))
    told = tuple(item for item in found if item is not None)
    return Settings(max_bytes=max_bytes, keep=keep, pack=pack is True, witnesses=told)


def _unknown(table: Mapping[str, object], known: set[str], where: str) -> list[str]:
    return [f"{where}{name}: unknown, expected one of {', '.join(sorted(known))}" for name in table.keys() - known]


def _whole(table: Mapping[str, object], name: str, default: int, least: int, faults: list[str]) -> int:
    value = table.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 40:
        return value
    faults.append(f"segments.{name}: got {value!r}, expected a whole number from {least}")
    return default


def _witness(item: object, where: str, faults: list[str]) -> WitnessSettings | None:
    keys = {"file": {"path"}, "syslog": {"transport", "address"}, "otlp": {"url"}}
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(kind, str) or kind not in keys:
        faults.append(f"{where}: kind is {kind!r}, expected file, syslog or otlp")
        return None
    wrong = _unknown(item, keys[kind] | {"kind"}, f"{where}: ")
    wrong += [f"{where}: {name} is missing" for name in sorted(keys[kind] - item.keys())]
    wrong += [f"{where}: {name} is no text" for name, value in item.items() if not isinstance(value, str)]
    if wrong:
        faults += wrong
        return None
    try:
        return _make({str(name): str(value) for name, value in item.items()})
    except ValueError as error:
        faults.append(f"{where}: {error}")
        return None


def _make(item: Mapping[str, str]) -> WitnessSettings:
    match item["kind"]:
        case "file":
            return FileWitness(path=_absolute(item["path"]))
        case "syslog":
            if item["transport"] not in _TRANSPORTS:
                raise ValueError(f"transport is {item['transport']!r}, expected {', '.join(_TRANSPORTS)}")
            unix = item["transport"] == "unix"
            address = _absolute(item["address"]) if unix else _endpoint(item["address"])
            return SyslogWitness(transport=item["transport"], address=address)
        case _:
            return OtlpWitness(url=_url(item["url"]))


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ValueError(f"path is {text!r}, expected an absolute one")
    return path


def _endpoint(text: str) -> tuple[str, int]:
    """Host and port. An address, no name: nothing here asks a resolver."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = str(ipaddress.ip_address(parts.hostname or "")), parts.port
    except ValueError as error:
        raise ValueError(f"address is {text!r}, expected IP:PORT or [IP]:PORT") from error
    if not port or parts.path or parts.username is not None:
        raise ValueError(f"address is {text!r}, expected IP:PORT or [IP]:PORT")
    return host, port


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or parts.query or parts.fragment or not parts.path:
        raise ValueError(f"url is {text!r}, expected http://IP:PORT/v1/logs or https://...")
    _endpoint(parts.netloc)
    return text
