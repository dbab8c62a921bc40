"""The targets' facts (`targets.toml`) and what a mapping file changes of them: one checked value a source."""

import fnmatch
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta, timezone, tzinfo
from functools import cache
from importlib import resources
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from credgate.reconcile.formats import (
    azure,
    cloudflare,
    cloudtrail,
    envoy,
    gcp,
    github,
    gitlab,
    okta,
    s3access,
    slack,
    squid,
    stripe,
    usage,
    weblog,
)
from credgate.reconcile.formats.mapped import FIELDS, Mapped
from credgate.reconcile.model import Event, ReconcileError

type Parse = Callable[[object], tuple[Event, ...]]

PARSERS: Mapping[str, Parse] = {
    "cloudtrail": cloudtrail.parse,
    "s3access": s3access.parse,
    "github": github.parse,
    "gitlab": gitlab.parse,
    "gcp": gcp.parse,
    "azure": azure.parse,
    "cloudflare": cloudflare.parse,
    "stripe": stripe.parse,
    "slack": slack.parse,
    "okta": okta.parse,
    "nginx": weblog.parse,
    "apache": weblog.parse,
    "envoy": envoy.parse,
    "squid": squid.parse,
    "openai": usage.openai,
    "anthropic": usage.anthropic,
}
MAPPED = ("jsonl", "csv")
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Requests that a target would not have logged."""

    id: str
    why: str
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    unless: str = ""

    def takes(self, method: str, host: str, path: str, service: str) -> bool:
        """Whether a request is one of these."""
        if self.methods and method not in self.methods:
            return False
        if self.services and service not in self.services:
            return False
        if self.hosts and not any(_host_fits(pattern, host) for pattern in self.hosts):
            return False
        return not self.paths or any(re.fullmatch(pattern, path) for pattern in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One source's facts; see the head of targets.toml. Names a person gave: `name`."""

    name: str
    format: str
    title: str
    reader: str
    stamp: str
    resolution_ms: int
    delay_s: int
    credential: str
    key: tuple[str, ...]
    one: bool
    size: str
    hosts: tuple[str, ...] = ()
    names_host: bool = False
    only_service: str = ""
    best_effort: bool = False
    counts: str = ""
    counted: tuple[str, ...] = ()
    counted_paths: tuple[str, ...] = ()
    absent: tuple[Absent, ...] = ()
    egress: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict)  # name or fingerprint in the ledger -> as logged
    mapped: Mapped | None = None

    @property
    def parse(self) -> Parse:
        """The parser of one record."""
        return self.mapped.parse if self.mapped else PARSERS[self.format]

    @property
    def strong(self) -> bool:
        """Whether the key says which request it was, not only to whom."""
        return "method" in self.key and "path" in self.key

    def serves(self, host: str) -> bool:
        """Whether a request to this host is one that the target would see."""
        return any(_host_fits(pattern, host) for pattern in self.hosts)

    def service_of(self, host: str) -> str:
        """The service behind a host, in the words of the target's records."""
        match self.format:
            case "cloudtrail" | "s3access":
                return cloudtrail.service_of(host)
            case "gcp":
                return host
            case "azure":
                return "management"
            case "slack":
                return "audit"
            case "stripe" | "okta" | "github" | "gitlab":
                return "api"
            case _:
                return "http"


