"""Headers of ours by which an auditor finds a request in the target's own records. Pure.

The client's own copies are out by now (rules.inject); what it can choose is the rest of its User-Agent alone. A header
that a signature covers is left as it was signed.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

__all__ = ["DEFAULT", "Correlate", "Marks", "base36", "run8", "signed_names", "tag_of"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_AGENT = 512  # bytes of the client's; CloudTrail cuts a user agent at 1 KB, and the tag is at its end
# AWS Signature Version 4: the Authorization header's second parameter, or a presigned URL's.
_SIGV4 = re.compile(rb"\s*AWS4-[A-Z0-9-]+\s.*SignedHeaders=([^,\s]+)", re.IGNORECASE | re.DOTALL)
_PRESIGNED = re.compile(r"[?&]X-Amz-SignedHeaders=([^&]*)", re.IGNORECASE)
_COVERED = re.compile(rb"\(([^)]*)\)")  # RFC 9421 4.1: the covered components of a signature in Signature-Input
_SIGNATURES = frozenset({len(b"authorization"), len(b"signature-input")})
_COMPONENT = re.compile(rb'"([^"]+)"')

type Fields = tuple[tuple[bytes, bytes], ...]


class Correlate(StrEnum):
    """What an endpoint may ask for, by the header that it goes into."""

    USER_AGENT = "user-agent"
    REQUEST_ID = "x-request-id"
    GOOG_REQUEST_REASON = "x-goog-request-reason"  # Cloud Audit Logs: requestMetadata.requestAttributes.reason
    MS_CLIENT_REQUEST_ID = "x-ms-client-request-id"  # Azure: clientRequestId of the Activity Log
    IDEMPOTENCY_KEY = "idempotency-key"  # Stripe: request.idempotency_key of an event


DEFAULT = frozenset({Correlate.USER_AGENT})
_MAKES_OBJECTS = frozenset({"POST", "PATCH"})  # the methods that have idempotency keys (IETF httpapi draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Which headers of one request are ours to set, before the ledger has given it a number."""

    run: str
    names: frozenset[Correlate]
    agent: bytes = b""  # the client's own, to put the tag behind
    client_key: bytes = b""  # its idempotency key: a retry of the client's has to stay one at the target

    @classmethod
    def of(
        cls, run: str, wanted: frozenset[Correlate], method: str, target: str, fields: Fields, own: bytes
    ) -> "Marks":
        """`fields` and `target` are what will be sent, the secret in place; `own` is the client's idempotency key."""
        names = wanted
        if Correlate.IDEMPOTENCY_KEY in names and method not in _MAKES_OBJECTS:
            names -= {Correlate.IDEMPOTENCY_KEY}
        if signed := signed_names(fields, target):
            names = frozenset(name for name in names if name.value not in signed)
        if len(names) > 1:  # what stands there by now a binding put there: the client's own are out
            taken = {name.lower().decode("latin-1") for name, _ in fields} - {Correlate.USER_AGENT.value}
            names = frozenset(name for name in names if name.value not in taken)
        agent = _agent(fields) if Correlate.USER_AGENT in names else b""
        return cls(run=run, names=names, agent=agent, client_key=own)

    def ua_tag(self, seq: int) -> str:
        """What stands in the User-Agent of request `seq`, "" where nothing does."""
        return f"credgate/{tag_of(self.run, seq)}" if Correlate.USER_AGENT in self.names else ""

    @property
    def ua_tag_begin(self) -> str:
        """All of a `ua_tag` but the number at its end, "" where there is none."""
        return f"credgate/{run8(self.run)}-" if Correlate.USER_AGENT in self.names else ""

    def ids(self, seq: int) -> Mapping[str, str]:
        """The ids that request `seq` gets, by header name."""
        if self.names <= DEFAULT:
            return {}
        return {name.value: self._id(name, seq) for name in Correlate if name in self.names and name != "user-agent"}

    def put(self, fields: Fields, seq: int) -> Fields:
        """The headers of request `seq` with ours in them."""
        if not self.names:
            return fields
        if self.names == DEFAULT:
            return self._tagged(fields, seq)
        more = tuple((name.encode("ascii"), value.encode("ascii")) for name, value in self.ids(seq).items())
        return (*(self._tagged(fields, seq) if Correlate.USER_AGENT in self.names else fields), *more)

    def tagged_agent(self, seq: int) -> bytes:
        """The User-Agent of request `seq`: the client's, our tag behind it."""
        return self.agent_begin + base36(seq).encode("ascii")

    @property
    def agent_begin(self) -> bytes:
        """That but for the number at its end."""
        begin = self.ua_tag_begin.encode("ascii")
        return b"%b %b" % (self.agent, begin) if self.agent else begin

    def _tagged(self, fields: Fields, seq: int) -> Fields:
        kept = (field for field in fields if field[0].lower() != b"user-agent")
        return (*kept, (b"user-agent", self.tagged_agent(seq)))

    def _id(self, name: Correlate, seq: int) -> str:
        if name is Correlate.GOOG_REQUEST_REASON:
            return f"credgate/{tag_of(self.run, seq)}"
        if name is Correlate.IDEMPOTENCY_KEY and self.client_key:
            return _uuid("client", self.run, self.client_key)
        return _uuid(name.value, self.run, b"%d" % seq)


