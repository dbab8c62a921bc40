"""Pins: what is kept of an answer, for how long, what a change says, and what a rebinding name gets."""

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from mitmproxy.connection import Server

from credgate.gateway.dial import Dialler
from credgate.gateway.exchange import Target
from credgate.gateway.pins import Pins
from rules.hosts import HostPattern
from rules.policy import Address, CorporateProxy, Endpoint
from rules.reasons import Reason
from rules.verdict import Deny
from tests.credgate.gateway_rig import FAST, POLICY, Client, Rig, rig
from tests.credgate.h2_rig import H2Client
from tests.credgate.test_gateway_h2 import BOTH, fields

HOST = "up.good.test"
PUBLIC = tuple(ip_address(f"93.184.216.{i}") for i in range(1, 9))


class Names:
    """A resolver that says what it is told, and counts."""

    def __init__(self, *answer: Address) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self, _host: str, over: Callable[[], None]) -> tuple[Address, ...]:
        self.asked += 1
        await asyncio.sleep(0)
        over()
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
            found.append(await dial.target(endpoint(*opened), HOST, asyncio.Semaphore(4)))
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
        names, slots = Names(*PUBLIC[:1]), asyncio.Semaphore(4)
        dial = dialler(names, Clock())
        await asyncio.gather(*(dial.target(endpoint(), HOST, slots) for _ in range(50)))
        assert names.asked <= 2  # the second may come in before the first answer was judged
        for n in range(3000):
            names.answer = PUBLIC[:1]
            await dial.target(endpoint(), f"h{n}.test", slots)
        assert len(dial.pins._names) <= 1025

    asyncio.run(main())


class Silent:
    """A host's resolver in threads of its own, as many as ours has; names that begin with "silent" hold one."""

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads)
        self.answers = threading.Event()
        self.asked: list[str] = []

    async def __call__(self, host: str, over: Callable[[], None]) -> tuple[Address, ...]:
        loop = asyncio.get_running_loop()
        future = self.threads.submit(self._ask, host)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(over))
        return await asyncio.wrap_future(future)

    def _ask(self, host: str) -> tuple[Address, ...]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.answers.wait(10)
        return PUBLIC[:1]


@pytest.mark.parametrize("slots", [4, 100])
def test_a_run_whose_names_nobody_answers_for_delays_no_other_runs(slots: int) -> None:
    """With 100 at a time (the control) it holds every thread, also after its requests have given up."""

    async def main() -> tuple[float, list[str]]:
        silent = Silent(8)
        dial = dataclasses.replace(dialler(Names(), Clock()), pins=Pins(silent, 30.0), resolve_timeout=0.2)
        theirs, ours = asyncio.Semaphore(slots), asyncio.Semaphore(4)
        try:
            waiting = [dial.target(endpoint(), f"silent{n}.test", theirs) for n in range(50)]
            denied = await asyncio.gather(*waiting)
            assert all(isinstance(one, Deny) and one.reason is Reason.RESOLVE_FAILED for one in denied)
            started = time.monotonic()
            dial = dataclasses.replace(dial, resolve_timeout=1.0 if slots == 100 else 60.0)
            found = await dial.target(endpoint(), HOST, ours)
            assert isinstance(found, Target) or slots == 100
            dial = dataclasses.replace(dial, resolve_timeout=0.2)
            again = await dial.target(endpoint(), "silent0.test", theirs)
            assert isinstance(again, Deny), "given up, its threads are still held"
            return time.monotonic() - started, list(silent.asked)
        finally:
            silent.answers.set()
            silent.threads.shutdown()

    took, asked = asyncio.run(main())
    assert (HOST in asked) is (slots == 4)
    assert len([name for name in asked if name != HOST]) == min(slots, 8)
    if slots == 100:
        assert took >= 1.0


