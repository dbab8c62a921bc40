"""One row, measured: a run that must arrive, one that must be refused soon, one without any variable."""

import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from credgate.prepare import CHECK_NAME
from tests.clients.rows import SOURCES, Row
from tests.clients.services import Service
from tests.e2e.site import PATH, Site

BASE = os.path.realpath(sys.base_prefix)  # what a virtual environment's interpreter links to
HOME = Path(os.environ.get("CREDGATE_TEST_MATRIX", "/nonexistent"))
SENTENCE = "does not list this host"
KEPT = ("HOME", "PATH", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SOON = 10.0  # seconds on a busy machine


@dataclass(slots=True, kw_only=True)
class Result:
    """What is printed. `why`: each way in which it is not as the row says."""

    client: str
    version: str = ""
    arrived: bool = False
    via: tuple[str, ...] = ()
    bare: bool = False
    refused: str = ""
    seconds: float = 0.0  # from the first refusal to the end
    inside: bool = False
    lacks: str = ""
    why: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "via": list(self.via), "green": not self.why}


def _programs() -> str:
    return ":".join([str(HOME / part) for part in ("bin", "node24/bin", "python/bin")] + [PATH])


def _program(name: str) -> str:
    own = HOME / name / "bin/node"  # node20, node24
    return str(own) if own.exists() else shutil.which(name, path=_programs()) or name


def _words(row: Row, host: str) -> list[str]:
    filled = (word.replace("{host}", host).replace("{bucket}", host.partition(".")[0]) for word in row.argv[1:])
    return [_program(row.argv[0]), *filled]


def version(row: Row, site: Site) -> str:
    """The first number in what the client says of itself, asked on the host."""
    argv = [_program(row.version[0]), *row.version[1:]]
    env = {**site.environment(), "PATH": _programs()}
    done = subprocess.run(site.as_user(argv), env=env, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"\d+\.\d+(?:\.\d+)*", done.stdout + done.stderr)
    return found[0] if found else ""


def measure(row: Row, site: Site, service: Service) -> Result:
    """Run it three times in a jail."""
    site.env["PATH"] = _programs()
    site.policy(service.policy, service.ca)
    if service.name not in site.scan.secrets:
        site.secret(service.name, service.token)
    result = Result(client=row.name, version=version(row, site), lacks=row.lacks)
    _allowed(row, site, service, result)
    _refused(row, site, service, result)
    _without(row, site, service, result)
    result.inside = bool(site.scan.found)
    if result.inside:
        result.why.append(f"a secret was inside: {site.scan.found}")
    return result


def _fresh(site: Site, service: Service) -> int:
    service.forget()
    for left in ("wheels", "installed", "node_modules", "app"):
        subprocess.run(["rm", "-rf", "--", str(site.work / left)], check=True)
    for name in ("package.json", "package-lock.json", "pnpm-lock.yaml"):
        (site.work / name).unlink(missing_ok=True)
    site.write("work/Get.java", (SOURCES / "Get.java").read_text())
    return len(site.ledger())


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit status {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"


def _allowed(row: Row, site: Site, service: Service, result: Result) -> None:
    before = _fresh(site, service)
    done = site.run(*_words(row, service.host))
    seen = service.arrived(1)
    result.arrived = seen == {service.expected} and done.returncode == 0
    lines = site.ledger()[before:]
    result.via = tuple(sorted({line["via"] for line in lines if line["ev"] == "intent"}))
    if not result.arrived:
        result.why.append(f"the target saw {seen}, expected {service.expected}; {_end(done)}")
    if result.via != row.via:
        result.why.append(f"came by {result.via}, expected {row.via}")
    if service.token in done.stdout + done.stderr:
        result.why.append("the secret is in what it printed")


def _refused(row: Row, site: Site, service: Service, result: Result) -> None:
    before = _fresh(site, service)
    begun = time.time()
    done = site.run(*_words(row, service.refused))
    ended = time.time()
    said = done.stdout + done.stderr
    told = {"sentence": (SENTENCE, "To pass: "), "status": ("403", "Forbidden")}
    result.refused = next((kind for kind, words in told.items() if any(word in said for word in words)), "nothing")
    denied = [line for line in site.ledger()[before:] if line["ev"] == "deny" and line["host"] != CHECK_NAME]
    told_at = [datetime.datetime.fromisoformat(line["ts"]).timestamp() for line in denied] or [begun]
    result.seconds = round(ended - told_at[0], 1)
    if result.refused != row.told or result.seconds > SOON or service.arrived(0):
        result.why.append(f"refused: {result.refused} after {result.seconds} s, expected {row.told}; {_end(done)}")
    asked = {(line["host"], line["reason"]) for line in denied}
    if asked != (set() if row.unasked else {(service.refused, "host_unlisted")}):
        result.why.append(f"the ledger says {denied}")


def _without(row: Row, site: Site, service: Service, result: Result) -> None:
    """The control: with a home, a path and the decoys alone."""
    _fresh(site, service)
    site.policy(service.policy.replace("bindings =", f'tools = ["{HOME}", "{BASE}"]\nbindings ='), service.ca)
    kept = " ".join(f'{name}="${name}"' for name in KEPT)
    done = site.run("sh", "-c", f'exec env -i {kept} "$@"', "sh", *_words(row, service.host))
    result.bare = done.returncode == 0 and service.arrived(1) == {service.expected}
    if row.bare is not None and result.bare != row.bare:
        result.why.append(f"without variables: {result.bare}, expected {row.bare}; {_end(done)}")
