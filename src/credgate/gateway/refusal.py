"""A refusal as the jail sees it: one shape, one header, a short fixed sentence; nothing of our own insides."""

import json
import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never
from xml.sax.saxutils import escape

from rules.reasons import Reason
from rules.verdict import Deny

HEADER = b"credgate-verdict"

# What the gateway itself refuses, or could not do; everything else comes from the rules with its own sentence.
_SENTENCES: dict[Reason, tuple[int, str]] = {
    Reason.MALFORMED: (400, "The request is not well-formed HTTP."),
    Reason.METADATA: (403, "Metadata addresses are closed."),
    Reason.SECRET_MISPLACED: (403, "The request holds the value of a secret where it does not belong."),
    Reason.SECRET_UNAVAILABLE: (403, "The credential for this request is not available. Ask the user to set it."),
    Reason.ADDRESS_BLOCKED: (403, "The host resolves to an address that is closed."),
    Reason.RESOLVE_FAILED: (502, "The host could not be resolved."),
    Reason.UPSTREAM_UNREACHABLE: (502, "The host could not be reached."),
    Reason.UPSTREAM_TLS: (502, "No verified TLS connection to the host could be made."),
    Reason.UPSTREAM_RESET: (502, "The host closed the connection without an answer."),
    Reason.UPSTREAM_RESENT: (502, "The host closed the connection, and the request was sent once more."),
    Reason.UPSTREAM_INVALID: (502, "The host gave an answer that is not well-formed HTTP."),
    Reason.UPSTREAM_TIMEOUT: (504, "The host did not answer in time."),
    Reason.RESPONSE_UNREADABLE: (502, "The host's answer could not be searched for secrets, so it is withheld."),
    Reason.NOT_HTTP: (400, "Only HTTP passes this gateway."),
    Reason.PROOF_MISSING: (403, "This run has not been proven confined yet."),
    Reason.REVOKED: (403, "The rights that this request needs have been revoked."),
    Reason.PAUSED: (403, "This run is paused after an alarm. The user can resume it."),
    Reason.LEDGER_UNAVAILABLE: (403, "The ledger can not be written, so nothing passes."),
    Reason.INTERNAL: (403, "The gateway could not judge this request, so it is refused."),
}

_BARE = {r: Deny(reason=r, message=text, status=status) for r, (status, text) in _SENTENCES.items()}

# Reasons whose hint says what would let the request pass; other hints are for whoever reads the ledger.
_TELLS = frozenset(
    {
        Reason.HOST_UNLISTED,
        Reason.PORT_UNLISTED,
        Reason.NO_RULE,
        Reason.QUERY_REFUSED,
        Reason.UPGRADE_REFUSED,
        Reason.BODY_REFUSED,
        Reason.FOREIGN_CREDENTIAL,
        Reason.PLACEHOLDER_MISPLACED,
        Reason.SIGNATURE_REFUSED,
    }
)
_MOST_UNUSED = 64
_MAX_HINT = 400  # a host has at most 253 characters
_LETTERS = str.maketrans("0123456789abcdef", "bcdfghjklmnpqrst")


def deny(reason: Reason, why: str = "") -> Deny:
    """The gateway's own refusal for a reason; `why` is for the ledger alone."""
    if not why:
        return _BARE[reason]
    return replace(_BARE[reason], hint=why)


def sentence(verdict: Deny) -> str:
    """The message for the jail: the reason, and in words of the policy what would let the request pass."""
    if verdict.reason not in _TELLS or not verdict.hint:
        return verdict.message
    hint = verdict.hint if len(verdict.hint) <= _MAX_HINT else verdict.hint[:_MAX_HINT] + "..."
    return f"{verdict.message} To pass: {hint}."


_drawn = bytearray()  # random bytes of the kernel's that nobody had yet


def _random(size: int) -> bytes:
    """Random bytes, many at a time: each request is stamped with a refusal before it passes."""
    if len(_drawn) < size:
        _drawn.extend(os.urandom(4096))
    taken = bytes(_drawn[-size:])
    del _drawn[-size:]
    return taken


os.register_at_fork(after_in_child=_drawn.clear)  # no two processes may give the same


def new_id() -> str:
    """An id that names one refusal in the answer and in the ledger, of 64 random bits.

    Without digits, or vowels that would make words: opencode 1.18 looks for 429, 500, 502, "overloaded" and the like
    anywhere in the body of a refusal, and tries for a minute where it finds one.
    """
    return _random(8).hex().translate(_LETTERS)


