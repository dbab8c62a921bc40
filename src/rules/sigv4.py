"""AWS Signature Version 4 in the Authorization header, made anew over a request as it leaves. Pure: the time is given.

The client signed with decoys; scope and payload kind are read from what it sent, the signature itself is worth nothing.
Sources: AWS IAM User Guide, "Create a signed AWS API request"; Amazon S3 API Reference, "Authenticating Requests".
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

from rules import aws_operations
from rules.credentials import fold_name
from rules.policy import Binding, Signing
from rules.problems import InjectError
from rules.request import Request

__all__ = [
    "EMPTY_HASH",
    "Keys",
    "Scope",
    "authorization",
    "needed",
    "parse_keys",
    "payload",
    "scope",
    "sign",
    "why_not",
]

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_HASH = hashlib.sha256(b"").hexdigest()
# Neither says anything about the bytes of the body, so it passes as it is, its own trailers included.
_UNHASHED = frozenset({"UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"})
_HASH = re.compile(r"[0-9a-f]{64}")
_AMZ_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SCOPE = re.compile(rb"Credential=[^/,\s]+/[0-9]{8}/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request(?:,|\s|$)")
_SIGNED_HEADERS = re.compile(rb"SignedHeaders=([!#$%&'*+.^_`|~0-9A-Za-z;-]+)")
_KEY_ID = re.compile(r"[A-Za-z0-9]{16,128}")
_KEY = re.compile(r"[A-Za-z0-9/+=]{16,256}")
_TOKEN = re.compile(r"[A-Za-z0-9/+=_.-]{1,16384}")
# What a hop of ours writes anew, or a part behind this one may change.
_NEVER_SIGNED = frozenset(
    {
        *("accept-encoding", "authorization", "connection", "content-length", "expect", "te", "trailer"),
        *("transfer-encoding", "user-agent", "x-amzn-trace-id"),
    }
)
_ALWAYS_SIGNED = frozenset({"content-md5", "content-type", "host"})
_OURS = frozenset({"date", "x-amz-date", "x-amz-security-token"})
_KEYS_HINT = 'expected "ACCESS_KEY_ID:SECRET_ACCESS_KEY", ":SESSION_TOKEN" behind it, or the JSON of credential_process'

_VERSION_2 = "signature version 4 in the client's settings; this is version 2"

type Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A key pair, with the token of a session where it is one of a role. Only the id may be shown."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a signature counts for, on one day."""

    region: str
    service: str


def parse_keys(name: str, text: str) -> Keys:
    """Read a secret's value. Raises InjectError, which names the secret and holds no part of the value."""
    parts = _from_json(text) if text.lstrip().startswith("{") else tuple(text.split(":"))
    if len(parts) == 2:
        parts = (*parts, "")
    fits = len(parts) == 3 and _KEY_ID.fullmatch(parts[0]) and _KEY.fullmatch(parts[1])
    if fits and (not parts[2] or _TOKEN.fullmatch(parts[2])):
        return Keys(access_key_id=parts[0], secret_access_key=parts[1], session_token=parts[2])
    raise InjectError(f"secret {name!r} is no AWS key pair", _KEYS_HINT)


def _from_json(text: str) -> tuple[str, ...]:
    """The members that `credential_process` and `aws configure export-credentials` print."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(document, dict):
        return ()
    values = tuple(document.get(key, "") for key in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
    return values if all(isinstance(value, str) for value in values) else ()


def why_not(request: Request, bindings: Iterable[Binding], injected: Iterable[Binding]) -> str:
    """What would have to be there for a request to be signed anew by its binding; "" where nothing is missing.

    `injected` are those of `bindings` whose secret it gets.
    """
    if all(b.sign is None for b in bindings):
        return ""
    found = _other_scheme(request) or _other_payload(request)
    signing = [b.sign for b in injected if b.sign is not None]
    if found or not signing:
        return found
    if _values(request.headers, "x-amz-copy-source") and not signing[0].copy:
        return "copy = true in the binding's sign, as x-amz-copy-source reads an object that no rule has judged"
    said = scope(request, signing[0])
    return said if isinstance(said, str) else aws_operations.missing(request, signing[0])


def _other_scheme(request: Request) -> str:
    names = {name.lower() for name in request.query_names}
    if "awsaccesskeyid" in names:
        return _VERSION_2
    if names & {"x-amz-signature", "x-amz-credential", "x-amz-algorithm"}:
        return "the Authorization header; a presigned URL is not signed anew"
    values = _values(request.headers, "authorization")
    if any(value.startswith((b"AWS ", b"AWS3")) for value in values):
        return _VERSION_2
    if _values(request.headers, "x-amz-region-set") or any(value.startswith(b"AWS4-ECDSA") for value in values):
        return "a signature for one region; this is version 4A, which is asymmetric"
    if _values(request.headers, "x-amz-s3session-token"):
        return "S3 Express sessions switched off in the client; theirs are not signed anew"
    return ""


def _other_payload(request: Request) -> str:
    values = [value.decode("latin-1") for value in _values(request.headers, "x-amz-content-sha256")]
    if not values:
        return ""
    if values[0].startswith("STREAMING-AWS4-"):
        return "STREAMING-UNSIGNED-PAYLOAD-TRAILER, as botocore sends over TLS; these chunks are signed one by one"
    if len(values) > 1 or not (values[0] in _UNHASHED or _HASH.fullmatch(values[0])):
        return "a SHA-256 in hex or UNSIGNED-PAYLOAD in x-amz-content-sha256"
    return ""


def scope(request: Request, signing: Signing) -> Scope | str:
    """The scope to sign for, or why there is none. What the client signed for has to be what the policy says.

    A part that the policy leaves out is the client's, and a label of the endpoint's host.
    """
    found = [match for value in _values(request.headers, "authorization") if (match := _SCOPE.search(value))]
    region, service = (
        (part.decode("ascii") for part in found[0].groups()) if found else (signing.region, signing.service)
    )
    if not (region and service):
        return "region and service in the binding's sign, as the client names none"
    for key, said, wanted in (("region", region, signing.region), ("service", service, signing.service)):
        if wanted and said != wanted:
            return f"the {key} {wanted} of the binding; the client signs for {said}"
        if not wanted and said not in request.host.split("."):
            return f"{key} in the binding's sign; the client's {said} is no label of {request.host}"
    return Scope(region=region, service=service)


def payload(request: Request) -> str:
    """What the client says of the body's hash, "" where the body has to be read for it."""
    values = _values(request.headers, "x-amz-content-sha256")
    if values:
        return values[0].decode("latin-1")
    return "" if request.has_body else EMPTY_HASH


