"""What daemon and worker say to each other: msgpack arrays by tag, checked as they are decoded.

What a worker says is read as plain data of these shapes and nothing else: a worker speaks with the outside world.
"""

from typing import Annotated, Any

import msgspec

type Value = str | int | list[str] | dict[str, str] | None
type Fields = dict[str, Value]  # of a ledger line
type Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

BROKEN_OFF = "broken off before it was sent"  # detail of the outcome of a claim whose answer nobody waited for
KINDS = 256  # of claims that a worker may have repeated
type Kind = Annotated[int, msgspec.Meta(ge=0, lt=KINDS)]
type Outcome = tuple[Count, str, Count, Count, Count, Count, dict[str, str]]


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of all. `ask` numbers a question whose answer has the same number; 0: nobody waits."""

    ask: int = 0


# -- from the daemon --------------------------------------------------------------------------------------------------


class Setup(Message, tag="setup", frozen=True):
    """First of all; `given` is a pickled given.Setup, which the daemon alone makes. One descriptor: the loads."""

    given: bytes


class Begin(Message, tag="begin", frozen=True):
    """Serve a run: `given` is a pickled given.Run; descriptors: its listeners, in its order."""

    given: bytes


class Swap(Message, tag="swap", frozen=True):
    """A run's policy was replaced: `given` is a pickled given.Swap. All its connections end."""

    given: bytes


class State(Message, tag="state", frozen=True):
    """What of a run's rights is in force from now on."""

    run: str
    proof: str
    revoked: bool
    paused: bool
    revoked_bindings: list[str]


class Cut(Message, tag="cut", frozen=True):
    """End connections of a run at once: all, or those that `binding` was used on."""

    run: str
    detail: str
    binding: str = ""


class End(Message, tag="end", frozen=True):
    """A run is over."""

    run: str


class Known(Message, tag="known", frozen=True):
    """A value to be looked for, of whichever run; either way round."""

    name: str
    value: str
    basic: str = ""


class Broken(Message, tag="broken", frozen=True):
    """The ledger is closed for good."""

    code: str
    detail: str
    hint: str


class Given(Message, tag="given", frozen=True):
    """A secret's value; `version` names it to this worker."""

    name: str
    value: str
    version: int


class Noted(Message, tag="noted", frozen=True):
    """The intent is line `seq`, on the disk where that was asked for: the request may go."""

    seq: int


class Passed(Message, tag="passed", frozen=True):
    """As Noted, of several: the questions' numbers and, in the same order, the lines'."""

    asks: list[int]
    seqs: list[int]


class Refused(Message, tag="refused", frozen=True):
    """The request may not go, and no line was written: a Deny's fields."""

    reason: str
    message: str
    status: int
    rule: str
    hint: str


class Stale(Message, tag="stale", frozen=True):
    """No line was written: these secrets have other values by now."""

    values: list[Given]


class Failed(Message, tag="failed", frozen=True):
    """An error of credgate's: `ledger` where it is the ledger's, else the secret can't be had."""

    ledger: bool
    code: str
    detail: str
    hint: str


class Ping(Message, tag="ping", frozen=True):
    """Is anybody there?"""


class Stop(Message, tag="stop", frozen=True):
    """Leave."""


# -- from a worker ----------------------------------------------------------------------------------------------------


class Ready(Message, tag="ready", frozen=True):
    """It is set up."""


class Done(Message, tag="done", frozen=True):
    """What was asked is done; `count` connections were ended by it."""

    count: int = 0
    error: str = ""


class Fetch(Message, tag="fetch", frozen=True):
    """Asks for a secret's value."""

    run: str
    name: str


class Marks(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Which of our headers a request gets, as rules.correlate.Marks has them."""

    names: list[str]
    client_key: bytes = b""


class Claim(Message, tag="claim", frozen=True):
    """Asks to send one request, by the policy of `generation`: spend it, write its intent, say its number.

    `secrets`: the versions that are in it, by name; those of `fresh` were fetched for this very request. All else is
    what `kind` stands for from here on, in the place of what it stood for before, and those versions are.
    """

    kind: Kind
    run: str
    generation: int
    bindings: list[str]
    head: int
    promised: int
    secrets: dict[str, int]
    fresh: list[str]
    marks: Marks
    fields: Fields


class Batch(Message, tag="batch", frozen=True):
    """What one moment of a worker has brought, in as few words as there are.

    `claims`: one more request of a kind each, the question's number times KINDS and the kind's added. `ends`: outcomes
    of requests that went as they should, each the line of its intent, the address, status (0: there is none), bytes of
    the request's body and of the answer's, milliseconds, ids.
    """

    claims: list[Count]
    ends: list[Outcome]


class Record(Message, tag="record", frozen=True):
    """One line that nobody waits for."""

    ev: str
    fields: Fields


class Held(Message, tag="held", frozen=True):
    """A refusal that is counted, and will be in the line that has `id`."""

    id: str
    fields: Fields


class Counted(Message, tag="counted", frozen=True):
    """What was refused and sent since it was said last."""

    run: str
    denied: int
    bytes_out: int


class Doubt(Message, tag="doubt", frozen=True):
    """A target refused a request with these secrets: their versions, by name."""

    run: str
    secrets: dict[str, int]


class Alarm(Message, tag="alarm", frozen=True):
    """An alarm of a run."""

    run: str
    kind: str
    detail: str


type FromDaemon = (
    Setup
    | Begin
    | Swap
    | State
    | Cut
    | End
    | Known
    | Broken
    | Given
    | Noted
    | Passed
    | Refused
    | Stale
    | Failed
    | Ping
    | Stop
)
type FromWorker = Ready | Done | Fetch | Claim | Batch | Record | Held | Counted | Doubt | Alarm | Known

encode = msgspec.msgpack.Encoder().encode
for_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromDaemon.__value__)
for_daemon: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromWorker.__value__)
