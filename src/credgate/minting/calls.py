"""HTTP calls of the gateway's own: judged addresses, verified TLS, one request a connection, a record of each."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING

from OpenSSL import SSL

from credgate.errors import CredgateError
from credgate.gateway.capture import Fingerprints, collect_ids
from credgate.gateway.decoded import Undecodable, decoded
from credgate.gateway.dial import DialError, Dialler, Streams
from credgate.gateway.exchange import Target
from credgate.gateway.framing import Counted, FramingError, UntilClose, response_body
from credgate.gateway.head import HeadError, ResponseHead, cut, parse_response_head
from credgate.gateway.upstream import UpstreamTls
from credgate.minting.forms import Answered, Asked, token_in
from credgate.runs import Run
from credgate.secretvalue import Secret
from rules.addresses import unmap
from rules.correlate import Correlate, tag_of
from rules.policy import Endpoint
from rules.reasons import Reason
from rules.verdict import Deny

if TYPE_CHECKING:
    from credgate.ledger.writer import Ledger

MAX_ANSWER = 256 << 10  # bytes
MAX_INTERIM = 8
_CHUNK = 64 << 10


class CallFailed(Exception):
    """No whole answer. `sent`: the target may have got the request and acted on it."""

    def __init__(self, reason: Reason, detail: str = "", *, sent: bool = False) -> None:
        super().__init__(f"{reason.value}{f': {detail}' if detail else ''}")
        self.reason = reason
        self.sent = sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """Whose call it is, for the ledger: the run that it was made for, the mint, the name of the secret it carries.

    `run` None: for all of them. `what`: "mint", "revoke", or "vault", and then `mint` is the vault's name.
    """

    run: Run | None
    mint: str
    secret: str
    what: str = "mint"


@dataclass(slots=True, kw_only=True)
class _Call:
    """What becomes of one call."""

    asked: Asked
    target: Target
    sent: bool = False
    pin: str = ""
    tunnels: tuple[str, ...] = ()
    agent: str = "credgate"
    started: float = field(default_factory=time.monotonic)

    def note(self, at: str) -> None:
        """A proxy is asked for a tunnel."""
        self.tunnels += (at,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Seconds: `timeout` is for one whole call. Not thread-safe."""

    ledger: "Ledger"
    dialler: Dialler
    upstream: UpstreamTls
    fingerprints: Fingerprints
    timeout: float = 30.0
    _lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))  # of calls that are no run's

    async def call(self, purpose: Purpose, endpoint: Endpoint, asked: Asked, proxy: Secret | None = None) -> Answered:
        """Make one call to an endpoint with one exact host; the intent is on the disk before a byte leaves.

        Raises CallFailed, and LedgerError.
        """
        slots = self._lookups if purpose.run is None else purpose.run.lookups
        target = await self.dialler.target(endpoint, endpoint.host.text, slots, proxy)
        if isinstance(target, Deny):
            raise CallFailed(target.reason)
        call = _Call(asked=asked, target=target)
        seq = self._intent(purpose, call)
        call.agent = _tag(purpose, endpoint, seq) or call.agent
        await self.ledger.durable(seq)
        try:
            answer = await self._within(call)
        except CallFailed as failed:
            self._outcome(purpose, call, seq, reason=str(failed))
            raise
        except asyncio.CancelledError:
            self._outcome(purpose, call, seq, reason="cancelled")
            raise
        self._outcome(purpose, call, seq, answer=answer)
        return answer

    def _intent(self, purpose: Purpose, call: _Call) -> int:
        endpoint = call.target.endpoint
        return self.ledger.append(
            "mint",
            lambda seq: {"ua_tag": _tag(purpose, endpoint, seq)},
            **_run_fields(purpose.run),
            verdict="allow",
            rule=f"{purpose.what}.{purpose.mint}",
            secret=purpose.secret,
            scheme="https",
            host=call.target.host,
            port=endpoint.port,
            method=call.asked.method,
            path=call.asked.path,
            pin=call.target.pin(str(call.target.addresses[0])),
            detail=call.target.note,
        )

    def _outcome(
        self, purpose: Purpose, call: _Call, seq: int, *, answer: Answered | None = None, reason: str = ""
    ) -> None:
        self.ledger.append(
            "mint",
            run="" if purpose.run is None else purpose.run.id,
            intent_seq=seq,
            reason=reason,
            pin=call.target.pin(call.pin),
            status=None if answer is None else answer.status,
            ids={} if answer is None else collect_ids(answer.fields),
            cred_fp="" if answer is None else self._fingerprint(call, answer),
            req_bytes=len(call.asked.body) if call.sent else 0,
            resp_bytes=0 if answer is None else len(answer.body),
            ms=int((time.monotonic() - call.started) * 1000),
            tunnels=call.tunnels,
        )

    def _fingerprint(self, call: _Call, answer: Answered) -> str:
        """Of the token that came: the target's log names what is done with it by the same."""
        token = token_in(answer)
        return self.fingerprints.of(call.target.endpoint, call.target.host, [token]) if token else ""

    async def _within(self, call: _Call) -> Answered:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._exchange(call)
        except TimeoutError:
            raise CallFailed(Reason.UPSTREAM_TIMEOUT, sent=call.sent) from None

    async def _exchange(self, call: _Call) -> Answered:
        try:
            streams = await self.dialler.connect(call.target, call.note)
        except DialError as error:
            raise CallFailed(error.reason, error.detail) from error
        try:
            call.pin = self._peer(call.target, streams)
            with _tls_failures(call):
                tls = _Tls(self._secured(call.target), streams)
                await tls.handshake()
                call.sent = True  # from the first byte on nobody knows what arrived
                await tls.send(_head(call) + call.asked.body)
                return await _read(tls, call.asked.method)
        finally:
            streams[1].transport.abort()

    def _secured(self, target: Target) -> SSL.Connection:
        try:
            return self.upstream.connection(target.endpoint, target.host, b"http/1.1")
        except CredgateError as error:
            raise CallFailed(Reason.UPSTREAM_TLS, error.detail) from error

    @staticmethod
    def _peer(target: Target, streams: Streams) -> str:
        """The address that was connected to, which is one that was judged."""
        peer = unmap(ip_address(streams[1].get_extra_info("peername")[0]))
        if peer not in target.addresses:
            raise RuntimeError("the peer's address is not the pin")
        return str(peer)