def needed(request: Request, bindings: Iterable[Binding]) -> int:
    """Bytes of a body that has to be read before it can be signed, as Allow.body_max; 0 for none."""
    if request.body is not None:
        return 0
    signing = [b.sign for b in bindings if b.sign is not None]
    hashed = bool(payload(request))
    return max((s.max for s in signing if not hashed or aws_operations.in_body(request, s)), default=0)


def sign(request: Request, fields: Fields, where: Scope, keys: Keys, body_hash: str, amz_date: str) -> Fields:
    """`fields` as they leave, signed: `body_hash` in hex, or the word of an unsigned payload."""
    kept = tuple(f for f in fields if fold_name(f[0]) not in _OURS | {"authorization"})
    added = [(b"x-amz-date", amz_date.encode("ascii"))]
    if keys.session_token:
        added.append((b"x-amz-security-token", keys.session_token.encode("ascii")))
    if where.service == "s3" and not _values(kept, "x-amz-content-sha256"):
        added.append((b"x-amz-content-sha256", body_hash.encode("ascii")))
    sent = (*kept, *added)
    names = _signed_names(request, sent)
    hashed = tuple((n, v) for n, v in _with_host(request, sent) if n.lower().decode("latin-1") in names)
    value = authorization(request.method, request.target, hashed, where, keys, body_hash, amz_date)
    return (*sent, (b"authorization", value))


def _signed_names(request: Request, sent: Fields) -> frozenset[str]:
    """Those that AWS asks for, and those that the client thought worth it, so far as they leave as they are here."""
    names = {name.lower().decode("latin-1") for name, _ in sent}
    found = [match for value in _values(request.headers, "authorization") if (match := _SIGNED_HEADERS.search(value))]
    wanted = set(found[0][1].decode("ascii").lower().split(";")) if found else set()
    chosen = {name for name in names if name in _ALWAYS_SIGNED or name in wanted or name.startswith("x-amz-")}
    return frozenset((chosen | {"host"}) - _NEVER_SIGNED)


def _with_host(request: Request, sent: Fields) -> Fields:
    """In HTTP/2 the host stands in :authority, and is signed as if it were a header."""
    if _values(sent, "host"):
        return sent
    port = "" if request.port == 443 else f":{request.port}"
    return (*sent, (b"host", f"{request.host}{port}".encode("ascii")))


def authorization(
    method: str, target: str, fields: Fields, where: Scope, keys: Keys, body_hash: str, amz_date: str
) -> bytes:
    """The value of Authorization over exactly these header fields. Raises ValueError for a time in another form."""
    if not _AMZ_DATE.fullmatch(amz_date):
        raise ValueError("amz_date must be like 20150830T123600Z")
    headers = _canonical_headers(fields)
    path, _, query = target.partition("?")
    lines = (method, _path(path, where.service), _query(query), *(f"{n}:{v}" for n, v in headers.items()), "")
    names = ";".join(headers)
    request_hash = hashlib.sha256("\n".join((*lines, names, body_hash)).encode("latin-1")).hexdigest()
    day = amz_date[:8]
    parts = f"{day}/{where.region}/{where.service}/aws4_request"
    text = "\n".join((ALGORITHM, amz_date, parts, request_hash))
    key = f"AWS4{keys.secret_access_key}".encode("ascii")
    for part in (day, where.region, where.service, "aws4_request"):
        key = hmac.digest(key, part.encode("ascii"), "sha256")
    signature = hmac.digest(key, text.encode("ascii"), "sha256").hex()
    said = f"Credential={keys.access_key_id}/{parts}, SignedHeaders={names}, Signature={signature}"
    return f"{ALGORITHM} {said}".encode("ascii")


def _canonical_headers(fields: Fields) -> Mapping[str, str]:
    """Names in order, values of one name joined, runs of spaces as one."""
    merged: dict[str, list[str]] = {}
    for name, value in fields:
        merged.setdefault(name.lower().decode("latin-1"), []).append(" ".join(value.decode("latin-1").split()))
    return {name: ",".join(merged[name]) for name in sorted(merged)}


def _path(path: str, service: str) -> str:
    """S3 encodes a key once, every other service encodes the path of the wire once more."""
    raw = unquote_to_bytes(path) if service == "s3" else path.encode("ascii")
    return quote(raw, safe="/~") or "/"


def _query(query: str) -> str:
    pairs = (part.partition("=") for part in query.split("&") if part)
    return "&".join(f"{name}={value}" for name, value in sorted((_encoded(n), _encoded(v)) for n, _, v in pairs))


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ")), safe="~")


def _values(fields: Iterable[tuple[bytes, bytes]], name: str) -> list[bytes]:
    return [value.strip() for key, value in fields if fold_name(key) == name]
