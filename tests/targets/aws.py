"""A stand-in for S3 and DynamoDB that takes a request only with a good signature, made by the key that it knows.

The signature is computed by botocore over what arrived: its canonical forms, not ours.
"""

import base64
import hashlib
import json
import re
import ssl
import time
import zlib
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.targets.overtls import Handler, Served

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)
SKEW = 15 * 60  # seconds that AWS lets a clock be wrong
XML = '<?xml version="1.0" encoding="UTF-8"?>'


class Refused(Exception):
    """The text is the code of AWS's error."""


@dataclass
class Arrived:
    """One request: `signed` is the access key id of a good signature."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    payload: bytes = b""  # the body without aws-chunked
    trailers: dict[str, str] = field(default_factory=dict)
    signed: str = ""
    error: str = ""


def check(arrived: Arrived, credentials: Credentials, now: float) -> str:
    """The access key id that signed it. Raises Refused."""
    headers = arrived.headers
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise Refused("AccessDenied")
    key, day, region, service, names, signature = found.groups()
    if key != credentials.access_key:
        raise Refused("InvalidAccessKeyId")
    if headers.get("x-amz-security-token") != credentials.token:
        raise Refused("InvalidToken")
    stamp = headers["x-amz-date"]
    if stamp[:8] != day or abs(time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - time.timezone - now) > SKEW:
        raise Refused("RequestTimeTooSkewed")
    must = {"host", *(name for name in headers if name.startswith("x-amz-"))}
    if not must <= set(names.split(";")):
        raise Refused("AccessDenied: unsigned headers")
    if not _signature(arrived, credentials, (region, service, names)) == signature:
        raise Refused("SignatureDoesNotMatch")
    said = headers.get("x-amz-content-sha256", hashlib.sha256(arrived.body).hexdigest())
    if len(said) == 64 and said != hashlib.sha256(arrived.body).hexdigest():
        raise Refused("XAmzContentSHA256Mismatch")
    return key


def _signature(arrived: Arrived, credentials: Credentials, scope: tuple[str, str, str]) -> str:
    region, service, names = scope
    headers = {name: arrived.headers.get(name, "") for name in names.split(";")}
    request = AWSRequest(
        method=arrived.method,
        url=f"https://{arrived.headers['host']}{arrived.path}",
        headers=headers,
        data=arrived.body,
    )
    request.context["timestamp"] = arrived.headers["x-amz-date"]
    signer = (S3SigV4Auth if service == "s3" else SigV4Auth)(credentials, service, region)
    # exactly the headers that the client says it signed, and the body's hash as it says it
    signer.headers_to_sign = lambda r: r.headers
    if "x-amz-content-sha256" in arrived.headers:
        signer.payload = lambda r: arrived.headers["x-amz-content-sha256"]
    canonical = signer.canonical_request(request)
    return str(signer.signature(signer.string_to_sign(request, canonical), request))


def unchunk(body: bytes) -> tuple[bytes, dict[str, str]]:
    """aws-chunked without signatures: the data, and the trailers behind them."""
    data, trailers = b"", {}
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            break
        data, body = data + body[:size], body[size + 2 :]
    for line in body.split(b"\r\n"):
        if line:
            name, _, value = line.decode().partition(":")
            trailers[name] = value
    return data, trailers


class Aws:
    """Serves on loopback over TLS until `stop`. `seen` is what arrived, in order."""

    def __init__(self, tls: ssl.SSLContext, credentials: Credentials) -> None:
        self.credentials = credentials
        self.seen: list[Arrived] = []
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        served = Served(tls, _handler(self))
        self.port, self.stop = served.port, served.stop

    def answer(self, arrived: Arrived) -> tuple[int, dict[str, str], bytes]:
        """Judge the signature, then do as S3 or DynamoDB would."""
        try:
            arrived.signed = check(arrived, self.credentials, time.time())
            if "x-amz-target" in arrived.headers:
                return self._dynamodb(arrived)
            arrived.payload = arrived.body
            if arrived.headers.get("x-amz-content-sha256") == "STREAMING-UNSIGNED-PAYLOAD-TRAILER":
                arrived.payload, arrived.trailers = unchunk(arrived.body)
                if int(arrived.headers["x-amz-decoded-content-length"]) != len(arrived.payload):
                    raise Refused("IncompleteBody")
                crc = base64.b64encode(zlib.crc32(arrived.payload).to_bytes(4, "big")).decode()
                if arrived.trailers.get("x-amz-checksum-crc32") != crc:
                    raise Refused("BadDigest")
            return self._s3(arrived)
        except Refused as error:
            arrived.error = str(error)
            return 403, {}, f"{XML}<Error><Code>{error}</Code><Message>no</Message></Error>".encode()

    def _dynamodb(self, arrived: Arrived) -> tuple[int, dict[str, str], bytes]:
        said = {"TableNames": ["orders"], "got": json.loads(arrived.body)}
        return 200, {"content-type": "application/x-amz-json-1.0"}, json.dumps(said).encode()

    def _s3(self, arrived: Arrived) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(arrived.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path)
        match arrived.method:
            case "PUT" if "uploadId" in query:
                self.parts[query["uploadId"][0]][int(query["partNumber"][0])] = arrived.payload
                return 200, {"etag": f'"{hashlib.md5(arrived.payload).hexdigest()}"'}, b""
            case "PUT":
                self.objects[key] = arrived.payload
                return 200, {"etag": f'"{hashlib.md5(arrived.payload).hexdigest()}"'}, b""
            case "POST" if "uploads" in query:
                name = f"up{len(self.parts)}"
                self.parts[name] = {}
                inner = f"<Bucket>b</Bucket><Key>k</Key><UploadId>{name}</UploadId>"
                return 200, {}, _xml("InitiateMultipartUploadResult", inner)
            case "POST":
                held = self.parts.pop(query["uploadId"][0])
                self.objects[key] = b"".join(held[number] for number in sorted(held))
                return 200, {}, _xml("CompleteMultipartUploadResult", "<ETag>x</ETag>")
            case "GET" if "list-type" in query:
                rows = "".join(
                    f"<Contents><Key>{escape(k)}</Key><Size>{len(v)}</Size></Contents>" for k, v in self.objects.items()
                )
                return 200, {}, _xml("ListBucketResult", f"<KeyCount>{len(self.objects)}</KeyCount>{rows}")
            case "GET" if key in self.objects:
                return 200, {}, self.objects[key]
            case _:
                return 404, {}, _xml("Error", "<Code>NoSuchKey</Code>")


def _xml(name: str, inner: str) -> bytes:
    return f'{XML}<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'.encode()


def _handler(aws: Aws) -> type[Handler]:
    class OfAws(Handler):
        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                data = b""
                while size := int(self.rfile.readline(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data
            return self.rfile.read(int(self.headers.get("content-length", "0")))

        def _serve(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            arrived = Arrived(method=self.command, path=self.path, headers=headers, body=self._body())
            aws.seen.append(arrived)
            status, fields, body = aws.answer(arrived)
            self.send_response(status)
            for name, value in {"x-amz-request-id": f"R{len(aws.seen)}", **fields}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    return OfAws