def test_slots_come_back_when_the_thread_is_free_whatever_became_of_who_asked() -> None:
    async def main() -> None:
        silent, slots = Silent(8), asyncio.Semaphore(2)
        pins = Pins(silent, 30.0)
        for name in ("silent1.test", "silent2.test", "silent1.test"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await pins.look_up(name, slots)
        assert slots.locked()
        silent.answers.set()
        async with asyncio.timeout(60):
            assert await pins.look_up("a.test", slots) == await pins.look_up("b.test", slots) == PUBLIC[:1]
        silent.threads.shutdown()
        await asyncio.sleep(0)
        assert not slots.locked()
        async with asyncio.timeout(60):
            await slots.acquire()
            await slots.acquire()
        assert slots.locked(), "two, and no more than two came back"

    asyncio.run(main())


def test_one_run_that_waits_for_a_slot_holds_up_no_other_that_asks_for_that_name() -> None:
    async def main() -> None:
        silent, theirs, ours = Silent(8), asyncio.Semaphore(1), asyncio.Semaphore(1)
        pins = Pins(silent, 30.0)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(pins.look_up("silent1.test", theirs))
            second = tasks.create_task(pins.look_up("a.test", theirs))
            await asyncio.sleep(0.05)
            assert await pins.look_up("a.test", ours) == PUBLIC[:1]
            assert not second.done()
            silent.answers.set()
        assert first.result() == second.result() == PUBLIC[:1]
        silent.threads.shutdown()

    asyncio.run(main())


def test_child_runs_share_the_slots_of_the_first_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as r:
            child = dataclasses.replace(r.run, id="run-2", slots=asyncio.Semaphore(4))
            grandchild = dataclasses.replace(r.run, id="run-3", slots=asyncio.Semaphore(4))
            r.run.adopt(child)
            child.adopt(grandchild)
            assert r.run.lookups is child.lookups is grandchild.lookups is r.run.slots

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


BOUND = POLICY.replace(
    "[role.dev]\nbindings = [",
    '[binding.up]\nsecret = "token"\nendpoint = "looked-up"\nrules = ["all"]\nplace = "header:authorization"\n'
    '[role.dev]\nbindings = ["up", ',
).replace('host = "up.good.test"', 'host = "up.good.test"\nalpn = ["h2", "http/1.1"]')


@pytest.mark.parametrize("alpn", [("http/1.1",), BOTH])
@pytest.mark.parametrize(("after", "guarded", "status"), [(299, True, 200), (301, True, 403), (301, False, 200)])
def test_a_connection_that_ends_while_its_next_request_is_judged(
    after: int, guarded: bool, status: int, alpn: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was judged to go on it. A new one goes nowhere that was judged longer ago than pins stay good."""
    if not guarded:

        async def as_it_is(_self: Dialler, target: Target, _slots: asyncio.Semaphore) -> Target:
            return target

        monkeypatch.setattr(Dialler, "fresh", as_it_is)

    async def main() -> None:
        async with rig(tmp_path, policy=BOUND, alpn=alpn) as r:
            clock, ledger = Clock(), r.extra["ledger"]
            vars(r.gateway._hooks.judge.dialler.pins)["_clock"] = clock
            client = await r.tunnel(HOST, alpn=alpn)
            ask = h2_get(client, r) if "h2" in alpn else lambda: h1_get(client, r)
            assert await ask() == 200
            clock.at += after
            r.names[HOST] = (ip_address("10.0.0.1"),)
            durable = ledger.durable

            async def ending(seq: int) -> None:
                await durable(seq)
                await end_upstream(r)

            ledger.durable, ledger.has = ending, lambda _seq: False  # not there yet: waited for
            assert await ask() == status
            assert r.good.connections == (1 if status == 403 else 2)
            if status == 403:
                assert r.reasons()[-1] == "address_blocked"

    asyncio.run(main())


async def h1_get(client: Client, r: Rig) -> int:
    return (await client.get("/a", host=f"{HOST}:{r.direct}")).status


def h2_get(client: Client, r: Rig) -> Callable[[], Awaitable[int]]:
    session = H2Client(client.reader, client.writer)

    async def ask() -> int:
        answer = await session.ask(fields(r, path=b"/a", host=HOST))
        return answer.status

    return ask


async def end_upstream(r: Rig) -> None:
    """Close every connection to a target that no request is on, and let the gateway hear of it."""
    for link in tuple(r.gateway._hooks.pool._resting):
        link.cut()
    for instance in r.gateway._instances["run-1"]:
        for handler in tuple(getattr(instance, "handlers", ())):
            for connection in tuple(getattr(handler, "transports", ())):
                if isinstance(connection, Server):
                    handler.drop(connection)
    await asyncio.sleep(0.05)


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
    asked = []
    def resolve(self, request, handler):
        name, kind = str(request.q.qname).rstrip("."), QTYPE[request.q.qtype]
        self.asked.append(name)
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
        elif name == "round.test":
            add(name, CNAME("other.test")); add("other.test", CNAME(name))
        elif name == "open.test":
            add(name, CNAME("elsewhere.test"))
        elif name == "elsewhere.test" and kind == "A":
            add(name, A("93.184.216.34"))
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
for tcp in (False, True):
    log = DNSLogger("-request,-reply,-truncated")
    DNSServer(Zone(), address="127.0.0.1", port=53, tcp=tcp, logger=log).start_thread()
found = {}
for name in sys.argv[2:]:
    try:
        found.setdefault(name, []).append([str(a) for a in asyncio.run(ownaddresses.resolve(name, lambda: None))])
    except OSError as error:
        found.setdefault(name, []).append("error")
print(json.dumps({"found": found, "asked": Zone.asked}))
"""


@pytest.mark.needs("userns", "netns")
def test_what_the_hosts_resolver_makes_of_a_real_dns_server(tmp_path: Path) -> None:
    """On loopback of a network of its own: chains are followed, every address of an answer arrives to be judged.

    A chain costs no question beyond the one for the name, however long it is: docs/decisions/0076.
    """
    chains = [f"chain{n}.test" for n in (0, 1, 8, 9, 100, 200)]
    names = [
        *chains,
        "round.test",
        "open.test",
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
    told = json.loads(done.stdout.splitlines()[-1])
    found = told["found"]
    assert [found[name] for name in chains] == [[["93.184.216.34"]]] * len(chains)
    assert found["round.test"] == found["open.test"] == ["error"]
    assert set(told["asked"]) == set(names), "what a CNAME names is never asked for"
    assert max(told["asked"].count(name) for name in chains) <= 4  # A and AAAA, by UDP and once more by TCP
    assert sorted(found["mixed.test"][0]) == ["169.254.169.254", "93.184.216.34"]
    assert found["inner.test"] == [["169.254.169.254"]]
    assert found["six.test"] == [["64:ff9b::a9fe:a9fe"]]
    assert found["flip.test"] == [["93.184.216.34"], ["10.0.0.1"]]
    assert found["loop.test"] == ["error"]
    for answer in (found["mixed.test"][0], found["inner.test"][0], found["six.test"][0], found["flip.test"][1]):
        [refused] = targets((0, tuple(ip_address(text) for text in answer)))
        assert isinstance(refused, Deny)


def test_a_pinned_target_is_judged_again_once_an_address_is_the_gateways() -> None:
    async def main() -> None:
        mine, own = [frozenset[Address]()], frozenset[Address]()
        dial = dataclasses.replace(dialler(Names(), Clock()), own_addresses=lambda: own, listeners=lambda: mine[0])
        pinned, slots = dataclasses.replace(endpoint(), pins=PUBLIC[:1]), asyncio.Semaphore(1)
        found = await dial.target(pinned, HOST, slots)
        assert isinstance(found, Target) and found.addresses == PUBLIC[:1]
        assert await dial.target(pinned, HOST, slots) is found
        other = await dial.target(pinned, "other.good.test", slots)
        assert isinstance(other, Target) and other.host == "other.good.test"
        mine[0] = frozenset(PUBLIC[:1])
        refused = await dial.target(pinned, HOST, slots)
        assert isinstance(refused, Deny) and refused.reason is Reason.ADDRESS_BLOCKED
        elsewhere = await dial.target(dataclasses.replace(pinned, pins=PUBLIC[1:2]), HOST, slots)
        assert isinstance(elsewhere, Target) and elsewhere.addresses == PUBLIC[1:2]

    asyncio.run(main())


def test_what_is_known_of_a_target_is_what_a_look_up_would_find() -> None:
    """At once is only what counts still, judged anew; and it keeps and tells nothing."""

    async def main() -> None:
        names, clock, slots = Names(*PUBLIC[:1]), Clock(), asyncio.Semaphore(4)
        own: list[frozenset[Address]] = [frozenset()]
        dial = dataclasses.replace(dialler(names, clock), own_addresses=lambda: own[0])
        assert dial.at_once(endpoint(), HOST) is None
        first = await dial.target(endpoint(), HOST, slots)
        names.answer = PUBLIC[1:2]
        clock.at += 31
        assert dial.at_once(endpoint(), HOST) is None
        second = await dial.target(endpoint(), HOST, slots)
        asked, known = names.asked, dial.at_once(endpoint(), HOST)
        assert known == await dial.target(endpoint(), HOST, slots) and names.asked == asked
        assert addresses(second) == addresses(known or second) == (PUBLIC[1], *addresses(first))
        assert known is not None and known.note == ""
        own[0] = frozenset(PUBLIC[1:2])
        assert dial.at_once(endpoint(), HOST) is None
        assert isinstance(await dial.target(endpoint(), HOST, slots), Deny)

    asyncio.run(main())


def test_behind_a_proxy_nothing_is_known_at_once() -> None:
    """Its secret is fetched each time."""
    proxy = CorporateProxy(name="p", host="proxy.test", port=3128, pins=PUBLIC[:1])
    dial = dialler(Names(), Clock())
    pinned = dataclasses.replace(endpoint(), pins=PUBLIC[:1])
    assert dial.at_once(pinned, HOST) is not None
    assert dial.at_once(dataclasses.replace(pinned, proxy=proxy), HOST) is None