def tag_of(run: str, seq: int) -> str:
    """RUN8-SEQ36: the run's first 8 letters and digits, and the number of the request's `intent` in base 36."""
    return f"{run8(run)}-{base36(seq)}"


@lru_cache(maxsize=64)
def run8(run: str) -> str:
    """The beginning of a run's id, as it stands in tags."""
    return "".join(char for char in run if char.isascii() and char.isalnum())[:8]


def signed_names(fields: Fields, target: str) -> frozenset[str]:
    """Headers that a signature on this request covers (AWS Signature Version 4, RFC 9421), lower case."""
    names: set[str] = set()
    for name, value in fields:
        if len(name) not in _SIGNATURES:  # nearly all of them
            continue
        if name.lower() == b"authorization" and (found := _SIGV4.match(value)):
            names.update(found[1].decode("latin-1").lower().split(";"))
        elif name.lower() == b"signature-input":
            parts = _COMPONENT.findall(b" ".join(_COVERED.findall(value)))
            names.update(part.decode("latin-1").lower() for part in parts)
    for listed in _PRESIGNED.findall(target) if "?" in target else ():
        names.update(unquote(listed).lower().split(";"))
    return frozenset(names)


def _agent(fields: Fields) -> bytes:
    """The client's User-Agent without anything that looks like a tag of ours."""
    return _clean(b" ".join(value for name, value in fields if name.lower() == b"user-agent"))


@lru_cache(maxsize=64)  # a run's clients have few, and send them with each request
def _clean(agent: bytes) -> bytes:
    # words that are dropped can't make a new one out of their neighbours, as cut-out text could
    kept = b" ".join(word for word in agent.split() if b"credgate/" not in word.lower())
    return kept if len(kept) <= _MAX_AGENT else kept[:_MAX_AGENT].rpartition(b" ")[0]


_PAIRS = tuple(high + low for high in _DIGITS for low in _DIGITS)


def base36(number: int) -> str:
    """A number as it stands in tags."""
    high, pair = divmod(number, len(_PAIRS))
    return _above(high) + _PAIRS[pair] if high else _PAIRS[pair].lstrip("0") or "0"


@lru_cache(maxsize=4)  # the same for 1,296 numbers in a row
def _above(number: int) -> str:
    return base36(number)


def _uuid(*parts: str | bytes) -> str:
    """A UUID of version 8 (RFC 9562 5.8): made of the parts, so that the ledger's line and the header agree."""
    text = b"\0".join(part.encode() if isinstance(part, str) else part for part in ("credgate", *parts))
    raw = bytearray(hashlib.sha256(text).digest()[:16])
    raw[6], raw[8] = raw[6] & 0x0F | 0x80, raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))