def _run_fields(run: Run | None) -> dict[str, object]:
    return {} if run is None else {"run": run.id, "role": run.role, "policy_sha256": run.policy.sha256}


@contextmanager
def _tls_failures(call: _Call) -> Iterator[None]:
    try:
        yield
    except SSL.Error as error:
        raise CallFailed(Reason.UPSTREAM_TLS, sent=call.sent) from error
    except (HeadError, FramingError) as error:
        raise CallFailed(Reason.UPSTREAM_INVALID, str(error), sent=call.sent) from error
    except OSError as error:
        raise CallFailed(Reason.UPSTREAM_RESET, sent=call.sent) from error


class _Tls:
    """pyOpenSSL on asyncio's streams: the same contexts as for requests of the jail, with pins and host names."""

    def __init__(self, connection: SSL.Connection, streams: Streams) -> None:
        self._connection = connection
        self._reader, self._writer = streams

    async def handshake(self) -> None:
        while True:
            try:
                self._connection.do_handshake()
            except SSL.WantReadError:
                await self._flush()
                await self._feed()
            else:
                await self._flush()
                return

    async def send(self, data: bytes) -> None:
        self._connection.sendall(data)
        await self._flush()

    async def receive(self) -> bytes:
        """Bytes, b"" at the end that TLS itself says. Raises ConnectionResetError where the socket ended first."""
        while True:
            try:
                return self._connection.recv(_CHUNK)
            except SSL.WantReadError:
                await self._flush()
                await self._feed()
            except SSL.ZeroReturnError:
                return b""

    async def _feed(self) -> None:
        data = await self._reader.read(_CHUNK)
        if not data:
            raise ConnectionResetError("the target closed the connection")
        self._connection.bio_write(data)

    async def _flush(self) -> None:
        while True:
            try:
                self._writer.write(self._connection.bio_read(_CHUNK))
            except SSL.WantReadError:
                break
        await self._writer.drain()


def _tag(purpose: Purpose, endpoint: Endpoint, seq: int) -> str:
    """By which the target's log names this call, as it does a request of the jail's; "" where the policy wants none,
    and where it is no run's.
    """
    if purpose.run is None or Correlate.USER_AGENT not in endpoint.correlate:
        return ""
    return f"credgate/{tag_of(purpose.run.id, seq)}"


def _head(call: _Call) -> bytes:
    endpoint, asked = call.target.endpoint, call.asked
    host = call.target.host if endpoint.port == 443 else f"{call.target.host}:{endpoint.port}"
    lines = [f"{asked.method} {asked.path} HTTP/1.1".encode("ascii"), b"host: " + host.encode("ascii")]
    lines += [name + b": " + value for name, value in asked.fields]
    lines += [b"user-agent: " + call.agent.encode("ascii"), b"accept-encoding: identity", b"connection: close"]
    lines += [b"content-length: %d" % len(asked.body)] if asked.method == "POST" else []
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _read(tls: _Tls, method: str) -> Answered:
    """One final answer, whole and bounded. Raises HeadError, FramingError, OSError."""
    buffer = b""
    for _ in range(MAX_INTERIM):
        head, buffer = await _read_head(tls, buffer)
        if head.status >= 200:
            break
    else:
        raise HeadError("interim answers without end")
    body = response_body(method.encode("ascii"), head.status, head.fields, head.version)
    pieces, size = [], 0
    while True:
        more, _ = body.feed(buffer)
        pieces += more
        size += sum(map(len, more))
        if body.fault is not None:
            raise body.fault
        if size > MAX_ANSWER or (isinstance(body, Counted) and size + body.left > MAX_ANSWER):
            raise FramingError(f"an answer over {MAX_ANSWER} bytes")
        if body.done:
            return _whole(head, pieces)
        buffer = await tls.receive()
        if not buffer and isinstance(body, UntilClose):  # TLS said the end itself, so nobody cut it short
            return _whole(head, pieces)
        if not buffer:
            raise ConnectionResetError("the answer ended early")


def _whole(head: ResponseHead, pieces: list[bytes]) -> Answered:
    """Some servers compress what they were asked to leave as it is."""
    try:
        body = decoded(head.fields, b"".join(pieces), MAX_ANSWER)
    except Undecodable as error:
        raise FramingError(str(error)) from error
    return Answered(status=head.status, fields=head.fields, body=body)


async def _read_head(tls: _Tls, buffer: bytes) -> tuple[ResponseHead, bytes]:
    seen = 0
    while (raw := cut(buffer, seen)) is None:
        seen = len(buffer)
        data = await tls.receive()
        if not data:
            raise ConnectionResetError("no answer")
        buffer += data
    return parse_response_head(raw), buffer[len(raw) + 4 :]
