"""Opaque TCP: one connection to an endpoint with `listen`, piped to a judged address of its host; no secret is near.

The rules know host and port and nothing else of it. The ledger has a line before the first byte goes, and one at the
end with the bytes each way.
"""

import asyncio
import logging
from ipaddress import ip_address

from credgate.gateway import standing
from credgate.gateway.dial import DialError, Streams
from credgate.gateway.exchange import ClientState, Target
from credgate.gateway.handler import reset
from credgate.gateway.hooks import Hooks
from credgate.gateway.linefields import Pipe
from credgate.gateway.refusal import deny
from credgate.ledger.record import LedgerError
from credgate.runs import Listener, Run
from rules.addresses import unmap
from rules.grants import Use
from rules.policy import Endpoint
from rules.reasons import Reason
from rules.verdict import Deny

logger = logging.getLogger(__name__)

_PIECE = 64 << 10  # bytes read at once


def tunnel_for(run: Run, port: int) -> Endpoint | None:
    """The opaque endpoint of the run's role that this port of the gateway leads to."""
    return next((endpoint for endpoint in run.policy.tunnels_of(run.role) if endpoint.listen == port), None)


def is_shared(run: Run, listener: Listener) -> bool:
    """Whether workers accept at a listener beside the daemon.

    What is piped as it is counts its bytes in one process alone. Those of bodies are counted where they pass, without
    waiting: a bound on them is kept by one process too.
    """
    if any(level.role_rule.budget.bytes_out is not None for level in run.levels()):
        return False
    return listener.proxy or tunnel_for(run, listener.port) is None


def _no_proxy(_at: str) -> None:
    raise RuntimeError("an opaque endpoint goes through no proxy")


class Piped:
    """One opaque connection and what it is piped to. `handle_client` runs it to its end; `_open` is the subclass's."""

    _leaves = True  # what goes outward, from the client to the other end, leaves the jail

    def __init__(self, streams: Streams, pipe: Pipe, *, state: ClientState, hooks: Hooks) -> None:
        self.state = state
        self._client, self._pipe = streams, pipe
        self._steps = hooks.steps
        self._records = hooks.judge.records
        self._writers = [streams[1]]
        self._moved = 0.0  # loop time of the last byte
        self._over = False
        self._watch: asyncio.TimerHandle

    async def handle_client(self) -> None:
        """Judge, dial, carry. Whatever goes wrong, both sides are closed and the ledger has how it ended."""
        try:
            refused = await self._open()
            if refused is not None:
                self._refuse(refused)
        except LedgerError as error:
            logger.error("gateway: tunnel: the ledger can't be written: %s", error.code)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a connection: it ends
            logger.error("gateway: tunnel failed: %s", type(error).__name__)
            self._end(Reason.INTERNAL, f"tunnel: {type(error).__name__}")
        finally:
            self._kill()

    def close(self, detail: str) -> None:
        """End it because its run ended, or what it was allowed was taken back."""
        self._end(None, detail)

    async def _open(self) -> Deny | None:
        """Everything up to the end; Deny: nothing was dialled."""
        raise NotImplementedError

    async def _carry(self, upstream: Streams) -> None:
        loop = asyncio.get_running_loop()
        self._moved = loop.time()
        self._watch = loop.call_later(self._steps.timeouts.idle, self._look)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(self._client[0], upstream[1], outward=True))
                tasks.create_task(self._copy(upstream[0], self._client[1], outward=False))
        finally:
            self._watch.cancel()
        self._end(None, "")

    def _look(self) -> None:
        """End it where nothing has moved for the idle time; else look again when that could be so."""
        loop = asyncio.get_running_loop()
        left = self._moved + self._steps.timeouts.idle - loop.time()
        if self._over:
            return
        if left <= 0:
            self._end(None, "nothing moved")
        else:
            self._watch = loop.call_later(left, self._look)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool) -> None:
        """One direction, until its end, which is passed on: the other direction may go on (RFC 9293 3.6)."""
        try:
            while data := await reader.read(_PIECE):
                if not self._may_pass(len(data), outward=outward):
                    return
                writer.write(data)
                await writer.drain()
            if not self._over:
                writer.write_eof()
        except OSError:
            self._end(None, "the client broke it off" if outward else "the target broke it off")

    def _may_pass(self, size: int, *, outward: bool) -> bool:
        self._moved = asyncio.get_running_loop().time()
        if self._over:
            return False
        if outward is not self._leaves:
            self._pipe.resp_bytes += size
            return True
        over = standing.sent(self.state.run, size)
        if over is not None:
            self._end(over.reason, over.hint)
            return False
        self._pipe.req_bytes += size
        return True

    def _refuse(self, refused: Deny) -> None:
        self.state.run.denied += 1
        self._records.connection(self.state, refused.reason, detail=refused.hint)

    def _end(self, reason: Reason | None, detail: str) -> None:
        """Close both sides at once, and say so in the ledger, if a line of it is open there."""
        if self._over:
            return
        self._kill(reset_them=bool(reason or detail))
        try:
            if self._pipe.seq:
                self._records.tunnel_end(self.state, self._pipe, reason=reason, detail=detail)
            elif reason is not None:
                self._records.connection(self.state, reason, detail=detail)
        except LedgerError as error:
            logger.error("gateway: a tunnel ended and the ledger can't be written: %s", error.code)

    def _kill(self, *, reset_them: bool = True) -> None:
        """Close both sides: by RST where that was not their own end."""
        if self._over:
            return
        self._over = True
        for writer in self._writers:
            if reset_them:
                reset(writer)
            else:
                writer.close()


class Tunnel(Piped):
    """Out of the jail: a client of the run, and the target of an opaque endpoint."""

    def __init__(self, streams: Streams, endpoint: Endpoint, *, state: ClientState, hooks: Hooks) -> None:
        pipe = Pipe(rule=endpoint.name, host=endpoint.host.text, port=endpoint.port, via="tcp")
        super().__init__(streams, pipe, state=state, hooks=hooks)
        self._endpoint = endpoint
        state.connect_host, state.connect_port = pipe.host.encode("ascii"), pipe.port

    async def _open(self) -> Deny | None:
        run = self.state.run
        closed = standing.may(run, Use())
        if closed is not None:
            return closed
        target = await self._steps.judge.dialler.target(self._endpoint, self._endpoint.host.text, run.lookups)
        if isinstance(target, Deny):
            return target
        closed = deny(Reason.REVOKED) if self._over else standing.closed(run)  # the look-up took its time
        if closed is None:
            closed = standing.charge(run, Use())  # as one request
        if closed is not None:
            return closed
        self._pipe.pin, self._pipe.note = str(target.addresses[0]), target.note
        self._records.tunnel(self.state, self._pipe)
        run.allowed += 1
        upstream = await self._dial(target)
        if upstream is not None:
            await self._carry(upstream)
        return None

    async def _dial(self, target: Target) -> Streams | None:
        try:
            streams = await self._steps.judge.dialler.connect(target, _no_proxy)
        except DialError as error:
            self._end(error.reason, error.detail)
            return None
        self._writers.append(streams[1])
        peer = unmap(ip_address(streams[1].get_extra_info("peername")[0]))
        if peer not in target.addresses:
            raise RuntimeError("the peer's address is not the pin")
        self._pipe.pin = str(peer)
        return None if self._over else streams
