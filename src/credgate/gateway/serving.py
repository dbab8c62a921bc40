"""mitmproxy's engine on listeners that berths made: what every process of the gateway does for its runs."""

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.options import Options
from msgspec.structs import replace

from credgate.errors import CredgateError
from credgate.gateway import layers
from credgate.gateway.accepting import Share
from credgate.gateway.crowd import Crowd
from credgate.gateway.expiry import Expiry
from credgate.gateway.hooks import HOOKS, Hooks
from credgate.gateway.mode import CredgateInstance
from credgate.ledger.record import LedgerError
from credgate.runs import Listener, Run, now
from rules.policy import Address

if TYPE_CHECKING:
    from credgate.gateway.publish import Published

logger = logging.getLogger(__name__)

# Options that mitmproxy's addons would bring along: we use none of them, importing one imports them all (ldap3, ...).
_OWN_OPTIONS: tuple[tuple[str, object, object], ...] = (
    ("connection_strategy", str, "lazy"),  # eager dials before anybody judged
    ("validate_inbound_headers", bool, True),
    ("store_streamed_bodies", bool, False),
    ("stream_large_bodies", str | None, None),
    ("body_size_limit", str | None, None),
    ("keep_host_header", bool, False),
    ("proxy_debug", bool, False),
    ("normalize_outbound_headers", bool, True),
)
# What mitmproxy would otherwise do: pass raw TCP, speak QUIC and WebSocket, copy the target's certificate.
_OPTIONS = {"rawtcp": False, "http3": False, "websocket": False, "upstream_cert": False}
# Their texts quote URLs, headers and certificates; what we need to know of them comes by hooks.
_QUIET_LOGGERS = ("mitmproxy", "hpack", "h2", "asyncio")

_WARM_AFTER = 0.2  # seconds


class GatewayError(CredgateError):
    """The gateway can't listen, or isn't whole."""


class Serving:
    """Accepts for runs, which come and go. Not thread-safe: everything runs on the loop that called start."""

    _hooks: Hooks
    share: Share | None = None  # where other processes accept on the same sockets

    def __init__(self) -> None:
        """Whoever builds on this sets `_hooks`."""
        self._options: Options | None = None
        self._instances: dict[str, list[CredgateInstance | Published]] = {}
        self._listening: frozenset[Address] = frozenset()  # the gateway's own addresses
        self._warming: set[asyncio.Task[None]] = set()
        self._crowd = Crowd.below_the_limit()
        self._expiry = Expiry(self._end)

    async def start(self) -> None:
        """Set mitmproxy up. Raises GatewayError where a hook or an option is missing: nothing is served then."""
        missing = [name for name in HOOKS if not asyncio.iscoroutinefunction(getattr(self._hooks, name, None))]
        if missing:
            raise GatewayError("gateway_incomplete", f"gateway has no hook {', '.join(missing)}", "install it anew")
        for name in _QUIET_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        options = Options()
        for name, kind, value in _OWN_OPTIONS:
            options.add_option(name, kind, value, "")
        try:
            options.update(**_OPTIONS, tcp_timeout=int(self._hooks.timeouts.idle))  # type: ignore[no-untyped-call]
        except (KeyError, ValueError, TypeError) as error:
            raise GatewayError("gateway_incomplete", "mitmproxy lacks an option that the gateway needs") from error
        layers.install()
        ctx.options = options  # ServerInstance.start reads the global
        self._options = options

    async def serve(self, run: Run, listeners: Sequence[Listener]) -> None:
        """Accept for `run`. Raises GatewayError where one listener can't be served; then none of them is."""
        if self._options is None:
            raise GatewayError("gateway_stopped", "the gateway is not started")
        if run.id in self._instances:
            raise GatewayError("run_served", f"run {run.id} is served already")
        self._instances[run.id] = made = []
        self._hooks.judge.decoys.add(run)
        try:
            for listener in listeners:
                instance = CredgateInstance(run, listener, hooks=self._hooks, options=self._options, crowd=self._crowd)
                instance.share = self.share
                made.append(instance)
                self._know_addresses()
                await instance.start()
        except OSError as error:
            await self.close(run.id)
            raise GatewayError("listen_failed", f"run {run.id}: can't listen: {error}") from error
        self._expiry.arm(run)
        warming = asyncio.get_running_loop().create_task(self._warm(run))
        self._warming.add(warming)
        warming.add_done_callback(self._warming.discard)

    def begins(self, run: Run) -> None:
        """A run that waited gets its command: what of its rights is bounded by time is so from now on."""
        run.spent = replace(run.spent, started=now())
        self._expiry.arm(run)

    async def _warm(self, run: Run) -> None:
        """Make what first requests to targets would wait for, a moment behind the launch, which wants the CPU too."""
        await asyncio.sleep(_WARM_AFTER)
        if run.id in self._instances:
            await self._hooks.upstream.targets.warm(run.policy.endpoints.values())

    def cut(self, run_id: str, detail: str, binding: str = "") -> int:
        """End the client and upstream connections of a run at once, or those that `binding` was used on.

        Returns how many client connections they were. `detail` goes into their outcomes. The run is still served, and
        what ends it by time is computed anew.
        """
        for instance in self._instances.get(run_id, [])[:1]:
            self._expiry.arm(instance.run)
        return self._end(run_id, detail, binding)

    def _end(self, run_id: str, detail: str, binding: str) -> int:
        instances = self._instances.get(run_id, [])
        for instance in instances[:1]:
            self._hooks.pool.close(instance.run)
        return sum(instance.cut(detail, binding) for instance in instances)

    async def close(self, run_id: str) -> None:
        """Close the listeners of a run and all its client and upstream connections. Unknown runs are no error."""
        self._expiry.disarm(run_id)
        self._hooks.judge.forget(run_id)
        for instance in self._instances.pop(run_id, []):
            await instance.shut()
            self._hooks.pool.close(instance.run)
        self._know_addresses()
        await self._closed(run_id)
        try:
            self._hooks.judge.records.settle(run_id)
        except LedgerError as error:  # the run ends all the same
            logger.error("gateway: run %s: counted refusals are not recorded: %s", run_id, error.code)

    async def _closed(self, run_id: str) -> None:
        """What more a run's end asks for, its listeners closed."""

    async def stop(self) -> None:
        """Close every run."""
        for run_id in tuple(self._instances):
            await self.close(run_id)
        for warming in tuple(self._warming):
            warming.cancel()
        self._options = None

    def _gateway_addresses(self) -> frozenset[Address]:
        return self._listening

    def _know_addresses(self) -> None:
        runs = (instances[0].run for instances in self._instances.values() if instances)
        self._listening = frozenset(ip_address(run.gateway_ip) for run in runs)
