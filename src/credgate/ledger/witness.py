"""Witnesses: somebody else who hears of each checkpoint, so that the ledger's owner can't write it anew unseen.

Each gets a note of origin, size and root, signed, and nothing else. A witness that fails is recorded and never holds up
anything: it has a thread of its own, which takes the newest checkpoint and drops those it came too late for.
"""

import base64
import fcntl
import http.client
import json
import logging
import os
import socket
import ssl
import stat
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, assert_never
from urllib.parse import urlsplit

from credgate.ledger.note import Note
from credgate.ledger.record import LedgerError
from credgate.ledger.scan import root_fields
from credgate.ledger.settings import FileWitness, OtlpWitness, SyslogWitness, WitnessSettings

log = logging.getLogger(__name__)

TIMEOUT = 5.0  # seconds for one delivery
_PRI = 13 * 8 + 5  # facility "log audit", severity "notice" (RFC 5424 section 6.2.1)
_FS_IOC_GETFLAGS = 0x80086601  # linux/fs.h, 64 bit
_FS_APPEND_FL = 0x20
_MAX_ANSWER = 64 * 1024


class WitnessError(Exception):
    """A witness that didn't take a checkpoint; the message says why."""


class Deliver(Protocol):
    """One way to a witness."""

    def __call__(self, note: Note) -> str:
        """Hand the note over; return what limits its worth, "" for nothing. Raises OSError, WitnessError."""


def name_of(witness: WitnessSettings) -> str:
    """A witness as ledger and `verify` name it."""
    match witness:
        case FileWitness(path=path):
            return f"file {path}"
        case SyslogWitness(transport=transport, address=(host, port)):
            return f"syslog {transport} {host}:{port}"
        case SyslogWitness(address=path):
            return f"syslog unix {path}"
        case OtlpWitness(url=url):
            return f"otlp {url}"
        case _:
            assert_never(witness)


def way_to(witness: WitnessSettings) -> Deliver:
    """How notes go to a witness."""
    match witness:
        case FileWitness():
            return lambda note: append_to(witness, note, os.geteuid())
        case SyslogWitness():
            return lambda note: _syslog(witness, note)
        case OtlpWitness():
            return lambda note: _otlp(witness, note)
        case _:
            assert_never(witness)


def append_to(witness: FileWitness, note: Note, uid: int) -> str:
    """Append the note to a file that is another user's than `uid`. Never makes it."""
    fd = os.open(witness.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise WitnessError("not a regular file")
        if facts.st_uid == uid:
            raise WitnessError(f"owner is uid {uid} itself, expected another one")
        data = note.data()
        if os.write(fd, data) != len(data):
            raise WitnessError("disk full")
        os.fdatasync(fd)
        return "" if _append_only(fd) else "not append-only: chattr +a is missing"
    finally:
        os.close(fd)


def _append_only(fd: int) -> bool:
    flags = bytearray(8)
    try:
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags)
    except OSError:  # a file system without such flags
        return False
    return bool(struct.unpack("=L", flags[:4])[0] & _FS_APPEND_FL)


def _said(note: Note) -> dict[str, str]:
    checkpoint = note.checkpoint
    key, signature = note.signatures[0]
    return {
        "origin": checkpoint.origin,
        "size": str(checkpoint.size),
        "root": base64.b64encode(checkpoint.root).decode(),
        "sig": base64.b64encode(key + signature).decode(),
    }


def syslog_message(note: Note, now: datetime) -> bytes:
    """One message of RFC 5424. Base64 has none of the three characters that a parameter must escape."""
    element = " ".join(f'{name}="{value}"' for name, value in _said(note).items())
    when = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    # no host name: the receiver knows whom it hears, and nothing else leaves the machine
    return f"<{_PRI}>1 {when} - credgate - checkpoint [checkpoint@32473 {element}]".encode()


