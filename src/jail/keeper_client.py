"""The daemon's side of the berth keeper. Blocking calls with one lock, meant for `asyncio.to_thread`."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from jail import fdpass
from jail.errors import JailError, from_json
from jail.fdpass import Json, Received
from jail.firewall import counted

# More than the keeper itself allows a builder, so that its answer, which names the step, comes first.
_TIMEOUT = 30.0
# nft lies in sbin, which an ordinary user's PATH may lack. Nothing else of the daemon's environment is passed on.
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """Namespaces and sockets of one run. All descriptors are the receiver's to close (`close`).

    `tcp` holds the listening sockets by port, the proxy's among them, without 53; all sockets are non-blocking.
    `snmp` is /proc/net/snmp of the jail's namespace: `off_route` reads it, also after every process in it has died.
    `firewall` asks nf_tables of the gate's: `counters` does.
    """

    id: int
    gateway: str
    jail: str
    proxy_port: int
    userns: int
    jail_netns: int
    snmp: int
    firewall: socket.socket
    dns_udp: socket.socket
    dns_tcp: socket.socket
    tcp: Mapping[int, socket.socket]

    def off_route(self) -> int:
        """Attempts from the jail at addresses that it has no route to (IPv4 TCP and UDP); raises JailError."""
        return out_no_routes(os.pread(self.snmp, 1 << 16, 0).decode())

    def counters(self) -> dict[str, int]:
        """Packets by name that the gate namespace has counted so far; raises JailError."""
        return counted(self.firewall)

    def close(self) -> None:
        """Close everything, once; the namespaces end with the last process in them.

        What was sent on to a launcher is a copy; a descriptor closed twice could by then be another file's.
        """
        for sock in (self.firewall, self.dns_udp, self.dns_tcp, *self.tcp.values()):
            sock.close()
        for fd in (self.userns, self.jail_netns, self.snmp):
            os.close(fd)


class KeeperProcess:
    """A running keeper. `pidfd` is readable once it has died."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self._sock = sock
        self._lock = threading.Lock()
        self.pidfd = os.pidfd_open(process.pid)

    @classmethod
    def start(cls, python: str, *, berths: int = 1, stderr: int | None = None) -> Self:
        """Exec a keeper that keeps `berths` ready; call it before any secret is loaded.

        `python` is the interpreter's path, `stderr` a descriptor for its messages (None: the caller's own).
        Raises Unsupported where the host can't, JailError otherwise, also for uid 0.
        """
        ours, theirs = fdpass.pair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [python, "-I", "-m", "jail.keeper", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=_ENVIRONMENT,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise JailError("keeper_start", f"{python}: {error.strerror}", "", error.errno or 0) from error
        ours.settimeout(_TIMEOUT)
        keeper = cls(process, ours)
        # PDEATHSIG fires when the *thread* that forked ends, so only the main thread may ask for it; the end of the
        # socket is what ends the keeper in any case.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        try:
            keeper._ask({"op": "start", "berths": berths, "parent": parent}).close()
        except JailError:
            keeper.stop()
            raise
        return keeper

    @property
    def pid(self) -> int:
        """Process id of the keeper."""
        return self._process.pid

    def claim(self, ports: Iterable[int] = ()) -> Berth:
        """Take a berth in which nothing has run; `ports` are further TCP ports of the gateway.

        A port that every berth has (53, 80, 443) is not added twice; one that is the proxy's moves the proxy.
        Raises Unsupported or JailError with the step that failed: there is never a weaker berth.
        """
        got = self._ask({"op": "claim", "ports": sorted(set(ports))})
        try:
            return _berth(got)
        except (KeyError, ValueError, TypeError) as error:
            got.close()
            raise JailError("keeper_answer", f"got an answer that can't be read: {error!r}") from error

    def extended(self, berth: Berth, ports: Iterable[int]) -> Berth:
        """A claimed berth with further ports, in place of the one that was handed out, which is closed. As `claim`."""
        more = sorted(set(ports))
        if not more:
            return berth
        got = self._ask({"op": "claim", "ports": more, "berth": berth.id})
        berth.close()
        return _berth(got)

    def facts(self, berth: int) -> dict[str, Any]:
        """What the kernel shows of a claimed berth.

        Keys: `jail` and `gate` (links, addresses, routes, rules, sysctl), `nft` (JSON text: the list of the ruleset,
        libnftables-json(5)), `ports`. Raises JailError.
        """
        return self._ask({"op": "facts", "berth": berth}).body

    def jail_socket(self, berth: int) -> socket.socket:
        """A TCP socket of a claimed berth's jail namespace, unconnected and non-blocking. Raises JailError."""
        got = self._ask({"op": "socket", "berth": berth})
        if len(got.fds) != 1:
            got.close()
            raise JailError("keeper_answer", f"got {len(got.fds)} descriptors, expected one socket")
        return _socket(got.fds.pop(), socket.SOCK_STREAM)

    def release(self, berth: int) -> None:
        """Let a berth go; it is never handed out again. The caller closes its own descriptors. JailError."""
        self._ask({"op": "release", "berth": berth}).close()

    def alive(self) -> bool:
        """Whether the keeper runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the keeper and every berth; returns once the keeper is dead. May be called again."""
        self._sock.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()  # a builder has it as its PDEATHSIG parent
            self._process.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _ask(self, request: Json) -> Received:
        with self._lock:
            got = self._exchange(request)
        if got.body.get("ok") is not True:
            got.close()
            raise from_json(got.body)
        return got

    def _exchange(self, request: Json) -> Received:
        try:
            fdpass.send(self._sock, request)
            got = fdpass.recv(self._sock)
        except OSError as error:
            # After a timeout the next answer would be that of this request: the channel is of no more use.
            self._sock.close()
            raise JailError("keeper_gone", f"the berth keeper does not answer: {error}") from error
        if got is None:
            raise JailError("keeper_gone", "the berth keeper has died", "start the daemon again: credgate gateway stop")
        return got


def out_no_routes(snmp: str) -> int:
    """`OutNoRoutes` of the text of /proc/net/snmp; JailError where the kernel does not show it."""
    rows = [line.split() for line in snmp.splitlines() if line.startswith("Ip:")]
    try:
        names, values = rows
        return int(values[names.index("OutNoRoutes")])
    except (ValueError, IndexError) as error:
        raise JailError("off_route_not_shown", "got no OutNoRoutes in /proc/net/snmp") from error


def _berth(got: Received) -> Berth:
    body: dict[str, Any] = got.body
    named = {tuple(name): fd for name, fd in zip(body["sockets"], got.fds, strict=True)}
    numbers = {"id": int(body["berth"]), "proxy_port": int(body["proxy_port"])}
    userns, netns, snmp = named["userns",], named["jail_netns",], named["jail_snmp",]
    dns_udp = _socket(named["udp", 53], socket.SOCK_DGRAM)
    tcp = {name[1]: _socket(fd, socket.SOCK_STREAM) for name, fd in named.items() if name[0] == "tcp"}
    dns_tcp = tcp.pop(53)
    return Berth(
        **numbers,
        gateway=str(body["gateway"]),
        jail=str(body["jail"]),
        userns=userns,
        jail_netns=netns,
        snmp=snmp,
        firewall=socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0, fileno=named["firewall",]),
        dns_udp=dns_udp,
        dns_tcp=dns_tcp,
        tcp=tcp,
    )


def _socket(fd: int, kind: int) -> socket.socket:
    proto = socket.IPPROTO_TCP if kind == socket.SOCK_STREAM else socket.IPPROTO_UDP
    sock = socket.socket(socket.AF_INET, kind, proto, fileno=fd)
    sock.setblocking(False)  # the flag came with the descriptor; Python keeps a mark of its own
    return sock
