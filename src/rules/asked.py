"""What was refused, and what is made of it: the values of `learn`."""

from dataclasses import dataclass

from rules.load_rules import with_head
from rules.parse import parse_request
from rules.paths import PathPattern
from rules.policy import AllowRule, DenyRule
from rules.request import Request, Via, Wire
from rules.verdict import Deny

__all__ = ["Asked", "Known", "Learned", "Proposal", "Told", "request_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Refusals that are alike, as the ledger has them: `first` and `last` are times (RFC 3339), `count` is exact.

    `query` are the names that were seen. `rule` and `hint` are what the refusal said.
    """

    reason: str
    method: str = ""
    scheme: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    query: frozenset[str] = frozenset()
    count: int = 1
    first: str = ""
    last: str = ""
    rule: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the shipped packs know of a host: which ones to write, and what they deny there."""

    packs: tuple[str, ...]
    deny: tuple[DenyRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One rule: [[endpoint.ENDPOINT.allow]]. `new`: the endpoint is made with it, and the role has to name it.

    `notes`: what the user has to know before saying yes. `aside`: who asks for it and does without it.
    """

    endpoint: str
    new: bool
    scheme: str
    host: str
    port: int
    id: str
    methods: tuple[str, ...]
    path: str
    query: tuple[str, ...]
    encoded_slash: bool
    asked: tuple[Asked, ...]
    notes: tuple[str, ...] = ()
    aside: str = ""

    @property
    def count(self) -> int:
        """How often it was asked for."""
        return sum(asked.count for asked in self.asked)

    def rule(self) -> AllowRule:
        """The rule as a value. Raises PathError."""
        return AllowRule(
            id=self.id,
            methods=with_head(self.methods),
            paths=(PathPattern.parse(self.path),),
            query=frozenset(self.query),
            encoded_slash=self.encoded_slash,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Refusals for which nothing is proposed. `path` is a pattern where several ids were asked for."""

    asked: tuple[Asked, ...]
    path: str
    why: str

    @property
    def count(self) -> int:
        """How often it was asked for."""
        return sum(asked.count for asked in self.asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """`passing`: refused then, allowed by the policy as it is now."""

    proposals: tuple[Proposal, ...] = ()
    told: tuple[Told, ...] = ()
    passing: tuple[Asked, ...] = ()


def request_of(asked: Asked) -> Request | Deny:
    """The request again, without headers and body, by the parser that read it then."""
    names = "&".join(f"{name}=" for name in sorted(asked.query))
    target = f"{asked.path}?{names}" if names else asked.path
    host = asked.host.encode("ascii", "replace")
    tls = asked.scheme == "https"
    return parse_request(
        Wire(
            via=Via.CONNECT if tls else Via.DIRECT,
            http_version="HTTP/1.1",
            method=asked.method.encode("utf-8", "surrogatepass"),
            target=target.encode("utf-8", "surrogatepass"),
            headers=((b"host", b"%s:%d" % (host, asked.port)),),
            tls=tls,
            connect_host=host if tls else b"",
            connect_port=asked.port if tls else 0,
            sni=asked.host if tls else None,
            listen_port=asked.port,
        )
    )
