"""An answer without the secrets that this daemon knows: its head, its body as it streams, its trailers.

Answers of an endpoint with a binding are searched, unless the binding says otherwise. They are asked for whole and
without a content coding. One that comes in a coding all the same is sent on decoded; what can't be read is not sent.
"""

from collections.abc import Callable
from itertools import chain

import msgspec

from credgate.gateway.inflate import CODINGS, Inflater, NotThat
from rules.policy import Policy
from rules.scrub import Scrubber, Table
from rules.verdict import Allow

type Fields = tuple[tuple[bytes, bytes], ...]

# Parts of an answer hide what stands across their border, deltas (RFC 3229) what the client can put together.
_NOT_ASKED = frozenset({b"accept-encoding", b"range", b"if-range", b"a-im"})
_PLAIN = (b"accept-encoding", b"identity")
_GRPC_ASKED = b"grpc-accept-encoding"
# Of the body as it was sent: its length, its coding, digests over it (RFC 9530).
_OF_THE_CODED = frozenset({b"content-encoding", b"content-length", b"content-digest", b"digest", b"content-md5"})


class Unreadable(Exception):
    """An answer that can't be searched. The text says why, without a byte of it."""


def is_wanted(policy: Policy, allow: Allow) -> bool:
    """Whether answers to a request that was allowed so are searched."""
    if allow.bindings:
        return any(binding.scrub for binding in allow.bindings)
    # the target has the secret from other requests
    return allow.endpoint.name in policy.scrubbed()


def is_alarming(policy: Policy, secret: str) -> bool:
    """Whether it is an alarm that a secret was found in an answer: not for what a target's answers hold as a matter of
    course, as every binding of it has to say.
    """
    own = [binding for binding in policy.bindings.values() if binding.secret == secret]
    return not own or any(binding.scrub_alarm for binding in own)


def named(policy: Policy, secret: str) -> str:
    """A secret in the words of ledger and alarm: its name, and the bindings that use it."""
    bindings = sorted(name for name, binding in policy.bindings.items() if binding.secret == secret)
    return f"secret {secret!r}" + (f" (binding {', '.join(bindings)})" if bindings else "")


def plainly(fields: Fields) -> Fields:
    """A request's headers that ask for an answer that can be read."""
    kept = tuple(field for field in fields if field[0].lower() not in _NOT_ASKED)
    grpc = tuple((n, b"identity") if n.lower() == _GRPC_ASKED else (n, v) for n, v in kept)
    return (*grpc, _PLAIN)


class Cleaning(msgspec.Struct, kw_only=True, eq=False):
    """One answer. `report` is told the name of each secret that was written over, and in what."""

    table: Table
    report: Callable[[str, str], None]
    scrubber: Scrubber | None = None  # once something came that isn't whole
    inflater: Inflater | None = None

    @property
    def decodes(self) -> bool:
        """Whether the body is sent in another coding than it came in."""
        return self.inflater is not None

    def head(self, status: int, fields: Fields, *, bodiless: bool) -> Fields:
        """The headers to send. Raises Unreadable where the body could not be searched."""
        if status in (206, 226):
            raise Unreadable("a part of an answer, though the whole was asked for")
        coding = _coding(fields, b"content-encoding")
        if _coding(fields, b"grpc-encoding"):
            raise Unreadable("compressed messages of gRPC")
        if coding and not bodiless:
            if coding not in CODINGS:
                raise Unreadable("a content coding other than one of gzip, deflate, br, zstd")
            self.inflater = Inflater(coding)
            fields = tuple(field for field in fields if field[0].lower() not in _OF_THE_CODED)
        return self.fields(fields, "the headers")

    def fields(self, fields: Fields, where: str) -> Fields:
        """Header or trailer fields."""
        if not self.table.candidates(b"\n".join(chain.from_iterable(fields))):
            return fields
        return tuple((self.text(name, where), self.text(value, where)) for name, value in fields)

    def text(self, text: bytes, where: str) -> bytes:
        """Something that is whole."""
        clean, names = self.table.clean(text)
        for name in names:
            self.report(name, where)
        return clean

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the body; returns what may go on. Raises Unreadable."""
        if self.inflater is not None:
            try:
                data = self.inflater.feed(data)
            except NotThat as why:
                raise Unreadable(str(why)) from None
        return self._scrubbed(data) if data else b""

    def whole(self, body: bytes) -> bytes:
        """As feed and finish, for a body of which nothing came before. Raises Unreadable."""
        if self.inflater is None and self.scrubber is None:
            return self.text(body, "the body")
        return self.feed(body) + self.finish()

    def finish(self) -> bytes:
        """The end of the body, and what was held of it. Raises Unreadable."""
        if self.inflater is not None:
            try:
                self.inflater.finish()
            except NotThat as why:
                raise Unreadable(str(why)) from None
        return b"" if self.scrubber is None else self.scrubber.finish()

    def message(self, data: bytes) -> bytes:
        """The same for the payload of a WebSocket's messages."""
        return self._scrubbed(data, "a message")

    def pause(self) -> bytes:
        """What was held, as nothing more may come for long; what matched so far counts on."""
        return b"" if self.scrubber is None else self.scrubber.flush()

    def _scrubbed(self, data: bytes, where: str = "the body") -> bytes:
        if self.scrubber is None:
            self.scrubber = Scrubber(self.table)
        hits = self.scrubber.hits
        known = len(hits)
        out = self.scrubber.feed(data)
        if len(hits) > known:
            for name in list(hits)[known:]:
                self.report(name, where)
        return out


def _coding(fields: Fields, name: bytes) -> bytes:
    """The coding that a header names, "" for none; several are one that nobody knows."""
    values = [value.strip(b" \t").lower() for key, value in fields if len(key) == len(name) and key.lower() == name]
    if not values:
        return b""
    named = [value for value in values if value not in (b"", b"identity")]
    return b", ".join(named)
