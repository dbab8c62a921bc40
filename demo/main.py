"""The demo: one honest run, end to end, on a target of our own, and what happens when the agent misbehaves.

Exit status 0 only if every step came out as it must. Started by scripts/demo, which does the set-up.
"""

import collections
import json
import os
import pwd
import secrets
import shutil
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # -I leaves it out, and the world lies beside this file

import world  # noqa: E402

ACCOUNT = "credgate-demo"
POLICY = """\
version = 1

[secret.demo]                       # the value is in the keyring, never here
source = "keyring:credgate/demo"

[endpoint.demo-api]
host = "api.demo.test"
address = ["127.0.0.1"]             # the demo's target; nothing is looked up
ca = "target-ca.pem"

[[endpoint.demo-api.allow]]
id = "issues"
methods = ["GET", "POST"]
paths = ["/v1/issues"]

[binding.demo]
secret = "demo"
endpoint = "demo-api"
rules = ["issues"]
place = "header:authorization"
format = "Bearer {secret}"
mode = "placeholder"                # the jail gets a decoy of the same shape
placeholder = { env = "DEMO_TOKEN", shape = "demo_{36}" }

[role.demo]
bindings = ["demo"]
"""
GREEN, RED, DIM, PLAIN = ("\033[32m", "\033[31m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("",) * 4


class Demo:
    """The steps, and whether each came out as it must."""

    def __init__(self, home: Path) -> None:
        self.home, self.work = home, home / "work"
        self.failed = 0
        self.reports = Path(tempfile.mkdtemp(prefix="credgate-demo-report-"))  # stays: it is there to be looked at
        self.token = "demo_" + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(36))
        self.program = str(Path(sys.prefix) / "bin" / "credgate")
        self.python = str(Path(sys.prefix) / "bin" / "python")
        self.env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}

    def credgate(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the installed command; its output is the caller's to judge."""
        command = [self.program, *arguments]
        return subprocess.run(
            command, input=stdin, env=self.env, cwd=self.work, capture_output=True, text=True, timeout=60, check=False
        )

    def show(self, what: str, seen: str, *, right: bool) -> None:
        """One row of the table."""
        self.failed += not right
        mark = f"{GREEN}ok{PLAIN}  " if right else f"{RED}FAIL{PLAIN}"
        print(f"  {mark}  {what:<46} {seen}", flush=True)

    def heading(self, text: str) -> None:
        """A line between the parts."""
        print(f"\n{text}", flush=True)

    def build(self) -> None:
        """The world, the policy and the secret."""
        world.enter()
        world.use_resolver(self.home)
        self.resolver = world.Resolver()
        self.target = world.Target(self.home, self.token)
        self.metadata, self.elsewhere = world.Bait(world.METADATA), world.Bait(world.ELSEWHERE)
        self.work.mkdir()
        shutil.copy(HERE / "agent.py", self.work / "agent.py")
        config = self.home / "policy"
        config.mkdir(mode=0o700)
        self.policy = config / "policy.toml"
        self.policy.write_text(POLICY)
        shutil.copy(self.target.ca, config / "target-ca.pem")

    def prepare(self) -> None:
        """Security team: a policy that lints, a secret that no file of the agent's holds."""
        self.heading("1. The security team writes a policy and stores the secret")
        check = self.credgate("policy", "check", str(self.policy))
        self.show(
            "credgate policy check", "no faults" if check.returncode == 0 else check.stderr, right=not check.returncode
        )
        stored = self.credgate("secret", "set", "demo", stdin=self.token)
        self.show(
            "credgate secret set demo",
            "stored, not printed",
            right=not stored.returncode and self.token not in stored.stdout,
        )
        explain = ("policy", "explain", "--policy", str(self.policy), "--role", "demo", "--json")
        said = json.loads(self.credgate(*explain, "GET", f"https://{world.HOST}/v1/issues").stdout)
        self.show(
            "credgate policy explain GET /v1/issues",
            f"{said['verdict']} by {said['rule']}",
            right=said["verdict"] == "allow",
        )

    def run(self) -> dict[str, dict[str, object]]:
        """The developer starts the agent."""
        started = time.monotonic()
        run = self.credgate("run", "--policy", str(self.policy), "--role", "demo", "--", self.python, "agent.py")
        self.heading(f"2. The developer runs the agent: credgate run -- agent   ({time.monotonic() - started:.1f} s)")
        print(f"  {DIM}{run.stderr.strip()}{PLAIN}")
        self.show("the agent ended by itself", f"exit status {run.returncode}", right=run.returncode == 0)
        lines = [json.loads(line) for line in run.stdout.splitlines()]
        said: dict[str, dict[str, object]] = collections.defaultdict(
            dict
        )  # a step that the agent never reached: nothing
        said.update({line.pop("step"): line for line in lines})
        return said

    def judge_job(self, said: dict[str, dict[str, object]]) -> None:
        """(a) The job is done, with the real credential."""
        self.heading("3. The job is done, with a credential that the agent never had")
        self.show(
            "agent reads issues",
            f"{said['read'].get('status')} {said['read'].get('message', '')}",
            right=said["read"].get("status") == 200,
        )
        self.show("agent writes an issue", f"{said['write'].get('status')}", right=said["write"].get("status") == 201)
        arrived = self.target.credentials.count(self.target.expected)
        self.show(
            "target: requests with the real credential",
            f"{arrived} of {len(self.target.credentials)}",
            right=arrived == 2,
        )

    def judge_search(self, said: dict[str, dict[str, object]]) -> None:
        """(b) The search finds the decoy at most."""
        found = said["search"].get("tokens")
        found = found if isinstance(found, dict) else {}
        self.heading("4. The agent looks for the secret: environment, files, /proc")
        decoys = [where for token, where in found.items() if token != self.token]
        self.show(
            "found inside the jail",
            f"{len(found)} token: a decoy, in {', '.join(decoys)}",
            right=self.token not in found and bool(found),
        )
        argv = [self.python, str(self.work / "agent.py"), "search"]
        env = {**self.env, "DEMO_TOKEN": self.token}
        control = subprocess.run(argv, env=env, cwd=self.work, capture_output=True, text=True, timeout=60, check=True)
        outside = json.loads(control.stdout)["tokens"]
        self.show("the same search without Credgate", "finds the real one", right=self.token in outside)

    def judge_refusals(self, said: dict[str, dict[str, object]]) -> None:
        """(c) Everything else is refused, each with the reason."""
        self.heading("5. The agent tries everything else")
        expected = {
            "other path": ("DELETE on the allowed host", "no_rule"),
            "other host": ("another host", "host_unlisted"),
            "address": ("an address instead of a name", "address_literal"),
            "metadata": ("the cloud's metadata service", "metadata"),
            "carried": ("a name that carries data", "host_unlisted"),
        }
        for step, (what, code) in expected.items():
            answer = said[step]
            self.show(
                what,
                f"{answer.get('status')} {answer.get('code')}: {str(answer.get('message')).partition('. ')[0]}",
                right=answer.get("code") == code,
            )
        self.show(
            "an address, dialled straight",
            str(said["dial"].get("errno")),
            right=said["dial"].get("errno") == "ENETUNREACH",
        )

    def judge_names(self, said: dict[str, dict[str, object]]) -> None:
        """Nothing left the machine by a name; the controls show that it would have."""
        self.heading("6. Nothing left by another way (each with its control, outside the jail)")
        inside = [name for name in self.resolver.names if "collector" in name]
        answer = said["look up"].get("address")
        self.show(
            "look-up of that name, inside",
            f"answered by the gateway ({answer}); forwarded: {len(inside)}",
            right=not inside and bool(answer),
        )
        outside = "import socket\ntry: socket.getaddrinfo('control.collector.demo.test', 443)\nexcept OSError: pass"
        subprocess.run([self.python, "-c", outside], env=self.env, timeout=60, check=True)
        self.show(
            "the same look-up outside",
            "reaches the resolver",
            right="control.collector.demo.test" in self.resolver.names,
        )
        reached = self.metadata.reached + self.elsewhere.reached
        self.show("metadata service and server, from inside", f"reached {reached} times", right=reached == 0)
        fetch = (
            "import urllib.request as u; [u.urlopen(f'http://{a}/').read() for a in ('169.254.169.254', '192.0.2.10')]"
        )
        subprocess.run([self.python, "-c", fetch], env=self.env, timeout=60, check=True)
        reached = self.metadata.reached + self.elsewhere.reached
        self.show("the same addresses outside", f"reached {reached} times", right=reached == 2)

    def judge_ledger(self) -> None:
        """The auditor: the ledger is whole, and it says what the target's own log says."""
        self.heading("7. The auditor holds the ledger against the target's own access log")
        verify = self.credgate("log", "verify")
        self.show(
            "credgate log verify",
            next((line for line in verify.stdout.splitlines() if line.startswith("state")), verify.stderr),
            right=verify.returncode == 0,
        )
        text = self.credgate("log", "show", "--json").stdout
        records = json.loads(text)["records"]
        denied = [r for r in records if r["ev"] == "deny"]
        self.show("refusals in the ledger", f"{len(denied)}", right=len(denied) >= 5)
        self.show("the secret's value in the ledger", "absent", right=self.token not in text)
        tags = [r["ua_tag"] for r in records if r["ev"] == "intent"]
        seen = [tag for tag in tags if tag in self.target.access_log.read_text()]
        self.show("requests marked in the target's log", ", ".join(seen), right=seen == tags and len(tags) == 2)
        status, said, _ = self.reconcile("honest")
        self.show("credgate reconcile", f"exit {status}: {said}", right=status == 0)

    def judge_around(self) -> None:
        """A call with the real credential that the gateway never saw is in the target's log alone, and is found."""
        self.heading("8. Somebody uses the credential without the gateway")
        code = (
            "import os, ssl, urllib.request as u\n"
            "h = {'Authorization': 'Bearer ' + os.environ['T']}\n"
            f"r = u.Request('https://{world.HOST}/v1/issues', headers=h)\n"
            f"print(u.urlopen(r, context=ssl.create_default_context(cafile='{self.target.ca}')).status)"
        )
        hosts = self.home / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {world.HOST}\n")
        world.bind(hosts, "/etc/hosts")
        env = {**self.env, "T": self.token}
        argv = [self.python, "-I", "-c", code]
        call = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        self.show("the call", f"{call.stdout.strip()}{call.stderr.strip()[-60:]}", right=call.stdout.strip() == "200")
        status, said, findings = self.reconcile("around")
        self.show("credgate reconcile", f"exit {status}: {said}", right=status == 3)
        for finding in findings:
            record = finding["target"]
            what = f"{finding['class']}: {record['method']} {record['path']}"
            line = self.target.access_log.read_text().splitlines()[record["record"] - 1]
            right = finding["class"] == "target-only" and "credgate/" not in line and len(findings) == 1
            self.show(what, f"line {record['record']} of {record['file']}", right=right)
        self.show("findings", f"{len(findings)}", right=len(findings) == 1)

    def reconcile(self, name: str) -> tuple[int, str, list[dict[str, Any]]]:
        """`credgate reconcile` of the ledger and the target's log: exit status, what it says, findings."""
        report = self.reports / name
        source = f"nginx@{world.HOST}={self.target.access_log}"
        done = self.credgate("reconcile", "--source", source, "--report", str(report), "--json")
        summary = json.loads(done.stdout) if done.stdout else {}
        print(f"  {DIM}report: {report / 'report.html'}{PLAIN}")
        words = summary["verdict"]["words"] if summary else done.stderr
        return done.returncode, words, summary.get("findings", [])

    def stop(self) -> None:
        """The daemon belongs to this demo alone: its home goes."""
        if self.work.is_dir():
            self.credgate("gateway", "stop")


def become_account() -> None:
    """Run by root: an ordinary account for the run, made where it is missing, and everything below is its own."""
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", ACCOUNT], check=True)
        entry = pwd.getpwnam(ACCOUNT)
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    print(f"run by root: the demo goes on as the account {ACCOUNT}", flush=True)
    # Anew, for a process that was root's may not write its own uid_map (it is not dumpable).
    os.execv(sys.executable, [sys.executable, "-I", str(HERE / "main.py")])


def main() -> int:
    """All steps; 0 only if each came out as it must."""
    started = time.monotonic()
    if os.geteuid() == 0:
        become_account()
    home = Path(tempfile.mkdtemp(prefix="credgate-demo-"))
    demo = Demo(home)
    try:
        demo.build()
        demo.prepare()
        said = demo.run()
        demo.judge_job(said)
        demo.judge_search(said)
        demo.judge_refusals(said)
        demo.judge_names(said)
        demo.judge_ledger()
        demo.judge_around()
    finally:
        demo.stop()
        shutil.rmtree(home)
    took = time.monotonic() - started
    verdict = (
        f"{GREEN}every step came out as it must{PLAIN}"
        if not demo.failed
        else f"{RED}{demo.failed} steps failed{PLAIN}"
    )
    print(f"\n{verdict}   ({took:.1f} s)")
    return 1 if demo.failed else 0


if __name__ == "__main__":
    sys.exit(main())
