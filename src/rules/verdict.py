"""A verdict is a value with a reason. It has no truth value: take it apart with match and assert_never."""

from dataclasses import dataclass, field
from typing import NoReturn

from rules.messages import Messages
from rules.policy import Binding, Endpoint
from rules.reasons import Reason
from rules.request import Request


class _NoTruth:
    __slots__ = ()

    def __bool__(self) -> NoReturn:
        """Refuse: bool(Deny()) would otherwise be True (measured)."""
        raise TypeError("a verdict has no truth value; use match")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow(_NoTruth):
    """The request may go to `endpoint`, with each of `bindings` injected (at most one per place).

    `body_max` is 0, or the bytes of a body that has to be read first: the verdict on the request with it counts.
    `messages` is of a WebSocket: its client's messages are held against it, each of them (rules.messages).
    Of an endpoint with several targets `rule` is its own rule, `endpoint` the one that the role's `route` leads to,
    `route` says which ("WORD: RULE" of the target), and `sent` is the request as that one gets it.
    """

    rule: str  # "ENDPOINT.ID", the deciding allow rule; "" before a rule was asked (CONNECT)
    endpoint: Endpoint
    bindings: tuple[Binding, ...] = ()
    body_max: int = 0
    messages: Messages = ()
    route: str = ""
    sent: Request | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny(_NoTruth):
    """The request is refused. `message` is one short fixed sentence for the jail: no path, trace or kernel text."""

    reason: Reason
    message: str
    status: int = 403  # 403, 426, 400, 502 or 504: never 429 or 500, SDKs retry them
    rule: str = ""  # the deciding deny rule, where there is one
    hint: str = ""  # what rule would allow it, in words of the policy file


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel(_NoTruth):
    """A CONNECT is accepted, so that what comes inside can be judged, and refused in words the client shows.

    `endpoint` None: nothing is listed for this host and port; every request inside will be refused.
    """

    endpoint: Endpoint | None = None


type Verdict = Allow | Deny
