"""A place where an ordinary user runs Credgate: a home of its own, policies, secrets, and what the ledger says.

By root the commands run as the ordinary account; by an ordinary user, as themselves.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.jailscan import Scan
from tests.targets.served import Target

BIN = Path(sys.prefix) / "bin"
# A node that a root's home hides, or a shim of a version manager, is no command of an ordinary user's.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
TIMEOUT = 100.0
LIVING: list["Site"] = []  # those that are not closed yet, for tests/e2e/told.py, which also wants to know of a close
CLOSING: list[Callable[["Site"], object]] = []


class Watched(subprocess.Popen[str]):
    """A run whose output is looked through for the site's secrets once it was read."""

    def __init__(self, argv: Sequence[str], *, site: "Site", **kw: Any) -> None:
        super().__init__(argv, **kw)
        self._site = site

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002 - as print has it
        said = super().communicate(input, timeout)
        self._site.scan.printed(*said)
        self._site.note(self.args, self.returncode, said[1])
        return said


@dataclass(kw_only=True)
class Site:
    """Home, work tree and environment of one test's user."""

    home: Path
    uid: int
    gid: int
    env: dict[str, str] = field(default_factory=dict)
    scan: Scan = field(init=False)
    ended: list[tuple[str, int, str]] = field(default_factory=list, repr=False)  # words, status, what was said
    kept: dict[str, str] = field(default_factory=dict, repr=False)  # secrets as they were set last

    def __post_init__(self) -> None:
        self.scan = Scan(self.home)

    def note(self, argv: object, status: int, stderr: str | None) -> None:
        """Keep what explains a failure of this test."""
        words = " ".join(map(str, argv)) if isinstance(argv, list) else str(argv)
        self.ended.append((words.partition(f"{BIN}/")[2] or words, status, stderr or ""))

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def state(self) -> Path:
        return self.home / ".local/state/credgate"

    def as_user(self, argv: Sequence[str | Path]) -> list[str]:
        """The command line that runs `argv` as the site's user."""
        plain = [str(word) for word in argv]
        if os.geteuid() != 0:
            return plain
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--", *plain]

    def own(self, path: Path) -> Path:
        """Give a file or a tree to the site's user."""
        if os.geteuid() == 0:
            for each in [path, *(path.rglob("*") if path.is_dir() else [])]:
                os.chown(each, self.uid, self.gid, follow_symlinks=False)
        return path

    def write(self, name: str, text: str) -> Path:
        """A file below the home, its directories made."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        self.own(path)
        for parent in path.parents:
            if parent == self.home:
                break
            self.own(parent)
        return path

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8", "TERM": "dumb", **self.env, **(extra or {})}

    def credgate(
        self,
        *arguments: str | Path,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = TIMEOUT,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """The installed command, to its end."""
        if arguments[:1] == ("secret",):
            self.kept.clear()
        done = subprocess.run(
            self.as_user([BIN / "credgate", *arguments]),
            input=stdin,
            env=self.environment(env),
            cwd=cwd or self.work,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            pass_fds=pass_fds,
        )
        self.scan.printed(done.stdout, done.stderr)
        self.note(done.args, done.returncode, done.stderr)
        return done

    def run(
        self, *command: str | Path, flags: Sequence[str | Path] = (), **kw: Any
    ) -> subprocess.CompletedProcess[str]:
        """`credgate run -q` with the site's policy."""
        return self.credgate("run", "-q", "--policy", self.home / "policy/policy.toml", *flags, "--", *command, **kw)

    def start(self, *command: str | Path, flags: Sequence[str | Path] = (), **kw: Any) -> "subprocess.Popen[str]":
        """The same, not waited for; the caller ends it, and reads what it prints by communicate()."""
        argv = [BIN / "credgate", "run", "-q", "--policy", self.home / "policy/policy.toml", *flags, "--", *command]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kw}
        return Watched(self.as_user(argv), site=self, env=self.environment(), cwd=self.work, text=True, **pipes)

    def policy(self, text: str, ca: Path | None = None) -> Path:
        """Write the policy that run() uses; `ca` lies beside it as ca.pem."""
        if ca is not None:
            self.write("policy/ca.pem", ca.read_text())
        return self.write("policy/policy.toml", text)

    def secret(self, name: str, value: str, *, told: bool = False) -> None:
        """Keep a secret, which no jail may hold from now on; `told`: the test itself tells it to one."""
        if not told:
            self.scan.add(name, value)
        if self.kept.get(name) == value:
            return
        kept = dict(self.kept)
        done = self.credgate("secret", "set", name, stdin=value)
        assert done.returncode == 0, done.stderr
        self.kept = {**kept, name: value}

    def ledger(self, **wanted: object) -> list[dict[str, Any]]:
        """Ledger lines in order, those that have these values."""
        segments = sorted((self.state / "ledger").glob("seg-*.jsonl"))
        lines = [json.loads(line) for path in segments for line in path.read_text().splitlines()]
        return [line for line in lines if all(line.get(key) == value for key, value in wanted.items())]

    def python(self) -> str:
        """An interpreter that the jail can be given."""
        return str(BIN / "python")

    def close(self) -> None:
        if self in LIVING:
            LIVING.remove(self)
        for each in CLOSING:
            each(self)
        self.credgate("gateway", "stop")
        try:
            self.scan.close()
        finally:
            shutil.rmtree(self.home, onexc=_opened)


def _opened(again: Callable[[str], object], path: str, error: BaseException) -> None:
    """Remove what overlayfs left closed: its work directory has mode 0."""
    if not isinstance(error, PermissionError):
        raise error
    os.chmod(path, 0o700)
    if again is os.rmdir:
        os.rmdir(path)
    else:
        shutil.rmtree(path, onexc=_opened)


def make_site(uid: int, gid: int, below: str | None = None) -> Site:
    """A new home below /tmp or elsewhere, with an empty work tree and a policy that reaches nothing."""
    home = Path(tempfile.mkdtemp(prefix="credgate-e2e-", dir=below))
    site = Site(home=home, uid=uid, gid=gid)
    (home / "work").mkdir()
    site.own(home)
    site.policy("version = 1\n[role.dev]\n")
    LIVING.append(site)
    return site


def endpoint(target: Target, name: str = "api", *, extra: str = "", allow: str = "") -> str:
    """Policy text for a target on loopback: its name on 443, dialled at the port it listens on."""
    rule = allow or 'methods = ["GET", "POST", "PUT", "DELETE"]\npaths = ["/**"]'
    tls = "" if target.tls else "tls = false\n"
    return (
        f'[endpoint.{name}]\nhost = "{target.host}"\nport = {443 if target.tls else 80}\ndial_port = {target.port}\n'
        f'address = ["127.0.0.1"]\n{tls}'
        + ('ca = "ca.pem"\n' if target.tls else "")
        + f'{extra}\n[[endpoint.{name}.allow]]\nid = "all"\n{rule}\n'
    )


def bound(name: str = "api", *, place: str = "header:authorization", fmt: str = "Bearer {secret}") -> str:
    """Policy text: a secret of that name, injected on every request of the endpoint of that name."""
    return (
        f'[secret.{name}]\nsource = "keyring:credgate/{name}"\n'
        f'[binding.{name}]\nsecret = "{name}"\nendpoint = "{name}"\n'
        f'rules = ["all"]\nplace = "{place}"\nformat = "{fmt}"\n'
    )
