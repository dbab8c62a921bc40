"""The gateway: listeners that berths made, judged by the rules, recorded in the ledger."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from credgate.ca import Authority
from credgate.gateway.capture import Fingerprints
from credgate.gateway.dial import Dialler, OwnAddresses
from credgate.gateway.hooks import Hooks
from credgate.gateway.judge import Judge
from credgate.gateway.pins import Pins, Resolve
from credgate.gateway.publish import MakeSocket, Published, bound
from credgate.gateway.records import Records
from credgate.gateway.serving import GatewayError, Serving
from credgate.gateway.steps import Timeouts
from credgate.gateway.upstream import UpstreamTls
from credgate.ledger import keys
from credgate.minting.calls import Calls
from credgate.minting.minter import Minter
from credgate.runs import Listener, Run
from credgate.vaultserver import VaultServers
from credgate.workers.knowing import SharedValues

if TYPE_CHECKING:
    from credgate.ledger.writer import Ledger
    from credgate.vault import Vault
    from credgate.workers.pool import Workers

__all__ = ["Gateway", "GatewayError"]


class Gateway(Serving):
    """One for the whole daemon, in its process. Not thread-safe: everything runs on the loop that called start."""

    def __init__(
        self,
        *,
        authority: Authority,
        ledger: "Ledger",
        vault: "Vault",
        resolve: Resolve,
        own_addresses: OwnAddresses,
        timeouts: Timeouts | None = None,
        system_roots: Path | None = None,
        known: SharedValues | None = None,
    ) -> None:
        """`resolve` raises OSError where a name has no address.

        `known` gets every value that is fetched here, and is what is looked for in requests and answers. Raises
        CredgateError without a system trust store, PlaceError where the key of fingerprints is not ours alone.
        """
        super().__init__()
        self.known = known or SharedValues()
        limits = timeouts or Timeouts()
        upstream = UpstreamTls(system_roots)
        dialler = self._dialler(Pins(resolve, limits.names), own_addresses, limits, str(upstream.bundle))
        fingerprints = Fingerprints.load(keys.beside(ledger.directory))
        calls = Calls(ledger=ledger, dialler=dialler, upstream=upstream, fingerprints=fingerprints)
        self._vaults = vault.servers = VaultServers(calls, vault.fetch, self.known)
        self._minter = Minter(calls=calls, vault=vault, known=self.known)
        judge = Judge(
            records=Records(ledger, self.known),
            fingerprints=fingerprints,
            vault=vault,
            dialler=dialler,
            known=self.known,
            minter=self._minter,
        )
        self._hooks = Hooks(judge=judge, authority=authority, upstream=upstream, timeouts=limits)
        self.workers: Workers | None = None

    def _dialler(self, pins: Pins, own_addresses: OwnAddresses, limits: Timeouts, bundle: str) -> Dialler:
        return Dialler(
            pins=pins,
            own_addresses=own_addresses,
            listeners=self._gateway_addresses,
            resolve_timeout=limits.resolve,
            connect_timeout=limits.connect,
            bundle=bundle,
        )

    async def start(self, processes: int = 1) -> None:
        """As Serving.start. `processes` accept, this one among them. Raises CredgateError where one does not start."""
        await super().start()
        if processes < 2:
            return
        from credgate.workers.pool import Terms, Workers  # noqa: PLC0415 - most daemons have none

        hooks = self._hooks
        terms = Terms(
            judge=hooks.judge,
            known=self.known,
            authority=hooks.authority,
            system_roots=str(hooks.upstream.bundle),
            timeouts=hooks.timeouts,
        )
        self.workers = Workers(processes - 1, terms)
        self.share = self.workers.share
        await self.workers.start()

    async def serve(self, run: Run, listeners: Sequence[Listener]) -> None:
        """As Serving.serve, by every process."""
        await super().serve(run, listeners)
        if self.workers is not None:
            await self.workers.begin(run, listeners)

    def tell(self, run: Run) -> None:
        """What of the run's rights is in force has changed: the other processes hear of it."""
        if self.workers is not None:
            self.workers.tell(run)

    async def told(self, run: Run) -> None:
        """As tell, and wait until they have heard."""
        if self.workers is not None:
            await self.workers.told(run)

    def cut(self, run_id: str, detail: str, binding: str = "") -> int:
        """As Serving.cut; the other processes do it as soon as they hear of it, and are not counted."""
        if self.workers is not None:
            self.workers.cut(run_id, detail, binding)
        return super().cut(run_id, detail, binding)

    async def cut_all(self, run: Run, detail: str, binding: str = "") -> int:
        """As cut, and wait until no process has one of them left; how many they were, by all of them."""
        count = super().cut(run.id, detail, binding)
        if self.workers is not None:
            count += await self.workers.cut_now(run, detail, binding)
        return count

    async def swapped(self, run: Run, detail: str) -> None:
        """The run's policy was replaced: it is in force everywhere, and no connection of the old one is left."""
        super().cut(run.id, detail)
        if self.workers is not None:
            await self.workers.swapped(run)

    def processes(self) -> dict[str, object]:
        """What is to be said of the processes that accept, and how many have died."""
        if self.workers is None:
            return {"workers": [{"pid": os.getpid(), "cpu_s": round(time.process_time(), 3)}], "workers_died": 0}
        return {"workers": self.workers.rows(), "workers_died": self.workers.died}

    async def publish(self, run: Run, ports: Sequence[int], make: MakeSocket) -> None:
        """Let the host's loopback reach these ports in the jail of a run that is served, until `close`.

        `make` gives a socket of the jail's network namespace. Raises CredgateError where a port is taken.
        """
        for port in ports:
            published = Published(run, bound(port), hooks=self._hooks, make=make)
            self._instances[run.id].append(published)
            await published.start()

    async def take_back(self, run_id: str) -> None:
        """Have the targets end the tokens that were made for this run, where they can; within seconds, never raises."""
        await self._minter.end(run_id)

    async def _closed(self, run_id: str) -> None:
        if self.workers is not None:
            await self.workers.finish(run_id)
        await self.take_back(run_id)

    async def stop(self) -> None:
        """Close every run."""
        await super().stop()
        if self.workers is not None:
            await self.workers.stop()
        await self._minter.drain()
        await self._vaults.close()
