"""A gateway that is made to be killed: `python -I gateway_child.py DIR POLICY FD PROCESSES`, then a line a child on
stdin.

Imports once and forks for each line N: the child opens the ledger DIR/N (whatever the last one left of it), serves run
"runN" on the inherited listening socket and says "up PID". For a line "end" it waits for the last
child, which was killed.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from credgate.ca import Authority
from credgate.gateway.server import Gateway
from credgate.ledger.writer import Ledger
from credgate.runs import Listener, Run
from credgate.secretvalue import Secret
from rules.load import load_policy
from rules.policy import Policy
from rules.sources import SecretRule

VALUE = "killed-0123456789abcdef0123456789abcdef"


class Vault:
    """One value for every name."""

    def kept(self, rule: SecretRule, _env: object) -> Secret:
        return Secret(rule.name, VALUE)

    def asking(self, rule: SecretRule, env: object) -> Callable[[], Secret]:
        return partial(self.kept, rule, env)

    async def fetch(self, rule: SecretRule, env: Mapping[str, str]) -> Secret:
        return Secret(rule.name, VALUE)


async def nowhere(host: str) -> tuple[()]:
    raise OSError(host)


async def serve(
    directory: Path, name: str, loaded: Policy, authority: Authority, sock: socket.socket, processes: int
) -> None:
    run = Run(id=f"run{name}", policy=loaded, role="dev", gateway_ip="127.0.0.99", proxy_port=0, proof="proof")
    gateway = Gateway(
        authority=authority,
        ledger=Ledger.open(directory / name),
        vault=Vault(),  # type: ignore[arg-type]
        resolve=nowhere,
        own_addresses=frozenset,
        system_roots=directory / "ours.pem",  # the whole bundle takes as long to read as all the rest
    )
    await gateway.start(processes)
    await gateway.serve(run, [Listener(sock=sock, port=sock.getsockname()[1], proxy=False)])
    os.write(1, b"up %d\n" % os.getpid())
    await asyncio.sleep(60)


def main() -> None:
    directory, sock, child = Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[3])), 0
    policy = load_policy(Path(sys.argv[2]).read_bytes(), packs={}, base_dir="/")
    authority = Authority.load_or_create(directory / "ca")
    authority.context_for("api.good.test", ("http/1.1",))
    for line in sys.stdin:
        if line.strip() == "end":
            os.waitpid(child, 0)
            os.write(1, b"ended\n")
            continue
        child = os.fork()
        if not child:
            asyncio.run(serve(directory, line.strip(), policy, authority, sock, int(sys.argv[4])))
            os._exit(1)


if __name__ == "__main__":
    main()
