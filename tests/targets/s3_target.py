"""An S3 by moto, with the access log that S3 itself would write: `s3_target.py --state DIR --certificate F --key F`.

moto keeps buckets and objects and answers as S3 does; it writes no log. The log is written here, from the request and
the answer, in the order of fields of docs.aws.amazon.com/AmazonS3/latest/userguide/LogFormat.html.
"""

import argparse
import base64
import datetime
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

OWNER = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"
_ERRORS = {"403": "AccessDenied", "404": "NoSuchKey"}
_KEY = re.compile(r"Credential=([^/,\s]+)/")


class AccessLog:
    """Writes a line a request, once its answer is through."""

    def __init__(self, app: WSGIApplication, path: Path, requesters: dict[str, str]) -> None:
        self._app, self._path, self._requesters = app, path, requesters
        self._lock = threading.Lock()
        path.touch()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        began, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
        ids = secrets.token_hex(8).upper(), base64.b64encode(secrets.token_bytes(56)).decode()
        said: list[str] = []

        def start(status: str, headers: list[tuple[str, str]], exc: object = None) -> Callable[[bytes], object]:
            said.append(status.split(maxsplit=1)[0])
            kept = [(name, value) for name, value in headers if name.lower() not in ("x-amz-request-id", "x-amz-id-2")]
            return start_response(status, [*kept, ("x-amz-request-id", ids[0]), ("x-amz-id-2", ids[1])])

        sent = 0
        body: Iterable[bytes] = self._app(environ, start)
        for piece in body:
            sent += len(piece)
            yield piece
        self._write(environ, at, ids, said[0], sent, int((time.monotonic() - began) * 1000))

    def _write(
        self, environ: WSGIEnvironment, at: datetime.datetime, ids: tuple[str, str], status: str, sent: int, ms: int
    ) -> None:
        bucket = environ["HTTP_HOST"].partition(".")[0]
        key, method, query = environ["PATH_INFO"].lstrip("/"), environ["REQUEST_METHOD"], environ.get("QUERY_STRING")
        found = _KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        requester = self._requesters.get(found[1], "-") if found else "-"
        uri = quote("/" + key) + (f"?{query}" if query else "")
        fields = (
            *(OWNER, bucket, at.strftime("[%d/%b/%Y:%H:%M:%S +0000]"), environ["REMOTE_ADDR"], requester, ids[0]),
            *(f"REST.{method}.{'OBJECT' if key else 'BUCKET'}", quote(key) or "-", f'"{method} {uri} HTTP/1.1"'),
            *(status, _ERRORS.get(status, "-"), str(sent or "-"), str(sent or "-"), str(ms), "1"),
            *('"-"', '"' + environ.get("HTTP_USER_AGENT", "-").replace('"', "%22") + '"', "-", ids[1], "SigV4"),
            *("ECDHE-RSA-AES128-GCM-SHA256", "AuthHeader", environ["HTTP_HOST"], "TLSv1.3", "-", "-"),
        )
        with self._lock, self._path.open("a") as file:
            file.write(" ".join(fields) + "\n")


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        """The access log is ours."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("state", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--requester", action="append", default=[], metavar="KEYID=ARN")
    parser.add_argument("--bucket", required=True)
    options = parser.parse_args()
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(options.bucket, "eu-west-1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    requesters = dict(item.split("=", 1) for item in options.requester)
    app = AccessLog(DomainDispatcherApplication(create_backend_app), options.state / "access.log", requesters)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet, ssl_context=context)
    (options.state / "port").write_text(str(server.port))
    server.serve_forever()


if __name__ == "__main__":
    main()
