"""What an auditor joins the ledger with the target's records by: ids of the answer, fingerprints of credentials."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from credgate.errors import CredgateError
from credgate.paths import private_dir, read_private, write_private
from rules.correlate import Correlate, Marks
from rules.credentials import fold_name
from rules.fingerprint import MIN_KEY, Fingerprint, fingerprint, form_of
from rules.policy import Endpoint
from rules.request import Outgoing, Request

_KEY_FILE = "fingerprint.key"
MAX_ID = 256  # bytes of one id
_MOST = 64  # fingerprints that are kept
_PRINTABLE = re.compile(rb"[\x20-\x7e]*")
_GITLAB_ID = re.compile(rb'"correlation_id"\s*:\s*"([0-9A-Za-z_-]+)"')

# By these the target's own records name a request; `date` is a sample of its clock.
ID_HEADERS = frozenset(
    {
        b"x-amzn-requestid",
        b"x-amz-request-id",
        b"x-amz-id-2",
        b"x-amz-cf-id",
        b"x-github-request-id",
        b"request-id",
        b"x-request-id",
        b"x-correlation-id",
        b"x-ms-request-id",
        b"x-ms-correlation-request-id",
        b"x-ms-client-request-id",
        b"x-guploader-uploadid",
        b"cf-ray",
        b"x-okta-request-id",
        b"x-slack-req-id",
        b"x-gitlab-meta",
        b"x-envoy-upstream-service-time",
        b"traceparent",
        b"date",
        b"server-timing",
    }
)

SPELT = {name: name.decode("ascii") for name in ID_HEADERS}

type Fields = tuple[tuple[bytes, bytes], ...]


def collect_ids(fields: Fields) -> dict[str, str]:
    """The target's ids in a response's headers, first of each name.

    The target chooses them: what is longer than MAX_ID or holds anything but printable ASCII is left out, for a part of
    an id is no id.
    """
    ids: dict[str, str] = {}
    for name, value in fields:
        known = SPELT.get(name.lower())
        if known is not None and known not in ids and (text := id_in(known, value.strip(b" \t"))):
            ids[known] = text.decode("ascii")
    return ids


def id_in(name: str, value: bytes) -> bytes:
    """The id that a header's value holds, b"" for none."""
    if name == "x-gitlab-meta":  # a JSON object around the id
        found = _GITLAB_ID.search(value)
        value = found[1] if found else b""
    return value if len(value) <= MAX_ID and _PRINTABLE.fullmatch(value) else b""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fingerprints:
    """Names credentials without their values, by a key of this install that no jail and no copy of the ledger has."""

    key: bytes
    _last: dict[tuple[Fingerprint, str], str] = field(default_factory=dict, compare=False)  # of values that are in use

    @classmethod
    def load(cls, directory: Path) -> "Fingerprints":
        """Read the key in a directory of the state's, or make it. Raises PlaceError, CredgateError if damaged."""
        path = private_dir(directory) / _KEY_FILE
        try:
            key = read_private(path, MIN_KEY)
        except FileNotFoundError:
            key = secrets.token_bytes(MIN_KEY)
            write_private(path, key)
        if len(key) != MIN_KEY:
            hint = "move it away: a new one is made, and fingerprints from then on are others"
            raise CredgateError("fingerprint_key", f"{path}: got {len(key)} bytes, expected {MIN_KEY}", hint)
        return cls(key=key)

    def of(self, endpoint: Endpoint, host: str, values: Iterable[str]) -> str:
        """The fingerprints of secrets' values as this endpoint's log has them, in their order."""
        form = form_of(endpoint.fingerprint, host)
        return ",".join([self._of(form, value) for value in values])

    def _of(self, form: Fingerprint, value: str) -> str:
        found = self._last.get((form, value))
        if found is None:
            if len(self._last) >= _MOST:
                self._last.clear()
            found = self._last[form, value] = fingerprint(form, value, self.key)
        return found


def marks_of(run: str, endpoint: Endpoint, request: Request, out: Outgoing) -> Marks:
    """What of ours this request gets; `out` is what will be sent, its secret in place."""
    keys: Mapping[str, bytes] = {}
    if Correlate.IDEMPOTENCY_KEY in endpoint.correlate:
        keys = {fold_name(name): value for name, value in request.headers}
    own = keys.get("idempotency-key", b"")
    return Marks.of(run, endpoint.correlate, request.method, out.target, out.fields, own)
