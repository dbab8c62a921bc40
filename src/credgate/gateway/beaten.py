"""The beaten track: a request whose bytes are the last one's on its connection, on to the target that had that one, and
an answer whose head is the last one's. Nearly each request of a client is one.

All that `Lane`, `Steps` and `Judge` would find anew of it is looked at once, and is compared by identity from then on;
what can change between two requests is asked for each. Whatever is other than before is done as any other request
is, from where it stands: each turn has the very state here that it would have there (docs/decisions/0260).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from credgate.gateway import standing
from credgate.gateway.again import known
from credgate.gateway.exchange import ClientState, Exchange, Target
from credgate.gateway.framing import Counted, values
from credgate.gateway.head import RequestHead
from credgate.gateway.judge import Judge, at_hand
from credgate.gateway.laneanswer import Answering
from credgate.gateway.link import Link, Owned
from credgate.gateway.noting import Notes
from credgate.gateway.prepared import Prepared, Sent, given
from credgate.gateway.turn import Turn
from credgate.secretvalue import Secret
from rules.correlate import base36
from rules.reasons import Reason
from rules.request import Wire
from rules.scrub import Table

if TYPE_CHECKING:
    from credgate.gateway.client import Client


type Kept = Callable[[], Secret | None]


class Asked(msgspec.Struct, eq=False, frozen=True, kw_only=True):
    """A head, and what follows from it alone on this connection. `raw` has its empty line."""

    raw: bytes
    head: RequestHead
    wire: Wire
    keeps: bool
    expects: bool
    websocket: bool

    @property
    def is_plain(self) -> bool:
        """Whether it is all of a request, behind which the connection goes on."""
        special = self.expects or self.websocket or self.wire.has_body or self.head.method == b"CONNECT"
        return self.keeps and not special


class Track(msgspec.Struct, eq=False, frozen=True, kw_only=True):
    """What is known of such a request."""

    asked: Asked
    link: Link
    given: tuple[object, ...]  # to the rules, beside the head: as Prepared is kept by
    ready: Prepared
    sent: Sent
    asks: tuple[tuple[Kept, Secret], ...]  # what is put in, and what says whether it still is that
    owned: Owned  # the connection's
    table: Table
    target: Target
    pin: str
    proof: str
    way: Any  # of its lines, as Notes has it
    begin: bytes  # of the request's head, up to the ledger's number of its intent where that is in it
    end: bytes  # behind that: what it says of a body, and its empty line

    @classmethod
    def of(cls, judge: Judge, notes: Notes[Any], state: ClientState, asked: Asked, link: Link) -> "Track | None":
        """None where something of the next request would still have to be found."""
        run = state.run
        others = judge.decoys.others(run)
        ready = judge.heads.find(run, others, asked.wire)
        if ready is None or ready.sent is None or ready.clean is None or ready.shows is not None or not asked.is_plain:
            return None
        sent = ready.sent
        target = at_hand(state, ready.allow, ready.request, frozenset({link.owned.target.key}), None)
        if target is None or target.endpoint.digest or ready.allow.body_max or not sent.lines or not sent.names:
            return None
        way = notes.find(state, sent, target.pin(link.pin), target.note)
        if way is None or not link.owned.serves(run, target, link.pin):
            return None
        lengths = [b"content-length: %d\r\n" % int(one) for one in values(asked.head.fields, b"content-length")]
        named = bool(sent.marks.names)
        return cls(
            asked=asked,
            link=link,
            given=given(run, others),
            ready=ready,
            sent=sent,
            asks=tuple([(judge.asking(run, name), secret) for name, secret in sent.secrets.items()]),
            owned=link.owned,
            table=ready.clean,
            target=target,
            pin=link.pin,
            proof=run.proof,
            way=way,
            begin=b"%buser-agent: %b" % (sent.lines, sent.agent) if named else sent.lines,
            end=b"".join([b"\r\n" if named else b"", *lengths, b"\r\n"]),
        )

    def holds(self, judge: Judge, state: ClientState) -> bool:
        """Whether nothing of it has changed, and the request may go as the last one did."""
        run, (policy, role, decoys, others) = state.run, self.given
        if run.policy is not policy or run.role is not role or run.decoys is not decoys or run.proof is not self.proof:
            return False
        if judge.decoys.computed.get(run.id) is not others or judge.known.current is not self.table:
            return False
        if state.closed or state.targets.get(self.target.key) is not self.target:
            return False
        for kept, secret in self.asks:
            now = kept()
            if now is not secret and (now is None or now.reveal() != secret.reveal()):
                return False
        return standing.closed(run, self.ready.use) is None

    def exchange(self) -> Exchange:
        """One request of these."""
        ready, sent = self.ready, self.sent
        return Exchange(
            authority=self.asked.head.authority,
            scheme=self.asked.head.scheme,
            request=ready.request,
            path=ready.path,
            allow=ready.allow,
            asked=ready.asked,
            cred_fp=sent.cred_fp,
            query_names=sent.query_names,
            sent=sent,
            target=self.target,
            pin=self.pin,
        )

    def head(self, seq: int) -> bytes:
        """What is sent as request `seq` of the ledger."""
        if not self.sent.marks.names:
            return self.begin + self.end
        return b"%b%b%b" % (self.begin, base36(seq).encode("ascii"), self.end)


class Beaten(Answering):
    """A lane that knows the way."""

    def __init__(self, client: "Client") -> None:
        super().__init__(client)
        self._asked: Asked | None = None  # the last head
        self._judging = False
        self._gone = False  # the client left while its request was judged
        self._yields = False  # a request in the buffer waits for the loop's next turn
        self._track: Track | None = None
        self._noted: Turn | None = None  # on the track, its intent on the way to the disk
        self._notes = client.steps.judge.notes()
        self._links = client.pool

    # -- the request --------------------------------------------------------------------------------------------------

    def again(self, data: bytes) -> bool:
        """Take the request that these bytes are, if it is on the track. False: nothing was done."""
        asked, link, notes = self._asked, self._link, self._notes
        if asked is None:
            return notes is not None and self._begins(data)
        if link is None or notes is None or data != asked.raw:
            return False
        if self._turn is not None or self._judging or self._buffer or self._yields:  # something is on its way, or waits
            return False
        if self._over or self._lingering or self._pipe.full or not link.is_quiet:
            return False
        judge, state, track = self._steps.judge, self._state, self._track
        if track is None or track.asked is not asked or track.link is not link or not track.holds(judge, state):
            self._track = track = Track.of(judge, notes, state, asked, link)
            if track is None or not track.holds(judge, state):
                return False
            self._client.ways.track = track
        state.bindings.update(track.ready.names)
        turn = Turn(
            exchange=track.exchange(),
            wire=asked.wire,
            head=asked.head,
            body=Counted(0),
            client_keeps=True,
            expects=False,
            link=link,
            track=track,
        )
        if not notes.note(state, turn.exchange, track.ready.use, track.way, self._landed):
            return False
        self._judging, self._noted = True, turn
        self._client.waits(turn)
        return True

    def _begins(self, data: bytes) -> bool:
        """Take the first request of a connection likewise, which other connections of the listener began with."""
        client = self._client
        self._asked = asked = client.ways.find(client, data)
        link = None if asked is None else self._link_for(asked)
        if link is None:
            return False
        self._track = client.ways.track
        if self.again(data):
            return True
        client.pool.rest(link)
        return False

    def _link_for(self, asked: Asked) -> Link | None:
        """A connection that waits where this request will go, its target judged anew. It is the lane's then, as if the
        lane had had a request on it.
        """
        judge, state, pool = self._steps.judge, self._state, self._client.pool
        run = state.run
        ready = judge.heads.find(run, judge.decoys.others(run), asked.wire)
        if ready is None or ready.shows is not None or standing.closed(run, ready.use) is not None:
            return None
        target = judge.dialler.at_once(ready.allow.endpoint, ready.request.host)
        link = None if target is None else pool.take(run, target)
        if target is None or link is None:
            return None
        pool.busy(link)
        self._link, link.lane = link, self
        link.pause(False)  # the client that had it may have been behind with its answers
        state.know(target, frozenset())
        state.pins[target.key] = link.pin
        return link

    def _landed(self, error: Exception | None) -> None:
        """A sync has ended that began behind the intent."""
        turn, self._noted = self._noted, None
        try:
            notes, track = self._notes, None if turn is None else turn.track
            if turn is None or notes is None or track is None:
                raise RuntimeError("nobody waits")
            if error is None and notes.is_noted(turn.exchange.intent_seq) and self._may_go(track):
                self._client.judged(turn, self._go)
            elif not turn.exchange.intent_seq:
                self._client.anew(turn, self._came_back)
            else:
                self._client.written(turn, track.ready.use, self._came_back)
        except Exception as why:  # noqa: BLE001 - the outermost frame: others wait for the same sync
            self._client.failed(why)
            if turn is not None:
                self._client.judged(turn, None)

    def _may_go(self, track: Track) -> bool:
        """Whether nothing has changed while it waited."""
        state = self._state
        return not state.closed and standing.closed(state.run, track.ready.use) is None

    def _go(self, turn: Turn) -> None:
        """Send it, on the disk as it is."""
        exchange, track, link = turn.exchange, turn.track, self._link
        if track is None:
            raise RuntimeError("no track")
        state = self._state
        state.run.allowed += 1
        same = link is track.link and link.owned is track.owned  # which served the run
        if link is None or self._gone or not (same and link.is_quiet and link.owned.generation == state.run.generation):
            turn.take(track.sent.numbered(exchange.intent_seq))
            self._came_back(turn)
            return
        self._judging, self._turn, turn.head_sent = False, turn, True
        self._links.busy(link)
        state.pins[track.target.key] = link.pin
        exchange.timer = self._deadline.later(self._steps.timeouts.first_byte, self._late)
        link.send(track.head(exchange.intent_seq))
        if self._buffer:
            self._go_on()

    def _late(self) -> None:
        """The answer's head is not there in time."""
        turn = self._turn
        if turn is not None and turn.link is not None:
            turn.exchange.failure = turn.exchange.failure or Reason.UPSTREAM_TIMEOUT
            turn.link.cut()

    # -- the answer ---------------------------------------------------------------------------------------------------

    def answered(self, link: Link, data: bytes) -> bool:
        """Let an answer through that is whole, and whose head is known. False: nothing was done."""
        turn, notes = self._turn, self._notes
        track = None if turn is None else turn.track
        if turn is None or track is None or notes is None or turn.link is not link or link is not self._link:
            return False
        exchange = turn.exchange
        if track.link is not link:  # it was sent another way after all, maybe to another address
            return False
        if turn.held or turn.interim or turn.answer is not None or exchange.failure is not None or exchange.finished:
            return False
        policy = self._state.run.policy
        again = known(exchange, data, policy)
        if again is None or again.length is None or again.chunked or not again.keep:
            return False
        size = len(again.raw)
        if len(data) != size + again.length:
            return False
        body = data[size:]
        if again.table is not None and not self._steps.judge.known.is_clean(again.table, body):
            return False
        exchange.timer = None
        self._deadline.cancel()
        exchange.status, exchange.ids, exchange.resp_bytes = again.status, again.ids, again.length
        notes.went(self._state, exchange, track.way)
        link.idle = min(link.idle, again.idle)
        link.uses += 1
        self._turn = None
        self._links.rest(link)
        self._pipe.send(b"%b\r\n%b" % (again.lines, body))
        if self._buffer:
            self._go_on()
        return True

    def _came_back(self, turn: Turn) -> None:
        """Go on with a request that waited, or refuse it."""
        raise NotImplementedError

    def _go_on(self) -> None:
        """See what is next."""
        raise NotImplementedError
