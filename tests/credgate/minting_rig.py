"""A minter with a real vault and a real ledger, and the stand-in of providers that it calls over TLS.

Run as a program it mints once and prints what came: HOME PORT CA POINT. At POINT ("begin", "sent", "answered", "kept",
or "" for none) it kills itself, as a crash would.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from credgate.errors import CredgateError
from credgate.gateway.capture import Fingerprints
from credgate.gateway.dial import Dialler
from credgate.gateway.pins import Pins
from credgate.gateway.upstream import UpstreamTls
from credgate.known import KnownValues
from credgate.ledger.writer import Ledger
from credgate.minting.calls import Calls
from credgate.minting.journal import Journal
from credgate.minting.minter import Minter
from credgate.paths import Places
from credgate.runs import Run
from credgate.vault import Vault
from rules.load import load_policy
from rules.policy import Address
from rules.sources import SourceKind

HOST = "idp.good.test"
REF = "credgate/refresh"
POLICY = """
version = 1
[secret.refresh]
source = "keyring:credgate/refresh"
[secret.client]
source = "keyring:credgate/client"
[secret.key]
source = "keyring:credgate/key"
[secret.account]
source = "keyring:credgate/account"
[endpoint.idp]
host = "idp.good.test"
dial_port = {port}
address = ["127.0.0.1"]
ca = "{ca}"
[mint.oauth]
type = "oauth2-refresh"
secret = "refresh"
endpoint = "idp"
path = "/oauth/token"
client_id = "me"
[mint.github]
type = "github-app"
secret = "key"
endpoint = "idp"
app = "Iv1"
installation = 42
permissions = {{ issues = "write" }}
repositories = ["app"]
[mint.google]
type = "gcp-service-account"
secret = "account"
endpoint = "idp"
scopes = ["s.read", "s.list"]
revoke = "/revoke"
[mint.self]
type = "gcp-jwt"
secret = "account"
audience = "https://pubsub.googleapis.com/"
[secret.oauth]
source = "mint:oauth"
[secret.github]
source = "mint:github"
[secret.google]
source = "mint:google"
[secret.self]
source = "mint:self"
[role.dev]
"""


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Minting:
    minter: Minter
    vault: Vault
    ledger: Ledger
    known: KnownValues
    clock: Clock
    home: Path
    policy: Any

    def run(self, name: str = "r1") -> Run:
        return Run(id=name, policy=self.policy, role="dev", gateway_ip="127.0.0.99", proxy_port=1, proof="p")

    async def token(self, secret: str = "oauth", run: Run | None = None) -> str:
        asked = run or self.run()
        return (await self.minter.token(asked, asked.policy.secrets[secret])).reveal()

    async def kept(self) -> str:
        rule = self.policy.secrets["refresh"]
        assert rule.kind is SourceKind.KEYRING
        return (await self.vault.fetch(rule, {})).reveal()

    def records(self) -> list[dict[str, Any]]:
        lines = [line for f in sorted((self.home / "ledger").glob("*.jsonl")) for line in f.read_text().splitlines()]
        return [record for record in map(json.loads, lines) if record["ev"] == "mint"]


@contextmanager
def minting(home: Path, port: int, ca: Path, policy: str = POLICY, timeout: float = 5.0) -> Iterator[Minting]:
    places = Places.from_env({"HOME": str(home)})
    ledger, vault, known, clock = Ledger.open(home / "ledger"), Vault(places, {}), KnownValues(), Clock()

    async def resolve(_host: str, over: Callable[[], None]) -> tuple[Address, ...]:
        over()
        return (ip_address("127.0.0.1"),)

    dialler = Dialler(
        pins=Pins(resolve, 0.0),
        own_addresses=frozenset,
        listeners=frozenset,
        resolve_timeout=30.0,
        connect_timeout=30.0,
    )
    marks = Fingerprints.load(home / "fingerprints")
    calls = Calls(ledger=ledger, dialler=dialler, upstream=UpstreamTls(), fingerprints=marks, timeout=timeout)
    loaded = load_policy(policy.format(port=port, ca=ca).encode(), packs={}, base_dir="/")
    minter = Minter(calls=calls, vault=vault, known=known, clock=clock)
    try:
        yield Minting(minter, vault, ledger, known, clock, home, loaded)
    finally:
        ledger.close()


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash_at(point: str) -> None:
    """Put the end of the process where the chain would go on."""
    real, whole = Journal.begin, Calls.call
    match point:
        case "begin":
            Journal.begin = lambda self, value: (real(self, value), _die())  # type: ignore[method-assign]
        case "sent":
            Calls._exchange = _after_sending  # type: ignore[method-assign]
        case "answered":
            Vault._swapped = _die  # type: ignore[assignment,method-assign]
        case "kept":
            Journal.settle = _die  # type: ignore[method-assign]
    assert whole is Calls.call


async def _after_sending(self: Calls, call: Any) -> Any:
    from credgate.minting import calls

    async def read(*_: object) -> None:
        await asyncio.sleep(0.5)  # the provider has it, and has answered
        _die()

    calls._read = read  # type: ignore[assignment]
    return await _EXCHANGE(self, call)


_EXCHANGE = Calls._exchange


async def _once(rig: Minting) -> str:
    try:
        return await rig.token()
    except CredgateError as error:
        return f"{error.code}: {error.detail}; {error.hint}"


if __name__ == "__main__":
    _crash_at(sys.argv[4])
    with minting(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])) as made:
        print(asyncio.run(_once(made)))
