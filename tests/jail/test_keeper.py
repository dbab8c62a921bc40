"""Invariant: a berth is handed out whole, new and closed but for the gateway's ports, or there is an error.

Bodies run in a forked child as an ordinary user; what an agent would try runs in a further child inside the berth,
with full capabilities over its namespaces, so that only the network itself can refuse.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from jail import berthfacts, builder, fdpass, firewall, held
from jail.errors import JailError, Unsupported
from jail.keeper_client import Berth, KeeperProcess, out_no_routes
from tests.conftest import OrdinaryUser
from tests.features import PATH
from tests.jail import own
from tests.jail.forked import attempt

pytestmark = pytest.mark.needs("userns", "netns", "nftables")

OTHER = "192.0.2.1"  # TEST-NET-1
type ByUser = Callable[[Callable[[], object]], object]


@pytest.fixture
def by_user(ordinary_user: OrdinaryUser) -> ByUser:
    """Runs a body as an ordinary user and gives what it returns; any error of it fails the test."""

    def run(body: Callable[[], object]) -> object:
        got = attempt(told(body), uid=ordinary_user.uid)
        assert (got.errno, got.code, got.signal) == (0, "", 0)
        return got.value

    return run


def told(body: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        try:
            return body()
        except (OSError, JailError) as error:
            raise AssertionError(f"{error!r} {getattr(error, 'hint', '')}") from error

    return run


@contextlib.contextmanager
def keeper(berths: int = 1) -> Iterator[KeeperProcess]:
    running = KeeperProcess.start(sys.executable, berths=berths)
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def claimed(*ports: int) -> Iterator[tuple[KeeperProcess, Berth]]:
    with keeper(berths=0) as running:
        yield running, running.claim(ports)


def inside(berth: Berth, action: Callable[[], object]) -> object:
    """What `action` returns inside the berth, or the name of the errno it meets."""
    got = attempt(action, guards=lambda: own.enter(berth.userns, berth.jail_netns))
    return errno.errorcode[got.errno] if got.errno else got.value


def tcp(address: str, port: int) -> Callable[[], object]:
    def connect() -> list[object]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(3)
            sock.connect((address, port))
            sock.sendall(b"ping")
            return [sock.recv(9).decode(), sock.getsockname()[0]]

    return connect


def udp(address: str, port: int, proto: int = 0, patience: float = 3) -> Callable[[], object]:
    def exchange() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, proto) as sock:
            sock.settimeout(patience)
            sock.connect((address, port))
            sock.send(b"ping")
            try:
                return sock.recv(9).decode()
            except TimeoutError:
                return "timeout"

    return exchange


def raw(address: str, proto: int, payload: bytes) -> Callable[[], object]:
    def send() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, proto) as sock:
            return sock.sendto(payload, (address, 0))

    return send


def echo_request() -> bytes:
    """An ICMP echo request with its checksum: conntrack takes one with a wrong sum for invalid."""
    body = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
    total = sum(struct.unpack("!4H", body))
    return struct.pack("!BBHHH", 8, 0, ~(total + (total >> 16)) & 0xFFFF, 7, 1)


def serve(berth: Berth) -> threading.Thread:
    """Answer one connection on each TCP socket and one datagram with pong, from the host's namespace."""
    listeners = [berth.dns_tcp, *berth.tcp.values()]
    waiting = {sock.fileno(): sock for sock in (*listeners, berth.dns_udp)}

    def run() -> None:
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], 10)
            assert ready, "no connection in 10 s"
            for fd in ready:
                _answer(waiting.pop(fd))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _answer(sock: socket.socket) -> None:
    if sock.type == socket.SOCK_DGRAM:
        sock.sendto(b"pong", sock.recvfrom(9)[1])
        return
    connection, _ = sock.accept()
    with connection:
        connection.setblocking(True)
        assert connection.recv(9) == b"ping"
        connection.sendall(b"pong")


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_gateway_ports_answer_from_outside(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed(8443, 22) as (_, berth):
            thread = serve(berth)
            ports = [53, *berth.tcp]
            answers = [inside(berth, tcp(berth.gateway, port)) for port in ports]
            answers.append(inside(berth, udp(berth.gateway, 53)))
            thread.join()
            return [ports, answers, grown(dict.fromkeys(berth.counters(), 0), berth.counters())]

    pong = ["pong", "10.213.0.2"]
    assert by_user(body) == [[53, 80, 443, 3128, 22, 8443], [pong] * 6 + ["pong"], {"accepted": 7}]


def test_other_ports_and_protocols_of_the_gateway_are_refused_at_once(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed(8443) as (_, berth):
            before = berth.counters()
            start = time.monotonic()
            answers = [inside(berth, tcp(berth.gateway, port)) for port in (81, 22, 8444)]
            answers += [inside(berth, udp(berth.gateway, port)) for port in (54, 443, 3128)]
            took = time.monotonic() - start
            tries = grown(before, berth.counters())
            others = [1, 2, 4, 41, 47, 50, 132, 136, 253]  # ICMP, IGMP, IPIP, 6in4, GRE, ESP, SCTP, UDP-Lite, any
            payload = struct.pack("!HHHH", 1, 53, 8, 0) * 4
            for proto in others:
                inside(berth, raw(berth.gateway, proto, echo_request() if proto == 1 else payload))
            all_tries = grown(before, berth.counters())
            received = select.select([berth.dns_udp, berth.dns_tcp, *berth.tcp.values()], [], [], 0)[0]
            seen = all_tries.get("refused", 0) + all_tries.get("invalid", 0) - tries["refused"]
            return [answers, took < 2, tries, seen == len(others), "accepted" in all_tries, len(received)]

    assert by_user(body) == [["ECONNREFUSED"] * 6, True, {"refused": 6}, True, False, 0]


def test_udp_lite_socket_gets_nowhere(by_user: ByUser) -> None:
    """Conntrack takes UDP-Lite for invalid: dropped, not refused; a rule that names tcp and udp would let it by."""

    def body() -> list[object]:
        with claimed() as (_, berth):
            answer = inside(berth, udp(berth.gateway, 53, socket.IPPROTO_UDPLITE, patience=0.5))
            found = grown(dict.fromkeys(berth.counters(), 0), berth.counters())
            return [answer, sum(found.values()), len(select.select([berth.dns_udp], [], [], 0)[0]), sorted(found)]

    value = by_user(body)
    # EPROTONOSUPPORT: a kernel without UDP-Lite.
    assert value in (["timeout", 1, 0, ["invalid"]], ["ECONNREFUSED", 1, 0, ["refused"]], ["EPROTONOSUPPORT", 0, 0, []])


def test_any_other_address_has_no_route_and_is_counted(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed() as (_, berth):
            before = berth.off_route()
            others = (OTHER, "198.51.100.7", "203.0.113.9")
            answers = [inside(berth, tcp(address, 443)) for address in others]
            answers += [inside(berth, udp(address, 53)) for address in others]
            counted = berth.off_route() - before
            answers += [inside(berth, raw(OTHER, proto, echo_request())) for proto in (1, 136, 132)]
            return [answers, counted, sum(berth.counters().values())]

    assert by_user(body) == [["ENETUNREACH"] * 9, 6, 0]


def test_off_route_answers_after_the_berth_has_ended(by_user: ByUser) -> None:
    def body() -> list[int]:
        with claimed() as (running, berth):
            inside(berth, tcp(OTHER, 443))
            counted = berth.off_route()
            running.release(berth.id)
            return [counted, berth.off_route()]

    assert by_user(body) == [1, 1]


def test_one_route_and_nothing_else_is_shown(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed() as (running, berth):
            facts = running.facts(berth.id)
            main = [r for r in facts["jail"]["routes"] if r["table"] != 255]
            wrong = berthfacts.wrong(facts, [53, *berth.tcp])
            text = inside(berth, lambda: Path("/proc/net/route").read_text())
            return [main, wrong, len(str(text).splitlines()), facts["ports"]]

    only = {"family": 2, "table": 254, "type": 1, "scope": 253, "dst": "10.213.0.1/32", "link": "jail0", "gateway": ""}
    assert by_user(body) == [[only], [], 2, [53, 80, 443, 3128]]


def ipv6(address: str, kind: socket.SocketKind) -> Callable[[], object]:
    def connect() -> str:
        with socket.socket(socket.AF_INET6, kind) as sock:
            sock.settimeout(3)
            scope = socket.if_nametoindex("jail0") if address.startswith("fe80") else 0
            sock.connect((address, 53, 0, scope))
            return "connected"

    return connect


def test_ipv6_is_off_now_and_after_address_detection(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed() as (_, berth):
            kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
            tries = [ipv6(a, k) for a in ("2001:db8::1", "::1", "fe80::1") for k in kinds]
            first = [inside(berth, one) for one in tries]
            time.sleep(3)
            return first + [inside(berth, one) for one in tries]

    answers = by_user(body)
    assert isinstance(answers, list)
    assert len(answers) == 12
    assert set(answers) <= {"ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT"}


def test_loopback_inside_works_and_is_not_the_hosts(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed() as (_, berth), socket.create_server(("127.0.0.1", 0)) as host:
            port = host.getsockname()[1]
            from_host = tcp_only("127.0.0.1", port)()
            from_inside = inside(berth, tcp_only("127.0.0.1", port))

            def both() -> object:
                with socket.create_server(("127.0.0.1", 0)) as server:
                    return tcp_only("127.0.0.1", server.getsockname()[1])()

            return [from_host, from_inside, inside(berth, both)]

    assert by_user(body) == ["connected", "ECONNREFUSED", "connected"]


def tcp_only(address: str, port: int) -> Callable[[], object]:
    def connect() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(3)
            sock.connect((address, port))
            return "connected"

    return connect


def add_default_route() -> None:
    with IPRoute() as route:
        index = route.link_lookup(ifname="jail0")[0]
        route.route("add", dst="default", gateway="10.213.0.1", oif=index)


def test_with_another_route_the_gate_drops_and_counts(by_user: ByUser) -> None:
    """The control of "no route": the same packet, given one, exists, reaches the gate, and ends there by name."""
    addresses = (OTHER, "169.254.169.254", "223.255.255.1")

    def body() -> list[object]:
        with claimed() as (running, berth):
            without = [inside(berth, tcp(address, 443)) for address in addresses]
            unseen = sum(berth.counters().values())
            inside(berth, add_default_route)
            wrong = berthfacts.wrong(running.facts(berth.id), [53, *berth.tcp])
            return [without, unseen, len(wrong), [by_name(running, berth, address) for address in addresses]]

    def by_name(running: KeeperProcess, berth: Berth, address: str) -> list[object]:
        before = berth.counters()
        answers = [inside(berth, tcp(address, 443)), inside(berth, udp(address, 53))]
        inside(berth, raw(address, 253, bytes(32)))
        return [answers, grown(before, berth.counters())]

    refused = ["ECONNREFUSED", "ECONNREFUSED"]
    named = [[refused, {name: 3}] for name in ("private", "metadata", "foreign")]
    assert by_user(body) == [["ENETUNREACH"] * 3, 0, 1, named]


def third_namespace(user: int, gate: int) -> socket.socket:
    """Join G to a namespace beyond it, in which a server listens on 198.51.100.2:80; this process ends in G."""
    own.enter(user, gate)
    os.unshare(os.CLONE_NEWNET)
    beyond = os.open("/proc/self/ns/net", os.O_RDONLY)
    up("lo")
    with IPRoute() as route:
        route.link("add", ifname="in0", kind="veth", peer={"ifname": "out0", "net_ns_fd": gate})
    up("in0", "198.51.100.2")
    with IPRoute() as route:
        route.route("add", dst="default", gateway="198.51.100.1")
    server = socket.create_server(("198.51.100.2", 80))
    os.setns(gate, os.CLONE_NEWNET)
    up("out0", "198.51.100.1")
    os.close(beyond)
    return server


def up(link: str, address: str = "") -> None:
    with IPRoute() as route:
        index = route.link_lookup(ifname=link)[0]
        if address:
            route.addr("add", index=index, address=address, prefixlen=30)
        route.link("set", index=index, state="up")


def reach() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(0.7)
        try:
            sock.connect(("198.51.100.2", 80))
        except OSError as error:
            return "timeout" if isinstance(error, TimeoutError) else errno.errorcode[error.errno or 0]
        return "connected"


def gate_of(running: KeeperProcess, berth: Berth) -> int:
    """The other one of the two network namespaces that the keeper holds for its only berth."""
    found = set()
    for path in Path(f"/proc/{running.pid}/fd").iterdir():
        if str(path.readlink()).startswith("net:"):
            fd = os.open(path, os.O_RDONLY)
            found.add((os.fstat(fd).st_ino, fd))
    known = {os.fstat(berth.jail_netns).st_ino, Path(f"/proc/{running.pid}/ns/net").stat().st_ino}
    (gate,) = [fd for inode, fd in found if inode not in known]
    return gate


def test_gate_does_not_forward_by_either_guard(by_user: ByUser) -> None:
    """Each of nftables and ip_forward holds alone; with both taken away the same packet arrives."""

    def gate(berth: Berth, space: int) -> list[object]:
        server = third_namespace(berth.userns, space)
        told: list[object] = []
        for step in ("as built", "ip_forward on", "nftables off", "both off"):
            forward = "1" if step in ("ip_forward on", "both off") else "0"
            Path("/proc/sys/net/ipv4/ip_forward").write_text(forward)
            if step == "nftables off":
                firewall.find()().run([{"flush": {"ruleset": None}}])
            told.append([step, attempt(reach, guards=lambda: os.setns(berth.jail_netns, os.CLONE_NEWNET)).value])
        server.close()
        return told

    def body() -> object:
        with claimed() as (running, berth):
            space = gate_of(running, berth)
            inside(berth, add_default_route)
            return attempt(lambda: gate(berth, space)).value

    assert by_user(body) == [
        ["as built", "ECONNREFUSED"],
        ["ip_forward on", "ECONNREFUSED"],
        ["nftables off", "timeout"],
        ["both off", "connected"],
    ]


def test_a_foreign_source_address_is_dropped(by_user: ByUser) -> None:
    def body() -> dict[str, int]:
        with claimed() as (_, berth):
            before = berth.counters()

            def spoof() -> int:
                with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
                    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, bytes([192, 0, 2, 7]), gateway)
                    return sock.sendto(head + struct.pack("!HHHH", 9, 53, 8, 0), (berth.gateway, 0))

            gateway = socket.inet_aton(berth.gateway)
            assert inside(berth, spoof) == 28
            assert not select.select([berth.dns_udp], [], [], 0.2)[0]
            return grown(before, berth.counters())

    # Strict reverse-path filtering may drop it behind the same hook: the counter stands before that.
    assert by_user(body) == {"spoofed": 1}


def test_each_claim_is_new_and_released_ones_are_gone(by_user: ByUser) -> None:
    def body() -> list[object]:
        with keeper() as running:
            berths = [running.claim() for _ in range(3)]
            running.release(berths[0].id)
            berths.append(running.claim())
            spaces = {os.fstat(fd).st_ino for b in berths for fd in (b.userns, b.jail_netns)}
            codes = [code(lambda: running.facts(berths[0].id)), code(lambda: running.release(berths[0].id))]
            codes.append(code(lambda: running.facts(99)))
            return [len(spaces), len({b.id for b in berths}), codes]

    assert by_user(body) == [8, 4, ["berth_unknown"] * 3]


def code(call: Callable[[], object]) -> str:
    try:
        call()
    except JailError as error:
        return error.code
    return "no error"


def test_two_berths_do_not_reach_each_other(by_user: ByUser) -> None:
    def body() -> list[int]:
        with keeper() as running:
            one, two = running.claim(), running.claim()
            child = threading.Thread(target=inside, args=(one, tcp_only(one.gateway, 443)))
            child.start()
            child.join()
            return [len(select.select([b.tcp[443]], [], [], 0)[0]) for b in (one, two)]

    assert by_user(body) == [1, 0]


def test_endpoint_on_the_proxys_port_moves_the_proxy(by_user: ByUser) -> None:
    def body() -> list[object]:
        with claimed(3128, 443, 53) as (_, berth):
            answers = [inside(berth, tcp_only(berth.gateway, port)) for port in (3128, 3129)]
            return [berth.proxy_port, sorted(berth.tcp), answers]

    assert by_user(body) == [3129, [80, 443, 3128, 3129], ["connected", "connected"]]


def test_ports_are_added_to_a_claimed_berth(by_user: ByUser) -> None:
    def body() -> list[object]:
        with keeper() as running:
            berth = running.claim()
            same = running.extended(berth, ()) is berth
            more = running.extended(berth, (8443, 3128))
            answers = [inside(more, tcp_only(more.gateway, port)) for port in (443, 8443, 3128, 3129)]
            wrong = berthfacts.wrong(running.facts(more.id), [53, *more.tcp, 3128])
            return [same, more.id == berth.id, more.proxy_port, sorted(more.tcp), answers, wrong]

    assert by_user(body) == [True, True, 3129, [80, 443, 3128, 3129, 8443], ["connected"] * 4, []]


def test_ports_are_checked(by_user: ByUser) -> None:
    def body() -> list[object]:
        with keeper() as running:
            most = running.claim(range(9000, 9000 + held.MAX_EXTRA))
            bad: list[list[int]] = [[0], [65536], [-1], list(range(9000, 9001 + held.MAX_EXTRA))]
            codes = [code(partial(running.claim, ports)) for ports in bad]
            return [len(most.tcp), codes, len(running.claim().tcp)]

    bad = ["keeper_request"] * 3 + ["ports_too_many"]
    assert by_user(body) == [held.MAX_EXTRA + 3, bad, 3]


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def running_pids(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                alive.append(pid)
    return alive


def test_a_berth_whose_builder_died_is_replaced(by_user: ByUser) -> None:
    slow = "import time; from jail import network; build = network.connect\n"
    slow += "network.connect = lambda gate: (time.sleep(0.5), build(gate))\n"

    def body() -> list[object]:
        ours, theirs = fdpass.pair()
        argv = [sys.executable, "-I", "-c", f"{slow}{MAIN}", str(theirs.fileno())]
        with ours, theirs, subprocess.Popen(argv, pass_fds=[theirs.fileno()], env={"PATH": PATH}) as process:
            fdpass.send(ours, {"op": "start", "berths": 1, "parent": 0})
            fdpass.recv(ours)
            assert wait_for(lambda: len(children(process.pid)) == 1)
            os.kill(children(process.pid)[0], signal.SIGKILL)
            fdpass.send(ours, CLAIM)
            got = fdpass.recv(ours)
            assert got
            ours.close()
            return [got.body["ok"], len(got.fds), process.wait(60)]

    assert by_user(body) == [True, 9, 0]


@pytest.mark.parametrize("how", ["socket closed", "keeper killed", "stop", "garbage"])
def test_end_of_the_daemon_or_the_keeper_ends_everything(how: str, by_user: ByUser) -> None:
    def body() -> list[object]:
        running = KeeperProcess.start(sys.executable)
        berth = running.claim()
        mine = inode(berth.tcp[443].fileno())
        assert mine in descriptors(running.pid)
        berth.close()
        control = running._sock
        ends: dict[str, Callable[[], object]] = {
            "socket closed": control.close,
            "keeper killed": lambda: os.kill(running.pid, signal.SIGKILL),
            "stop": running.stop,
            "garbage": lambda: control.send(b"[]"),
        }
        ends[how]()
        gone = wait_for(lambda: not running_pids([running.pid]) and not children(running.pid))
        dead = bool(select.select([running.pidfd], [], [], 0)[0]) if running.pidfd >= 0 else True
        return [gone, dead, running.alive(), code(running.claim)]

    assert by_user(body) == [True, True, False, "keeper_gone"]


def test_no_process_stays_in_a_berth_and_its_keeper_is_in_none(by_user: ByUser) -> None:
    def body() -> list[object]:
        with keeper() as running:
            berths = [running.claim(), running.claim()]
            for berth in berths:
                running.facts(berth.id)
                berth.counters()
                running.jail_socket(berth.id).close()
            alone = wait_for(lambda: not children(running.pid))
            spaces = {Path(f"/proc/{running.pid}/ns/{kind}").stat().st_ino for kind in ("user", "net")}
            own_spaces = {Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("user", "net")}
            theirs = {os.fstat(fd).st_ino for b in berths for fd in (b.userns, b.jail_netns)}
            return [alone, len(spaces & theirs), len(spaces & own_spaces), sorted(running.claim().tcp)]

    assert by_user(body) == [True, 0, 0, [80, 443, 3128]]


def test_released_berths_leave_their_keeper_no_descriptor(by_user: ByUser) -> None:
    def body() -> list[object]:
        with keeper(berths=0) as running:
            counted = []
            for _ in range(3):
                berth = running.claim((22,))
                running.facts(berth.id)
                running.jail_socket(berth.id).close()
                running.release(berth.id)
                counted.append(len(list(Path(f"/proc/{running.pid}/fd").iterdir())))
            return [len(set(counted)), sorted(descriptors(running.pid) & {inode(berth.tcp[443].fileno())})]

    assert by_user(body) == [1, []]


def test_builders_have_no_descriptor_of_the_daemon_or_of_a_berth(by_user: ByUser) -> None:
    def body() -> list[object]:
        ours, theirs = fdpass.pair()
        other = [os.open("/dev/null", os.O_RDONLY), socket.socket().detach()]
        pid = os.fork()
        if pid == 0:
            builder._drop_descriptors(theirs.fileno())
            left = [fd for fd in (ours.fileno(), theirs.fileno(), *other) if Path(f"/proc/self/fd/{fd}").exists()]
            fdpass.send(theirs, {"left": left})
            os._exit(0)
        os.waitpid(pid, 0)
        got = fdpass.recv(ours)
        return [got is not None and got.body["left"] == [theirs.fileno()]]

    assert by_user(body) == [True]


def descriptors(pid: int) -> set[str]:
    links: set[str] = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the keeper closes what it passed on
            links.add(str(fd.readlink()))
    return {link for link in links if link.startswith("socket:")}


def inode(fd: int) -> str:
    return f"socket:[{os.fstat(fd).st_ino}]"


def test_keeper_is_single_threaded_and_without_the_callers_environment(by_user: ByUser) -> None:
    def body() -> list[object]:
        os.environ["CANARY"] = "canary-value"
        with keeper() as running:
            running.claim()
            threads = len(list(Path(f"/proc/{running.pid}/task").iterdir()))
            environ = b"canary" in Path(f"/proc/{running.pid}/environ").read_bytes()
            return [threads, environ, str(Path(f"/proc/{running.pid}/cwd").readlink())]

    assert by_user(body) == [1, False, "/"]


def test_berth_maps_one_uid_and_one_gid_to_themselves(by_user: ByUser) -> None:
    def body() -> object:
        with keeper(berths=0) as running:
            berth = running.claim()
            maps = inside(
                berth, lambda: [Path(f"/proc/self/{name}_map").read_text().split() for name in ("uid", "gid")]
            )
            return [maps, [[str(own), str(own), "1"] for own in (os.geteuid(), os.getegid())]]

    found = by_user(body)
    assert isinstance(found, list)
    assert found[0] == found[1]


def test_second_thread_is_an_error() -> None:
    def body() -> None:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            builder._check_single_threaded()
        finally:
            stop.set()
            thread.join()

    assert attempt(body).code == "berth_threads"


@pytest.mark.needs("root")
def test_uid_0_is_refused() -> None:
    def body() -> list[str]:
        try:
            KeeperProcess.start(sys.executable).stop()
        except JailError as error:
            return [error.code, error.hint]
        return []

    assert attempt(body).value == [
        "keeper_root",
        "start the daemon as the user that the run belongs to (credgate run --user NAME)",
    ]


def refusal(call: Callable[[], object]) -> list[object]:
    try:
        call()
    except Unsupported as error:
        return [error.code, error.errno, error.hint]
    return ["no refusal"]


def test_user_namespaces_off_in_a_parent_is_unsupported(by_user: ByUser) -> None:
    def body(off: bool) -> list[object]:
        own.user_namespace()
        if off:
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
        with keeper(berths=1) as running:
            return refusal(running.claim)

    hint = "user namespaces are off; as root: sysctl -w user.max_user_namespaces=15000"
    assert by_user(lambda: body(off=True)) == ["berth_userns", errno.ENOSPC, hint]
    assert by_user(lambda: body(off=False)) == ["no refusal"]


def test_network_namespaces_off_in_a_parent_is_unsupported(by_user: ByUser) -> None:
    def body() -> list[object]:
        own.user_namespace()
        Path("/proc/sys/user/max_net_namespaces").write_text("1")
        with keeper(berths=0) as running:
            return refusal(running.claim)

    hint = "a limit on namespaces is used up or 0, here or in an outer one: user.max_*_namespaces"
    assert by_user(body) == ["berth_netns", errno.ENOSPC, hint]


@pytest.mark.needs("seccomp")
def test_an_outer_seccomp_filter_is_named(by_user: ByUser) -> None:
    def body() -> list[object]:
        import pyseccomp  # its import asks for libseccomp

        table = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        table.add_rule(pyseccomp.ERRNO(errno.EPERM), "unshare")
        table.load()
        with keeper(berths=0) as running:
            return refusal(running.claim)

    found = by_user(body)
    assert isinstance(found, list)
    assert found[:2] == ["berth_userns", errno.EPERM]
    assert "seccomp" in found[2]


MAIN = "import sys; from jail.keeper import main; sys.exit(main(sys.argv[1:]))"


def answers(before: str, *requests: fdpass.Json, path: str = PATH) -> tuple[list[fdpass.Json], int]:
    """Bodies that a keeper answers after `before` has changed something in its process; and its exit status."""
    ours, theirs = fdpass.pair()
    script = f"import sys\n{before}\n{MAIN}"
    argv = [sys.executable, "-I", "-c", script, str(theirs.fileno())]
    bodies = []
    with ours, theirs, subprocess.Popen(argv, pass_fds=[theirs.fileno()], env={"PATH": path}) as process:
        for request in ({"op": "start", "berths": 0, "parent": 0}, *requests):
            fdpass.send(ours, request)
            got = fdpass.recv(ours)
            assert got
            assert got.body["ok"] or not got.fds
            got.close()
            bodies.append(got.body)
        ours.close()
        return bodies, process.wait(5)


CLAIM: fdpass.Json = {"op": "claim", "ports": []}


def test_without_nftables_there_is_no_berth(by_user: ByUser) -> None:
    def body() -> list[object]:
        bodies, status = answers("sys.modules['nftables'] = None", CLAIM, path="")
        return [[[b["ok"], b["unsupported"], b["code"]] for b in bodies], status]

    assert by_user(body) == [[[False, True, "nftables_missing"], [False, False, "keeper_request"]], 0]


ANOTHER_ROUTE = """
from jail import network
from pyroute2 import IPRoute
build = network.bring_up
def bring_up(side):
    build(side)
    with IPRoute() as route:
        route.route("add", dst="192.0.2.0/24", oif=route.link_lookup(ifname=side.link)[0], scope="link")
network.bring_up = bring_up
"""
RULE_LOST = """
from jail import firewall
def apply(backend, ports):
    backend.run([{"add": command} for command in firewall.ruleset(ports)[:-1]])
firewall.apply = apply
"""
PORT_LOST = """
from jail import firewall
firewall.allow = lambda backend, ports: None
"""
BUILDER_FAULT = """
from jail import network
def bring_up(side):
    raise ZeroDivisionError("a fault of ours")
network.bring_up = bring_up
"""


FAULTS = {
    "another route": (ANOTHER_ROUTE, "berth_network", "192.0.2.0/24"),
    "a rule lost": (RULE_LOST, "berth_firewall", "leaving"),
    "a port lost": (PORT_LOST, "berth_firewall", "8443"),
    "a fault of ours": (BUILDER_FAULT, "berth_internal", "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_berth_that_is_not_as_planned_is_not_handed_out(name: str, by_user: ByUser) -> None:
    fault, code, detail = FAULTS[name]
    claim: fdpass.Json = {"op": "claim", "ports": [8443]}

    def body() -> list[object]:
        bodies, status = answers(fault, claim, claim)
        return [[[b["ok"], b["code"], detail in str(b["detail"])] for b in bodies[1:]], status]

    assert by_user(lambda: answers("", claim)[0][1]["ok"]) is True
    assert by_user(body) == [[[False, code, True]] * 2, 0]


def test_off_route_that_is_not_shown_is_an_error() -> None:
    text = "Ip: Forwarding OutNoRoutes\nIp: 2 17\nIcmp: InMsgs\nIcmp: 1\n"
    assert out_no_routes(text) == 17
    for broken in ("", "Ip: Forwarding\nIp: 2\n", "Ip: OutNoRoutes\n", "Ip: OutNoRoutes\nIp: x\n"):
        assert code(partial(out_no_routes, broken)) == "off_route_not_shown"


def test_wrong_arguments_are_a_usage_error() -> None:
    done = subprocess.run([sys.executable, "-I", "-m", "jail.keeper"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:6]) == (2, "error:")


def test_a_socket_of_the_jails_reaches_what_listens_in_it_and_no_other_does(by_user: ByUser) -> None:
    """What `publish` is made of; the firewall that is read back is the same as before."""
    port = 3000

    def body() -> list[object]:
        with claimed() as (running, berth):
            before = running.facts(berth.id)["nft"]
            ready, told_ready = os.pipe()
            pid = os.fork()
            if pid == 0:
                own.enter(berth.userns, berth.jail_netns)
                with socket.create_server(("127.0.0.1", port)) as listener:
                    os.write(told_ready, b"x")
                    peer, _ = listener.accept()
                    peer.sendall(b"pong")
                os._exit(0)
            os.read(ready, 1)
            found: list[object] = [socket.socket().connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED]
            with running.jail_socket(berth.id) as sock:
                sock.settimeout(5)
                sock.connect(("127.0.0.1", port))
                found.append(sock.recv(9).decode())
            os.waitpid(pid, 0)
            with running.jail_socket(berth.id) as again:
                found.append(again.connect_ex(("127.0.0.1", port)) in (errno.ECONNREFUSED, errno.EINPROGRESS))
            found.append(running.facts(berth.id)["nft"] == before)
            running.release(berth.id)
            with contextlib.suppress(JailError):
                running.jail_socket(berth.id)
                found.append("a socket of a berth that is gone")
            return found

    assert by_user(body) == [True, "pong", True, True]
