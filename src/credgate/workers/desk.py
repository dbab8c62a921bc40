"""The daemon's side of one worker: what it asks for is decided here, and what it says is written here.

Secrets are fetched, uses, rates and budgets spent, and lines of the ledger written by this process alone.
"""

import asyncio
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from credgate.errors import CredgateError
from credgate.gateway.floods import KINDS
from credgate.ledger.record import LedgerError, clean_fields
from credgate.secretvalue import Secret
from credgate.workers import messages as m
from credgate.workers.answers import failed
from credgate.workers.claims import Claims, Unfit
from credgate.workers.knowing import SharedValues
from rules.reasons import Reason

log = logging.getLogger(__name__)

# Events that a worker may have written. A `tunnel` line of its own says that a handshake was broken off.
_WRITTEN = frozenset({"deny", "outcome", "tunnel", "mint"})

# Reasons by which a request is refused whose intent is on the disk already: nothing of it was sent.
_NOT_SENT = frozenset({Reason.REVOKED.value, Reason.PAUSED.value, Reason.PROOF_MISSING.value})
_MAX_GONE = 256
_MAX_VALUE = 1 << 20  # characters of a value that is looked for: each has dozens of spellings


@dataclass(slots=True, kw_only=True)
class Desk(Claims):
    """One worker. Lives on the daemon's loop."""

    known: SharedValues
    counted: dict[str, tuple[m.Fields, int]] = field(default_factory=dict)  # refusals that are not written yet, by id
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _gone: OrderedDict[str, None] = field(default_factory=OrderedDict)  # runs that are over: a last line may come

    def take(self, message: m.FromWorker, fds: list[int]) -> None:
        """One message. Outermost frame of what a worker can provoke: a fault ends that worker."""
        try:
            if fds:
                raise Unfit("descriptors")
            if type(message) is m.Batch:  # as nearly each one is
                self._batch(message)
            else:
                self._take(message)
        except (LedgerError, Unfit, TypeError, ValueError, KeyError) as error:
            self._fault(type(message).__name__, error)
        finally:
            for descriptor in fds:
                os.close(descriptor)

    def _take(self, message: m.FromWorker) -> None:  # noqa: C901, PLR0912 - one case a message
        match message:
            case m.Ready():
                self.ready.set()
            case m.Done():
                self.channel.answered(message)
            case m.Batch():
                self._batch(message)
            case m.Claim():
                self._spawn(self._claim(message.ask, self._named(message), message.fresh))
            case m.Fetch():
                self._spawn(self._fetch(message))
            case m.Record():
                self._record(message)
            case m.Held():
                self._held(message)
            case m.Counted():
                self._count(message)
            case m.Doubt():
                self._doubt(message)
            case m.Alarm():
                if message.run not in self._gone:
                    self._run(message.run).alarm(message.kind, message.detail)
            case m.Known():
                if len(message.value) + len(message.basic) > _MAX_VALUE:
                    raise Unfit("a value that no secret has")
                if any(message.name in run.policy.secrets for run in self.runs.values()):
                    self.known.add(message.name, message.value, basic=message.basic)
            case _:
                assert_never(message)

    # -- questions ----------------------------------------------------------------------------------------------------

    async def _fetch(self, asked: m.Fetch) -> None:
        try:
            given = await self._given(self._run(asked.run), asked.name)
        except CredgateError as error:
            self.channel.post(failed(asked.ask, error))
        else:
            self.channel.post(m.Given(given.name, given.value, given.version, ask=asked.ask))

    # -- what it says -------------------------------------------------------------------------------------------------

    def _record(self, record: m.Record) -> None:
        fields = record.fields
        seq = fields.get("intent_seq")
        if record.ev not in _WRITTEN or (record.ev == "outcome") != isinstance(seq, int):
            raise Unfit(f"a line of {record.ev!r}")
        if fields.get("run") not in self._gone:
            self._run(str(fields.get("run")))
        if isinstance(seq, int) and self.open.get(seq) != fields["run"]:
            raise Unfit(f"an outcome of line {seq}, which is not open")
        self.judge.records.ledger.append(record.ev, **fields)
        if isinstance(seq, int):
            del self.open[seq]
            self._count_answer(str(fields["run"]), fields.get("status"))
            if fields.get("reason") in _NOT_SENT or fields.get("detail") == m.BROKEN_OFF:
                self._count_unsent(str(fields["run"]))
        elif "count" in fields:
            self.counted.pop(str(fields.get("request_id")), None)
        else:
            self.requests += 1

    def _held(self, held: m.Held) -> None:
        """Remember what is written, should this worker die first: so it has to be a line of its own."""
        if held.fields.get("run") not in self._gone:
            self._run(str(held.fields.get("run")))
        fields, count = self.counted.get(held.id, (held.fields, 0))
        if not count:
            clean_fields("deny", {**fields, "request_id": held.id})
            if len(self.counted) >= KINDS * (len(self.runs) + 1):
                raise Unfit("more refusals than are counted at a time")
        self.counted[held.id] = (fields, count + 1)
        self.requests += 1

    def _count(self, counted: m.Counted) -> None:
        if counted.run in self._gone:
            return
        run = self._run(counted.run)
        if counted.denied < 0 or counted.bytes_out < 0:
            raise Unfit("a count below nothing")
        run.denied += counted.denied
        run.spent = replace(run.spent, bytes_out=run.spent.bytes_out + counted.bytes_out)

    def _doubt(self, doubt: m.Doubt) -> None:
        """Only of values that this worker has, and that are still those of now."""
        if doubt.run in self._gone:
            return
        run = self._run(doubt.run)
        sent: dict[str, Secret] = {}
        for name, version in doubt.secrets.items():
            value, last = self._versions.get((run.id, name), ("", 0))
            if version == last and name in run.policy.secrets:
                sent[name] = Secret(name, value)
        if sent:
            self.judge.doubt(run, sent)

    # -- its end ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Decide nothing more for it: it is gone. What it said before is still written."""
        self._over = True

    def close(self, why: str) -> int:
        """Write what a worker that is gone leaves open; how many requests those were. Raises LedgerError."""
        for task in tuple(self._tasks):
            task.cancel()
        left, self.open = self.open, {}
        ledger = self.judge.records.ledger
        for seq, run in left.items():
            ledger.append("outcome", run=run, intent_seq=seq, reason=Reason.WORKER_DIED.value, detail=why)
        counted, self.counted = self.counted, {}
        for held_id, (fields, count) in counted.items():
            ledger.append("deny", **{**fields, "count": count, "request_id": held_id})
        return len(left)

    def forget(self, run_id: str) -> None:
        """A run is over."""
        self.runs.pop(run_id, None)
        self._gone[run_id] = None
        if len(self._gone) > _MAX_GONE:
            self._gone.popitem(last=False)
        for key in [key for key in self._versions if key[0] == run_id]:
            del self._versions[key]
        for number in [number for number, kind in self._kinds.items() if kind is not None and kind.run.id == run_id]:
            del self._kinds[number]