class Form(StrEnum):
    """What the body is, by the type that it is sent as."""

    JSON = "application/json"
    TEXT = "text/plain; charset=utf-8"
    AWS = "application/xml"


# Who shows nothing but the status of what it can't read, by the User-Agent's beginning (measured). botocore reads this
# XML as an error of S3 and of query services, and of JSON services it shows whatever text came.
_FORMS = {b"git/": Form.TEXT, b"Boto3/": Form.AWS, b"Botocore/": Form.AWS, b"aws-cli/": Form.AWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A Deny with the id under which the ledger has it."""

    deny: Deny
    form: Form = Form.JSON
    request_id: str = field(default_factory=new_id)

    @property
    def failed(self) -> bool:
        """Whether the target is at fault, and not what was asked: 502 and 504. Its own 502 has no header of ours."""
        return self.deny.status >= 500

    @property
    def phrase(self) -> bytes:
        """The reason phrase of HTTP/1.1: all that wget, npm and pnpm show of an answer (measured)."""
        return b"%s: %s" % (phrase(self.deny.status), _printable(sentence(self.deny)).encode("ascii"))

    def told_to(self, agent: bytes) -> "Refusal":
        """The same in the form that a client with this User-Agent shows to its user."""
        form = next((form for start, form in _FORMS.items() if agent.startswith(start)), self.form)
        return replace(self, form=form)

    def body(self) -> bytes:
        """The document of the answer, in its form."""
        match self.form:
            case Form.TEXT:
                return f"credgate: {sentence(self.deny)}\n".encode()
            case Form.AWS:
                return self._xml().encode("ascii")
            case Form.JSON:
                return json.dumps({"error": self._error()}).encode()
            case _:
                assert_never(self.form)

    def _xml(self) -> str:
        code = "AccessDenied" if self.deny.status == 403 else self.deny.reason.value
        told = escape(_printable(f"credgate: {sentence(self.deny)}"))
        error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{told}</Message></Error>"
        return f"<ErrorResponse>{error}<RequestId>{self.request_id}</RequestId></ErrorResponse>"

    def _error(self) -> dict[str, str]:
        return {
            "type": "credgate_error" if self.failed else "credgate_denied",
            "code": self.deny.reason.value,
            "message": sentence(self.deny),
            "request_id": self.request_id,
        }

    def fields(self, *, h2: bool, close: bool) -> tuple[tuple[bytes, bytes], ...]:
        """Headers of the answer, lower case as HTTP/2 wants them."""
        fields = [
            (HEADER, b"error" if self.failed else b"deny"),
            (b"content-type", self.form.value.encode("ascii")),
            (b"content-length", str(len(self.body())).encode()),
            (b"cache-control", b"no-store"),
        ]
        if self.deny.status == 426:
            fields.append((b"upgrade", b"HTTP/1.1"))  # RFC 9110 15.5.22: a 426 names what would be taken
        if h2:
            return tuple(name_value for name_value in fields if name_value[0] != b"upgrade")
        # RFC 9110 7.8: whoever sends Upgrade lists it in Connection too
        options = [*(["upgrade"] if self.deny.status == 426 else []), *(["close"] if close else [])]
        if options:
            fields.append((b"connection", ", ".join(options).encode()))
        return tuple(fields)

    def wire(self) -> bytes:
        """The whole answer as HTTP/1.1, after which the connection is closed."""
        lines = [b"HTTP/1.1 %d %s" % (self.deny.status, self.phrase)]
        lines += [name + b": " + value for name, value in self.fields(h2=False, close=True)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body()


_unused: list[Refusal] = []  # stamps that were lifted: nobody has seen their ids
os.register_at_fork(after_in_child=_unused.clear)


def stamp() -> Refusal:
    """The denial that stands until something better is known: what is forgotten on the way ends in it."""
    return _unused.pop() if _unused else Refusal(deny=deny(Reason.INTERNAL))


def lift(stamped: Refusal) -> None:
    """Take a stamp back whose id was neither spoken nor recorded."""
    if stamped.deny is _BARE[Reason.INTERNAL] and len(_unused) < _MOST_UNUSED:
        _unused.append(stamped)


def _printable(text: str) -> str:
    """What may stand in a status line (RFC 9112 4) and in XML 1.0: some of it comes from the jail."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def phrase(status: int) -> bytes:
    """The reason phrase of a status we send."""
    return {
        200: b"OK",
        400: b"Bad Request",
        403: b"Forbidden",
        426: b"Upgrade Required",
        502: b"Bad Gateway",
        504: b"Gateway Timeout",
    }.get(status, b"Refused")
