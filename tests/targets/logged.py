"""Servers that write logs of their own making: nginx, Apache httpd, Squid before and behind, S3; plain processes on
loopback with nothing of their packages' configuration. Each lets through who shows the token.
"""

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

from tests.features import find
from tests.targets.pki import Authority
from tests.targets.served import Target, accepts, clean_env, free_port, running

S3_TARGET = Path(__file__).with_name("s3_target.py")
MODULES = Path("/usr/lib/apache2/modules")
KEY_ID = "AKIAIOSFODNN7EXAMPLE"  # of AWS's own documentation
REQUESTER = "arn:aws:iam::123456789012:user/agent"
NAMES = ("nginx", "apache", "squid", "through")
BUCKET = "acme-data"
S3_HOST = f"{BUCKET}.s3.eu-west-1.amazonaws.com"

NGINX = """\
daemon off;
worker_processes 1;
pid $state/nginx.pid;
error_log $state/nginx.error.log warn;
events { worker_connections 64; }
http {
    client_body_temp_path $state/tmp_body;
    proxy_temp_path $state/tmp_proxy;
    fastcgi_temp_path $state/tmp_fastcgi;
    uwsgi_temp_path $state/tmp_uwsgi;
    scgi_temp_path $state/tmp_scgi;
    ssl_certificate $state/nginx.acme.example.pem;
    ssl_certificate_key $state/nginx.acme.example.key;
    root $state/www;
    default_type text/plain;
    error_page 405 =201 $$uri;
    server {
        listen 127.0.0.1:$nginx ssl;
        access_log $state/nginx.log combined;
        if ($$http_authorization != "Bearer $token") { return 401 "who are you"; }
    }
    server {
        listen 127.0.0.1:$through ssl;
        ssl_certificate $state/through.acme.example.pem;
        ssl_certificate_key $state/through.acme.example.key;
        access_log $state/through.log combined;
        if ($$http_authorization != "Bearer $token") { return 401 "who are you"; }
    }
    server {
        listen 127.0.0.1:$behind;
        access_log off;
        if ($$http_authorization != "Bearer $token") { return 401 "who are you"; }
    }
}
"""
APACHE = """\
ServerRoot $state
ServerName apache.acme.example
PidFile $state/apache.pid
ErrorLog $state/apache.error.log
Listen 127.0.0.1:$apache
LoadModule mpm_event_module $modules/mod_mpm_event.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule rewrite_module $modules/mod_rewrite.so
LoadModule ssl_module $modules/mod_ssl.so
StartServers 1
ThreadsPerChild 8
MaxRequestWorkers 8
ServerLimit 1
DocumentRoot $state/www
LogFormat "%h %l %u %t \\"%r\\" %>s %O \\"%{Referer}i\\" \\"%{User-Agent}i\\"" combined
CustomLog $state/apache.log combined
SSLSessionCache none
SSLEngine on
SSLCertificateFile $state/apache.acme.example.pem
SSLCertificateKeyFile $state/apache.acme.example.key
RewriteEngine on
RewriteCond "%{HTTP:Authorization}" "!=Bearer $token"
RewriteRule ^ - [R=401,L]
<Directory $state/www>
    Require all granted
</Directory>
"""
# The first port is an accelerator in front of nginx, the second one a forward proxy for CONNECT. No look-up leaves:
# the peer is an address, and names of the other one are in a hosts file.
SQUID = """\
https_port 127.0.0.1:$squid name=front accel defaultsite=squid.acme.example tls-cert=$state/squid.acme.example.pem \
tls-key=$state/squid.acme.example.key
http_port 127.0.0.1:$proxy name=proxy
cache_peer 127.0.0.1 parent $behind 0 no-query no-digest originserver login=PASSTHRU
acl front myportname front
acl proxy myportname proxy
acl through dstdomain through.acme.example
acl connect method CONNECT
never_direct allow front
cache_peer_access 127.0.0.1 allow front
cache_peer_access 127.0.0.1 deny all
http_access allow front
http_access allow proxy connect through
http_access deny all
access_log stdio:$state/squid.log squid front
access_log stdio:$state/proxy.log squid proxy
cache deny all
cache_mem 8 MB
cache_log $state/squid.cache.log
cache_store_log none
coredump_dir $state
hosts_file $state/hosts
dns_nameservers 127.0.0.1
netdb_filename none
pid_filename none
pinger_enable off
shutdown_lifetime 0 seconds
visible_hostname squid.acme.example
workers 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """The servers by name, and the forward proxy's port and log."""

    targets: Mapping[str, Target]
    proxy: int
    proxy_log: Path