def _host_fits(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return fnmatch.fnmatchcase(host, pattern) if "*" in pattern else host == pattern


@cache
def _facts() -> Mapping[str, Mapping[str, object]]:
    text = resources.files("credgate.reconcile").joinpath("targets.toml").read_text("utf-8")
    return tomllib.loads(text)


def formats() -> list[str]:
    """The names that --source takes."""
    return list(_facts())


def target_of(name: str, hosts: tuple[str, ...], mapping: Mapping[str, Mapping[str, object]]) -> Target:
    """The facts of the source that a person named, a format or one of the mapping file's. Raises ReconcileError."""
    own = dict(mapping.get(name, {}))
    format_ = str(own.pop("format", name))
    if format_ not in _facts():
        known = ", ".join([*_facts(), *mapping])
        raise ReconcileError("unknown_format", f"got source format {format_!r}, expected one of: {known}", "", 2)
    target = _built(name, format_, {**_facts()[format_], **_plain(own, name)})
    target = replace(target, absent=target.absent + _more_absent(own, name), mapped=_mapped(format_, own, name))
    return replace(target, hosts=hosts or target.hosts)


_TEXTS = ("hosts", "egress", "key")
_WORDS = {"stamp": ("start", "end"), "credential": ("logged", "none"), "size": ("", "body", "chunked", "wire")}
_NUMBERS = ("resolution_ms", "delay_s")
_SWITCHES = ("one", "best_effort")
_ELSEWHERE = ("fields", "zone", "absent")
_KEYS = ("service", "host", "method", "path", "status", "action")


def _plain(own: Mapping[str, object], name: str) -> dict[str, object]:
    """The simple keys of a mapping's table, checked."""
    known = (*_TEXTS, *_WORDS, *_NUMBERS, *_SWITCHES, "credentials", *_ELSEWHERE)
    if unknown := [key for key in own if key not in known]:
        raise ReconcileError("mapping", f"source {name}: unknown key {unknown[0]!r}", f"known: {', '.join(known)}", 2)
    out = {key: _checked(name, key, value) for key, value in own.items() if key not in _ELSEWHERE}
    if bad := [item for item in _listed(out.get("key")) if item not in _KEYS]:
        raise _wrong(name, "key", bad, f"of {', '.join(_KEYS)}")
    return out


def _checked(name: str, key: str, value: object) -> object:
    if key == "credentials":
        return _texts_by_name(value, name, key)
    if key in _TEXTS:
        good, want = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of texts"
    elif key in _WORDS:
        good, want = value in _WORDS[key], " or ".join(repr(word) for word in _WORDS[key])
    elif key in _SWITCHES:
        good, want = isinstance(value, bool), "true or false"
    else:
        good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9
        want = "a whole number"
    if not good:
        raise _wrong(name, key, value, want)
    return value


def _texts_by_name(value: object, name: str, key: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _wrong(name, key, value, "a table of texts")
    return {str(item): str(text) for item, text in value.items()}


def _wrong(name: str, key: str, value: object, want: str) -> ReconcileError:
    return ReconcileError("mapping", f"source {name}: {key} is {value!r}, expected {want}", "docs/reconcile.md", 2)


def _listed(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else ()


def _built(name: str, format_: str, facts: Mapping[str, object]) -> Target:
    plain = {key: value for key, value in facts.items() if key not in ("absent", *_TEXTS, "counted", "counted_paths")}
    lists = {key: _listed(facts.get(key)) for key in (*_TEXTS, "counted", "counted_paths")}
    rules = facts.get("absent")
    absent = tuple(_absent(rule) for rule in rules) if isinstance(rules, list) else ()
    return Target(name=name, format=format_, absent=absent, **plain, **lists)  # type: ignore[arg-type]  # each was read by its kind


def _absent(rule: Mapping[str, object]) -> Absent:
    lists = {key: _listed(rule.get(key)) for key in ("methods", "paths", "hosts", "services")}
    return Absent(id=str(rule["id"]), why=str(rule["why"]), unless=str(rule.get("unless", "")), **lists)


def _more_absent(own: Mapping[str, object], name: str) -> tuple[Absent, ...]:
    rules = own.get("absent", [])
    if not isinstance(rules, list) or not all(
        isinstance(rule, dict) and {"id", "why"} <= rule.keys() for rule in rules
    ):
        raise _wrong(name, "absent", rules, "a list of tables with id and why")
    for bad in (rule["id"] for rule in rules if not re.fullmatch(r"[\w.-]{1,64}", str(rule["id"]), re.ASCII)):
        raise _wrong(name, "absent.id", bad, "letters, digits, - and _")
    found = tuple(_absent(rule) for rule in rules)
    for pattern in (pattern for rule in found for pattern in rule.paths):
        try:
            re.compile(pattern)
        except re.error as error:
            raise _wrong(name, "absent.paths", pattern, f"a regular expression ({error})") from error
    return found


def _mapped(format_: str, own: Mapping[str, object], name: str) -> Mapped | None:
    if format_ not in MAPPED:
        if "fields" in own or "zone" in own:
            raise ReconcileError("mapping", f"source {name}: fields and zone go with jsonl and csv alone", "", 2)
        return None
    fields = own.get("fields")
    if not isinstance(fields, dict) or "time" not in fields:
        detail = f"source {name}: {format_} needs a mapping that says where the time is"
        raise ReconcileError("mapping", detail, f"[source.{name}.fields] with time = and any of {', '.join(FIELDS)}", 2)
    paths: dict[str, tuple[str, ...]] = {}
    for key, value in fields.items():
        if key not in FIELDS:
            raise ReconcileError("mapping", f"source {name}: unknown field {key!r}", f"known: {', '.join(FIELDS)}", 2)
        paths[key] = (value,) if isinstance(value, str) else _listed(value)
        if not paths[key]:
            raise _wrong(name, f"fields.{key}", value, "a text or a list of texts")
    return Mapped(paths=paths, zone=_zone(own.get("zone"), name), kind=format_)


def _zone(value: object, name: str) -> tzinfo | None:
    if value is None:
        return None
    text = str(value)
    if match := _OFFSET.fullmatch(text):
        span = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-span if match[1] == "-" else span)
    try:
        return UTC if text == "UTC" else ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _wrong(name, "zone", value, '"+02:00", "UTC" or a name as "Europe/Berlin"') from None


def load_mapping(path: Path | None) -> Mapping[str, Mapping[str, object]]:
    """The tables below `[source.NAME]` of a mapping file. Raises ReconcileError."""
    if path is None:
        return {}
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ReconcileError(
            "mapping", f"can't read {path}: {(error.strerror or str(error)).lower()}", "", 2
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReconcileError(
            "mapping", f"{path} is not TOML: {error}", "docs/reconcile.md has an example", 2
        ) from error
    sources = data.get("source")
    if (
        set(data) - {"source"}
        or not isinstance(sources, dict)
        or not all(isinstance(v, dict) for v in sources.values())
    ):
        raise ReconcileError(
            "mapping", f"{path}: got {', '.join(data) or 'nothing'}, expected [source.NAME] tables", "", 2
        )
    return sources
