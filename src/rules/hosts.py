"""Host names: one normal form, shared by the policy file and by traffic, and patterns compared label by label.

A name is ASCII letters, digits and hyphens (LDH), lower case, without a trailing dot. Everything that getaddrinfo or a
URL parser would read as something else (a number, a full-width digit, userinfo) is refused, not repaired.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from rules.problems import HostError

__all__ = ["AddressLiteral", "HostError", "HostPattern", "is_metadata_name", "labels_of", "normalize_host"]

MAX_NAME = 253  # RFC 1035 2.3.4 without the root's length byte
MAX_LABEL = 63
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
# RFC 1123 2.1: the last label of a name is not a number, so one that is marks an address in inet_aton's spellings
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_CANONICAL_V4 = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}")

# Names under which clouds and orchestrators hand out credentials; with all names below them. Nothing opens these.
METADATA_NAMES = frozenset(
    tuple(name.split("."))
    for name in (
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.com",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "api.metadata.cloud.ibm.com",
        "instance-data",
        "instance-data.ec2.internal",
        "rancher-metadata",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
)
_DEEPEST = max(len(labels) for labels in METADATA_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressLiteral:
    """A canonical address where a name belongs: understood, and refused with 403 rather than 400."""

    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPattern:
    """`wild` is "" (exact), "*" (one label before `labels`) or "**" (one or more). Built by parse."""

    text: str
    labels: tuple[str, ...]
    wild: str = ""

    @property
    def exact(self) -> bool:
        """Whether the pattern names one host."""
        return not self.wild

    @classmethod
    def parse(cls, text: str) -> "HostPattern":
        """Read a host of the policy file.

        Raises HostError, with the right spelling as its hint, for a name not in normal form, an address, a wildcard
        over fewer than two labels, a metadata name, and localhost.
        """
        wild, name = _split_wildcard(text)
        labels = tuple(_policy_name(name).split("."))
        if wild and len(labels) < 2:
            raise HostError(
                f"host {text!r} covers a whole top-level domain",
                f'keep at least two labels after the wildcard, as in "{wild}.example.com"',
            )
        if not wild and is_metadata_name(labels):
            raise HostError(f"host {text!r} hands out machine credentials and stays closed", "remove the endpoint")
        if labels[-1] == "localhost":
            raise HostError(
                f"host {text!r} is the jail itself",
                'give the target a name of its own and add address = ["127.0.0.1"]',
            )
        return cls(text=text, labels=labels, wild=wild)

    def matches(self, host: str) -> bool:
        """Whether a host in normal form is meant; whole labels are compared, the apex is never implied."""
        return self.matches_labels(labels_of(host))

    def matches_labels(self, labels: tuple[str, ...]) -> bool:
        """As matches, for a name taken apart."""
        extra = len(labels) - len(self.labels)
        if not self.wild:
            return labels == self.labels
        enough = extra == 1 if self.wild == "*" else extra >= 1
        return enough and labels[extra:] == self.labels


def labels_of(host: str) -> tuple[str, ...]:
    """The labels of a name in normal form."""
    return tuple(host.split("."))


def is_metadata_name(labels: tuple[str, ...]) -> bool:
    """Whether a name in normal form is a cloud metadata name, or below one."""
    return any(labels[-depth:] in METADATA_NAMES for depth in range(1, _DEEPEST + 1))


def normalize_host(raw: bytes) -> str | AddressLiteral:
    """The normal form of a host as it came over the wire, without its port.

    Raises HostError for everything that is neither a name nor an address in its canonical spelling.
    """
    return _known_host(raw) if len(raw) <= MAX_NAME + 1 else _normal_host(raw)


@lru_cache(maxsize=512)  # a client asks for few, each of them three times a request
def _known_host(raw: bytes) -> str | AddressLiteral:
    return _normal_host(raw)


def _normal_host(raw: bytes) -> str | AddressLiteral:
    try:
        text = raw.decode("ascii").lower()
    except UnicodeDecodeError:
        raise HostError("host holds bytes outside ascii", "send the name in its xn-- form") from None
    if text.startswith("["):
        return _bracketed(text)
    if _CANONICAL_V4.fullmatch(text) and (address := _address(text)):
        return AddressLiteral(address=address)
    return _checked_name(text[:-1] if text.endswith(".") else text)


def _bracketed(text: str) -> AddressLiteral:
    # a scope id names an interface of the sender; RFC 9844 keeps it out of URLs
    address = _address(text[1:-1]) if text.endswith("]") and "%" not in text else None
    if not isinstance(address, IPv6Address):
        raise HostError("brackets hold no IPv6 address", "brackets belong around an IPv6 address only")
    return AddressLiteral(address=address)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _checked_name(name: str) -> str:
    if not name:
        raise HostError("host is empty")
    if len(name) > MAX_NAME:
        raise HostError(f"host is longer than {MAX_NAME} characters")
    labels = name.split(".")
    for label in labels:
        _check_label(label)
    if _NUMBER.fullmatch(labels[-1]):
        raise HostError("host is an address in a spelling that is not canonical", "use the name of the host")
    return name


def _check_label(label: str) -> None:
    if not label:
        raise HostError("host has an empty label")
    if len(label) > MAX_LABEL:
        raise HostError(f"host has a label longer than {MAX_LABEL} characters")
    if not _LABEL.fullmatch(label):
        raise HostError("host has a label that is not letters, digits and inner hyphens")
    if label.startswith("xn--") and not _is_a_label(label):
        raise HostError("host has an xn-- label that decodes to no name", "send the name in its xn-- form")


def _is_a_label(label: str) -> bool:
    """Whether an xn-- label decodes to text outside ascii: one that does not is a second spelling of another name."""
    try:
        return not label[4:].encode("ascii").decode("punycode").isascii()
    except (UnicodeError, ValueError, OverflowError):
        return False


def _split_wildcard(text: str) -> tuple[str, str]:
    for wild in ("**", "*"):
        if text == wild:
            raise HostError(f"host {text!r} means every host", 'name the host, or use "*.example.com"')
        if text.startswith(wild + ".") and "*" not in text.removeprefix(wild):
            return wild, text[len(wild) + 1 :]
    if "*" in text:
        raise HostError(
            f"host {text!r} has a wildcard that is not a whole first label",
            'use "*.example.com" for one label or "**.example.com" for any depth',
        )
    return "", text


def _policy_name(name: str) -> str:
    if _is_address(name):
        bare = name.strip("[]")
        canonical = str(_address(bare) or "a.b.c.d")
        raise HostError(
            f"host {name!r} is an address, expected a name",
            f'give the target a name as host and put the address into address = ["{canonical}"]',
        )
    try:
        normal = normalize_host(name.encode("ascii"))
    except UnicodeEncodeError:
        raise HostError(f"host {name!r} is not ascii", _idna_hint(name)) from None
    except HostError as error:
        raise HostError(f"host {name!r}: {error.detail}", _ascii_hint(name)) from None
    if normal != name:
        raise HostError(f"host {name!r} is not in normal form", f'write "{normal}"')
    return name


def _is_address(name: str) -> bool:
    bare = name.removeprefix("[").removesuffix("]")
    last = name.rstrip(".").rpartition(".")[2].lower()
    return bool(_NUMBER.fullmatch(last)) or _address(bare) is not None


def _idna_hint(name: str) -> str:
    try:
        spelled = name.encode("idna").decode("ascii").lower()
        normalize_host(spelled.encode("ascii"))
    except (UnicodeError, HostError):
        return "write the name in its xn-- form"
    return f'write "{spelled}"'


def _ascii_hint(name: str) -> str:
    if "://" in name or "/" in name:
        bare = name.partition("://")[2] or name
        return f'write the host alone: "{bare.partition("/")[0]}"'
    if ":" in name:
        return f'write "{name.partition(":")[0]}" and put the port into port = {name.rpartition(":")[2] or "443"}'
    return "a host is letters, digits and hyphens in labels of at most 63 characters"