def _syslog(witness: SyslogWitness, note: Note) -> str:
    message = syslog_message(note, datetime.fromtimestamp(time.time(), UTC))
    if isinstance(witness.address, tuple):
        family = socket.AF_INET6 if ":" in witness.address[0] else socket.AF_INET
        target: tuple[str, int] | str = witness.address
    else:
        family, target = socket.AF_UNIX, str(witness.address)
    kind = socket.SOCK_STREAM if witness.transport == "tcp" else socket.SOCK_DGRAM
    with socket.socket(family, kind) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect(target)
        # RFC 6587 section 3.4.1: octets are counted on a stream
        sock.sendall(b"%d %s" % (len(message), message) if witness.transport == "tcp" else message)
    return "" if witness.transport == "tcp" else "datagrams: nobody says that they arrive"


def _otlp(witness: OtlpWitness, note: Note) -> str:
    parts = urlsplit(witness.url)
    host, port = parts.hostname or "", parts.port
    body = json.dumps(otlp_body(note, time.time_ns())).encode()
    if parts.scheme == "https":
        context = ssl.create_default_context()
        link: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    else:
        link = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        link.request("POST", parts.path, body, {"content-type": "application/json"})
        answer = link.getresponse()
        said = answer.read(_MAX_ANSWER)
    except http.client.HTTPException as error:
        raise WitnessError(f"no HTTP answer: {type(error).__name__}") from error
    finally:
        link.close()
    if not 200 <= answer.status < 300:
        raise WitnessError(f"status {answer.status}")
    if _rejected(said):
        raise WitnessError("record rejected")
    return ""


def _rejected(said: bytes) -> bool:
    """Whether a 2xx says that the record was dropped all the same (OTLP: partial success)."""
    try:
        partial = json.loads(said or b"{}").get("partialSuccess", {})
        return int(partial.get("rejectedLogRecords", 0)) > 0
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False  # a body of its own; the status has said that it was taken


def otlp_body(note: Note, now: int) -> dict[str, object]:
    """ExportLogsServiceRequest with one record, as JSON."""
    attributes = {f"credgate.{name}": value for name, value in _said(note).items()}
    record = {
        "timeUnixNano": str(now),
        "severityNumber": 9,  # INFO
        "body": {"stringValue": "credgate checkpoint"},
        "attributes": [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()],
    }
    scope = {"scope": {"name": "credgate.ledger"}, "logRecords": [record]}
    service = {"key": "service.name", "value": {"stringValue": "credgate"}}
    return {"resourceLogs": [{"resource": {"attributes": [service]}, "scopeLogs": [scope]}]}


type Say = Callable[[str, str, str, Note], None]  # name, "witness_taking" or "witness_failed", detail, note


def said_in(append: Callable[..., int]) -> Say:
    """Records by Ledger.append that a witness takes checkpoints, or no longer does; never closes anything."""

    def say(name: str, state: str, detail: str, note: Note) -> None:
        try:
            append("checkpoint", witness=name, reason=state, detail=detail, **root_fields(note.checkpoint))
        except LedgerError as error:
            log.warning("ledger: %s: %s %s; not recorded: %s", name, state, detail, error.code)

    return say


class Teller:
    """The thread that tells one witness. `say` is called when what it does changes, not for each checkpoint."""

    def __init__(self, name: str, deliver: Deliver, say: Say) -> None:
        self._name, self._deliver, self._say = name, deliver, say
        self._state = ""
        self._next: Note | None = None
        self._stop = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="ledger-witness", daemon=True)
        self._thread.start()

    def tell(self, note: Note) -> None:
        """Let the witness hear of this checkpoint, instead of one it hasn't heard of yet."""
        with self._wake:
            self._next = note
            self._wake.notify()

    def stop(self) -> None:
        """Tell the last one and end. Blocks as long as two deliveries may take."""
        with self._wake:
            self._stop = True
            self._wake.notify()
        self._thread.join(2 * TIMEOUT)

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None or self._stop)
                note, self._next = self._next, None
            if note is None:
                return
            self._one(note)

    def _one(self, note: Note) -> None:
        try:
            limit = self._deliver(note)
            state, detail = "witness_taking", limit
        except (OSError, WitnessError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            state, detail = "witness_failed", why.lower()
        if state != self._state:
            self._state = state
            self._say(self._name, state, detail, note)
