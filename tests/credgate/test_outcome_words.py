"""An outcome without words beside its numbers is told by a look at the exchange, at all that may be said of it."""

from typing import Any, cast

from credgate.gateway.digests import Digests
from credgate.gateway.exchange import Exchange
from credgate.gateway.quoted import Quoted
from credgate.gateway.records import _is_plain, _outcome_words
from credgate.gateway.refusal import Refusal, deny
from rules.reasons import Reason


class Seen:
    """An exchange that went well, and what of it was read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.names.add(name)
        return getattr(Exchange(status=200), name)


def test_all_that_words_are_made_of_is_looked_at() -> None:
    looked, said = Seen(), Seen()
    assert _is_plain(cast("Any", looked), None, "")
    assert not any(_outcome_words(cast("Any", said), None, "").values())
    assert said.names <= looked.names
    assert {"why", "scrubbed", "digests", "quoted", "refusal"} <= said.names


def test_whatever_is_said_is_not_plain() -> None:
    for exchange in (
        Exchange(why="x"),
        Exchange(scrubbed=["secret 'a' in the body"]),
        Exchange(tunnels=("1",)),
        Exchange(digests=Digests(), resp_bytes=1),
        Exchange(quoted=Quoted({"b": "placeholder"})),
        Exchange(refusal=Refusal(deny=deny(Reason.INTERNAL))),
    ):
        assert not _is_plain(exchange, None, "")
    assert not _is_plain(Exchange(), Reason.UPSTREAM_RESET, "")
    assert not _is_plain(Exchange(), None, "client closed the connection")
