"""Pins: what is kept of an answer, for how long, what a change says, and what a rebinding name gets."""

import asyncio
import dataclasses
import json
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from credgate.gateway.dial import Dialler
from credgate.gateway.exchange import Target
from credgate.gateway.pins import Pins
from rules.hosts import HostPattern
from rules.policy import Address, Endpoint
from rules.reasons import Reason
from rules.verdict import Deny
from tests.credgate.gateway_rig import FAST, Rig, rig

HOST = "up.good.test"
PUBLIC = tuple(ip_address(f"93.184.216.{i}") for i in range(1, 9))


class Names:
    """A resolver that says what it is told, and counts."""

    def __init__(self, *answer: Address) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self, _host: str) -> tuple[Address, ...]:
        self.asked += 1
        await asyncio.sleep(0)
        if not self.answer:
            raise OSError("no such name")
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def dialler(names: Names, clock: Clock) -> Dialler:
    return Dialler(
        pins=Pins(names, 30.0, clock),
        own_addresses=frozenset,
        listeners=frozenset,
        resolve_timeout=1.0,
        connect_timeout=1.0,
    )


def endpoint(*networks: str) -> Endpoint:
    opened = tuple(ip_network(text) for text in networks)
    return Endpoint(name="e", host=HostPattern.parse(HOST), port=443, dial_port=443, networks=opened)


def targets(*steps: tuple[float, tuple[Address, ...]], opened: tuple[str, ...] = ()) -> list[Target | Deny]:
    """What each of these answers, given so many seconds after the one before, leads to."""

    async def main() -> list[Target | Deny]:
        names, clock, found = Names(), Clock(), []
        dial = dialler(names, clock)
        for wait, answer in steps:
            clock.at += wait
            names.answer = answer
            found.append(await dial.target(endpoint(*opened), HOST))
        return found

    return asyncio.run(main())


def addresses(target: Target | Deny) -> tuple[Address, ...]:
    assert isinstance(target, Target), target
    return target.addresses


def test_an_answer_counts_for_thirty_seconds() -> None:
    one, two, three = targets((0, PUBLIC[:1]), (29.9, PUBLIC[1:2]), (0.2, PUBLIC[1:2]))
    assert addresses(one) == addresses(two) == PUBLIC[:1]
    assert addresses(three) == (PUBLIC[1], PUBLIC[0])


def test_recent_answers_stay_good_behind_the_newest_for_five_minutes() -> None:
    *_, last = targets((0, PUBLIC[:1]), (40, PUBLIC[1:2]), (240, PUBLIC[2:3]), (40, PUBLIC[3:4]))
    assert addresses(last) == (PUBLIC[3], PUBLIC[2], PUBLIC[1])  # the first one is 320 s old


def test_a_change_is_told_once_and_a_rotation_is_none() -> None:
    found = targets(
        (0, PUBLIC[:2]),
        (31, PUBLIC[2:4]),
        (31, PUBLIC[:2]),
        (31, (PUBLIC[3], PUBLIC[0])),
        (31, PUBLIC[4:5]),
        (1, PUBLIC[4:5]),
    )
    notes = [target.note for target in found if isinstance(target, Target)]
    assert notes == ["", "new addresses: 93.184.216.3, 93.184.216.4", "", "", "new addresses: 93.184.216.5", ""]


@pytest.mark.parametrize(
    "closed", ["169.254.169.254", "10.0.0.1", "127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe"]
)
@pytest.mark.parametrize("place", [0, 1, 7])
def test_a_mixed_answer_is_refused_whole_and_not_kept(closed: str, place: int) -> None:
    mixed = (*PUBLIC[:place], ip_address(closed), *PUBLIC[place:7])
    refused, after, later = targets((0, mixed), (0, PUBLIC[:1]), (31, mixed))
    assert isinstance(refused, Deny) and isinstance(later, Deny)
    assert {refused.reason, later.reason} <= {Reason.ADDRESS_BLOCKED, Reason.METADATA}
    assert addresses(after) == PUBLIC[:1]


def test_a_rebinding_name_is_refused_and_what_was_good_is_not_dialled_for_it() -> None:
    good, bad, back = targets((0, PUBLIC[:1]), (31, (ip_address("10.0.0.1"),)), (0, PUBLIC[:1]))
    assert addresses(good) == addresses(back) == PUBLIC[:1]
    assert isinstance(bad, Deny)


def test_a_range_opens_what_it_names_and_metadata_never() -> None:
    private = ip_address("10.1.2.3")
    assert addresses(targets((0, (private,)), opened=("10.0.0.0/8",))[0]) == (private,)
    [refused] = targets((0, (private, ip_address("169.254.169.254"))), opened=("10.0.0.0/8", "169.254.0.0/16"))
    assert isinstance(refused, Deny) and refused.reason is Reason.METADATA


def test_many_that_wait_ask_once() -> None:
    async def main() -> None:
        names = Names(*PUBLIC[:1])
        dial = dialler(names, Clock())
        await asyncio.gather(*(dial.target(endpoint(), HOST) for _ in range(50)))
        assert names.asked <= 2  # the second may come in before the first answer was judged
        for n in range(3000):
            names.answer = PUBLIC[:1]
            await dial.target(endpoint(), f"h{n}.test")
        assert len(dial.pins._names) <= 1025

    asyncio.run(main())