@contextlib.contextmanager
def serving(state: Path, authority: Authority, user: Sequence[str] = ()) -> Iterator[Logged]:
    """All of them, their files in `state`; `user` is the command that starts a program as who owns `state`."""
    token = f"acme_{secrets.token_hex(18)}"
    ports = {name: free_port() for name in (*NAMES, "behind", "proxy")}
    for name in NAMES:
        pair = authority.issue(f"{name}.acme.example")
        for path in (pair.certificate, pair.key):
            Path(shutil.copy(path, state)).chmod(0o644)
    content = state / "www/v1"
    content.mkdir(parents=True)
    (content / "items").write_text("one\ntwo\n")
    (content / "large").write_bytes(bytes(300_000))
    (state / "hosts").write_text("127.0.0.1 through.acme.example\n")
    texts = {"nginx.conf": NGINX, "apache.conf": APACHE, "squid.conf": SQUID}
    values = {"state": state, "token": token, "modules": MODULES, **ports}
    for name, text in texts.items():
        (state / name).write_text(Template(text).substitute(values))
    commands = {
        "nginx": [_program("nginx"), "-e", f"{state}/nginx.error.log", "-c", f"{state}/nginx.conf", "-p", str(state)],
        "apache": [_program("apache2"), "-DFOREGROUND", "-f", f"{state}/apache.conf"],
        "squid": [_program("squid"), "-N", "-f", f"{state}/squid.conf"],
    }
    with contextlib.ExitStack() as stack:
        for name, argv in commands.items():
            log, env = state / f"{name}.out", clean_env(state)
            stack.enter_context(running([*user, *argv], ready=partial(accepts, ports[name]), log=log, env=env))
        targets = {name: _target(state, authority, name, ports[name], token) for name in NAMES}
        targets["s3"] = stack.enter_context(_s3(state / "s3", authority, user))
        yield Logged(targets=targets, proxy=ports["proxy"], proxy_log=state / "proxy.log")


def _target(state: Path, authority: Authority, name: str, port: int, token: str) -> Target:
    log, host = state / f"{name}.log", f"{name}.acme.example"
    return Target(host=host, port=port, ca=authority.ca, token=token, witness=log, access_log=log)


@contextlib.contextmanager
def _s3(state: Path, authority: Authority, user: Sequence[str]) -> Iterator[Target]:
    pair = authority.issue(S3_HOST)
    for path in (pair.certificate, pair.key):
        Path(shutil.copy(path, state)).chmod(0o644)
    files = ["--certificate", f"{state}/{S3_HOST}.pem", "--key", f"{state}/{S3_HOST}.key"]
    argv = [sys.executable, "-I", str(S3_TARGET), "--state", str(state), *files, "--bucket", BUCKET]
    port, log = state / "port", state / "access.log"
    argv = [*user, *argv, "--requester", f"{KEY_ID}={REQUESTER}"]
    env = clean_env(state, AWS_EC2_METADATA_DISABLED="true")
    with running(argv, ready=lambda: port.exists() and port.read_text() != "", log=state / "out", env=env):
        number = int(port.read_text())
        yield Target(
            host=S3_HOST,
            port=number,
            ca=authority.ca,
            token=f"{KEY_ID}:{secrets.token_hex(20)}",
            witness=log,
            access_log=log,
        )


def _program(name: str) -> str:
    path = find(name)
    assert path, f"no {name}: scripts/test installs it"
    return os.path.realpath(path)
