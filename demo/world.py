"""A small world for the demo: a network namespace with nothing but loopback, so that nothing can leave the machine.

In it: the target (HTTPS on 127.0.0.1), stand-ins for the host's resolver, for a cloud's metadata service and for a
server somewhere. They answer whoever reaches them; the demo shows that the jail doesn't, and that it would without one.
"""

import contextlib
import ctypes
import datetime
import fcntl
import hashlib
import http.server
import json
import os
import socket
import ssl
import struct
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "api.demo.test"
METADATA = "169.254.169.254"
ELSEWHERE = "192.0.2.10"  # RFC 5737: documentation
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
MS_BIND = 4096


def enter() -> None:
    """New user, network and mount namespaces for this process; loopback up. Raises OSError where the host refuses."""
    uid, gid = os.getuid(), os.getgid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket() as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    add_addresses(METADATA, ELSEWHERE)


def add_addresses(*addresses: str) -> None:
    """Give the loopback device of this namespace more addresses."""
    from pyroute2 import IPRoute  # noqa: PLC0415 - 200 ms, and only here

    with IPRoute() as route:
        for address in addresses:
            route.addr("add", index=1, address=address, prefixlen=32)


def use_resolver(folder: Path) -> None:
    """Make this mount namespace's resolv.conf name 127.0.0.1, where the stand-in listens."""
    for name, text in (("resolv.conf", "nameserver 127.0.0.1\n"), ("nsswitch.conf", "hosts: files dns\n")):
        file = folder / name
        file.write_text(text)
        bind(file, f"/etc/{name}")


def bind(file: Path, over: str) -> None:
    """Put a file over another one in this mount namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.path.realpath(over)
    if libc.mount(os.fsencode(file), os.fsencode(target), None, ctypes.c_ulong(MS_BIND), None) != 0:
        raise OSError(ctypes.get_errno(), f"bind over {target}")


class Resolver:
    """Stand-in for the host's resolver: remembers every name it is asked for, answers NXDOMAIN."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._sock.recvfrom(512)
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1 : at + 1 + query[at]].decode(errors="replace"))
                at += 1 + query[at]
            self.names.append(".".join(labels))
            self._sock.sendto(query[:2] + b"\x81\x83" + query[4:], client)


class Target:
    """The demo's HTTPS target, with an access log and a witness of the credentials that really arrived."""

    def __init__(self, folder: Path, token: str) -> None:
        self.access_log = folder / "access.log"
        self.ca = folder / "target-ca.pem"
        self.credentials: list[str] = []  # sha256 of each Authorization value seen
        self.expected = hashlib.sha256(f"Bearer {token}".encode()).hexdigest()
        self.access_log.touch()
        chain = folder / "target.pem"
        _issue(self.ca, chain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 443), self._handler())
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        target = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    super().handle_one_request()

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                seen = hashlib.sha256(self.headers.get("authorization", "").encode()).hexdigest()
                target.credentials.append(seen)
                right = seen == target.expected
                status = (201 if self.command == "POST" else 200) if right else 401
                body = json.dumps({"issues": ["a first one"]} if right else {"error": "bad credential"}).encode()
                agent = self.headers.get("user-agent", "-").replace('"', "%22")
                target.note(f'"{self.command} {self.path} HTTP/1.1" {status} {len(body)} "-" "{agent}"')
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.send_header("x-request-id", f"demo-{len(target.credentials):04d}")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = answer  # http.server finds them by these names

            def log_message(self, *_: object) -> None:
                """The access log is written by note()."""

        return Handler

    def note(self, text: str) -> None:
        """One line of the access log, in the combined log format."""
        when = datetime.datetime.now(datetime.UTC).strftime("%d/%b/%Y:%H:%M:%S %z")
        with self.access_log.open("a") as file:
            file.write(f"127.0.0.1 - - [{when}] {text}\n")


class Bait:
    """A plain HTTP server at an address the jail must never reach; counts who did."""

    def __init__(self, address: str) -> None:
        self.reached = 0
        bait = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                bait.reached += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"AccessKeyId": "stand-in"}')

            def log_message(self, *_: object) -> None:
                """Counted, not printed."""

        server = http.server.ThreadingHTTPServer((address, 80), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


def _usage() -> x509.KeyUsage:
    """Of a CA: clients that go by the letter of RFC 5280 ask for it."""
    off = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*off, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(key_cert_sign=True, crl_sign=True, **never)


def _issue(ca_file: Path, chain_file: Path) -> None:
    """A CA for the target, and its certificate and key in one PEM file."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Demo target CA")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(public)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        return made.not_valid_after(now + datetime.timedelta(days=2))

    authority = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    leaf = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    ca_file.write_bytes(authority.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    chain_file.write_bytes(leaf.public_bytes(pem) + private)