def test_a_failed_look_up_is_not_kept() -> None:
    failed, found = targets((0, ()), (0, PUBLIC[:1]))
    assert isinstance(failed, Deny) and failed.reason is Reason.RESOLVE_FAILED
    assert addresses(found) == PUBLIC[:1]


def test_the_ledger_has_the_pin_and_its_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            for address in ("127.0.0.1", "127.0.0.2", "127.0.0.2"):
                r.names[HOST] = (ip_address(address), *([] if address.endswith("1") else [ip_address("127.0.0.1")]))
                client = await r.tunnel(HOST)
                assert (await client.get("/a", host=f"{HOST}:{r.direct}")).status == 200
                client.close()
            intents = r.records("intent")
            assert [i.get("detail", "") for i in intents] == ["", "new addresses: 127.0.0.2", ""]
            # nobody listens on 127.0.0.2: the request went to the second address, and the outcome says so
            assert {o["pin"] for o in r.records("outcome")} == {"127.0.0.1"}

    asyncio.run(main())


def test_a_kept_answer_outlives_a_flip_and_is_what_is_dialled(tmp_path: Path) -> None:
    """Rebinding within the thirty seconds is not even seen: without keeping, the same flip is refused."""

    async def main(keep: float) -> list[int]:
        async with rig(tmp_path / str(keep), timeouts=dataclasses.replace(FAST, names=keep)) as r:
            return [await _status(r, answer) for answer in ("127.0.0.1", "10.0.0.1")]

    for keep in (0.0, 30.0):
        (tmp_path / str(keep)).mkdir()
    assert asyncio.run(main(30.0)) == [200, 200]
    assert asyncio.run(main(0.0)) == [200, 403]


async def _status(r: Rig, answer: str) -> int:
    r.names[HOST] = (ip_address(answer),)
    client = await r.tunnel(HOST)
    return (await client.get("/a", host=f"{HOST}:{r.direct}")).status


REAL = """
import asyncio, json, subprocess, sys, threading
from dnslib import A, AAAA, CNAME, QTYPE, RR, DNSHeader, DNSRecord
from dnslib.server import BaseResolver, DNSLogger, DNSServer
from credgate import ownaddresses

class Zone(BaseResolver):
    turn = 0
    def resolve(self, request, handler):
        name, kind = str(request.q.qname).rstrip("."), QTYPE[request.q.qtype]
        reply = request.reply()
        def add(owner, data):
            reply.add_answer(RR(owner, getattr(QTYPE, type(data).__name__), ttl=0, rdata=data))
        if name.startswith("chain"):
            length = int(name.split(".")[0][5:])
            for i in range(length):
                add(f"l{i}.test" if i else name, CNAME(f"l{i + 1}.test"))
            if kind == "A":
                add(f"l{length}.test" if length else name, A("93.184.216.34"))
        elif name == "loop.test":
            add(name, CNAME(name))
        elif name == "mixed.test" and kind == "A":
            add(name, A("93.184.216.34")); add(name, A("169.254.169.254"))
        elif name == "inner.test" and kind == "A":
            add(name, CNAME("metadata.google.internal")); add("metadata.google.internal", A("169.254.169.254"))
        elif name == "six.test" and kind == "AAAA":
            add(name, AAAA("64:ff9b::a9fe:a9fe"))
        elif name == "flip.test" and kind == "A":
            Zone.turn += 1
            add(name, A("93.184.216.34" if Zone.turn == 1 else "10.0.0.1"))
        return reply

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with open(sys.argv[1], "w") as file:
    file.write("nameserver 127.0.0.1\\noptions timeout:1 attempts:1\\n")
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
DNSServer(Zone(), address="127.0.0.1", port=53, logger=DNSLogger("-request,-reply")).start_thread()
found = {}
for name in sys.argv[2:]:
    try:
        found.setdefault(name, []).append([str(a) for a in asyncio.run(ownaddresses.resolve(name))])
    except OSError as error:
        found.setdefault(name, []).append("error")
print(json.dumps(found))
"""


@pytest.mark.needs("userns", "netns")
def test_what_the_hosts_resolver_makes_of_a_real_dns_server(tmp_path: Path) -> None:
    """On loopback of a network of its own: chains are followed, every address of an answer arrives to be judged."""
    names = [
        "chain0.test",
        "chain8.test",
        "mixed.test",
        "inner.test",
        "six.test",
        "flip.test",
        "flip.test",
        "loop.test",
    ]
    inside = ["unshare", "-Urnm", sys.executable, "-c", REAL, str(tmp_path / "resolv.conf")]
    done = subprocess.run([*inside, *names], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["chain0.test"] == found["chain8.test"] == [["93.184.216.34"]]
    assert sorted(found["mixed.test"][0]) == ["169.254.169.254", "93.184.216.34"]
    assert found["inner.test"] == [["169.254.169.254"]]
    assert found["six.test"] == [["64:ff9b::a9fe:a9fe"]]
    assert found["flip.test"] == [["93.184.216.34"], ["10.0.0.1"]]
    assert found["loop.test"] == ["error"]
    for answer in (found["mixed.test"][0], found["inner.test"][0], found["six.test"][0], found["flip.test"][1]):
        [refused] = targets((0, tuple(ip_address(text) for text in answer)))
        assert isinstance(refused, Deny)
