"""From a refusal to the rule that allows it: the end of a run, `run --learn`, `policy learn`, and the run after."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.e2e.site import Site, bound, endpoint
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp", "curl")

ASK = (
    "for n in 1 2 3; do curl -sS -o /dev/null -w '%{{http_code}} ' https://{host}/items/$n?page=secretvalue; done; "
    "curl -sS -o /dev/null https://new.example.org/feed; curl -sS -o /dev/null http://metadata.google.internal/x; "
    "curl -sS -o /dev/null https://{host}/'**'; curl -sS -o /dev/null 'https://{host}/flood?n=[1-60]'; true"
)

MEND = "credgate secret set api"


def credgate_run(site: Site, policy: Path, *flags: str, script: str) -> tuple[str, str]:
    done = site.credgate("run", "--policy", policy, *flags, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_refusal_becomes_a_rule(site: Site, https_target: Target, processes: str) -> None:
    started = site.credgate("gateway", "start", "--workers", processes)
    assert started.returncode == 0, started.stderr
    site.secret("api", https_target.token)
    narrow = 'methods = ["GET"]\npaths = ["/private/*"]'
    text = f'version = 1\n{endpoint(https_target, allow=narrow)}{bound()}[role.dev]\nbindings = ["api"]\n'
    policy, ask = site.policy(text, https_target.ca), ASK.format(host=https_target.host)

    out, err = credgate_run(site, policy, script=ask)
    run = re.search(r"run (r[0-9a-f]{12})", err)
    assert run is not None
    assert out == "403 403 403 "
    assert "0 requests allowed, 66 refused" in err
    assert f"refused 60 times: GET https://{https_target.host}/flood?n (no_rule), would be allowed by\n" in err
    counted = [line.get("count", 1) for line in site.ledger(ev="deny", run=run[1], path="/flood")]
    assert len(counted) < 20  # most of them stand in one line
    assert sum(counted) == 60
    assert f"refused 3 times: GET https://{https_target.host}/items/*?page (no_rule), would be allowed by\n" in err
    assert '    paths = ["/items/*"]\n    query = { allow = ["page"] }\n' in err
    assert "(metadata): metadata names and addresses stay closed" in err
    assert '(no_rule): its path holds "*"' in err
    assert "secretvalue" not in err
    assert f"credgate policy learn {run[1]}" in err

    quiet = site.credgate("run", "-q", "--policy", policy, "--", "sh", "-c", ask)
    assert "refused" not in quiet.stderr  # the control for -q

    found = site.credgate("policy", "learn", run[1], "--policy", policy, "--json")
    proposals = json.loads(found.stdout)["proposals"]
    assert [(p["endpoint"], p["paths"], p["count"]) for p in proposals] == [
        ("api", ["/flood"], 60), ("api", ["/items/*"], 3), ("new-example-org", ["/feed"], 1)
    ]  # fmt: skip
    assert policy.read_text() == text

    _, learned = credgate_run(site, policy, "--learn", script=ask)
    piece = learned[learned.index("# run r") :]
    assert list(tomllib.loads(piece)["endpoint"]) == ["api", "new-example-org"]
    assert policy.read_text() == text
    assert https_target.seen() == []  # nothing was allowed beyond the policy

    written = site.credgate("policy", "learn", run[1], "--write", policy, "--only", "2")
    assert written.returncode == 0, written.stderr
    out, err = credgate_run(site, policy, script=ask)
    assert "403" not in out
    assert "3 requests allowed, 63 refused" in err
    seen = https_target.seen()
    assert [request.authorization for request in seen] == ["", "", ""]  # no secret goes with a learned rule


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_secret_that_the_target_refused_is_named(site: Site, https_target: Target, processes: str) -> None:
    """In the summary, with --learn too, and in the exit line; of the right one, and without one, nothing is said."""
    started = site.credgate("gateway", "start", "--workers", processes)
    assert started.returncode == 0, started.stderr
    host = https_target.host
    ask = f"curl -sS https://{host}/private/[1-3] https://{host}/status/403"
    text = f'version = 1\n{endpoint(https_target)}{bound()}[role.dev]\nbindings = ["api"]\n'
    policy = site.policy(text, https_target.ca)
    site.secret("api", https_target.token)
    _, err = credgate_run(site, policy, script=ask)
    assert "refused the secret" not in err
    site.secret("api", "wrong-0123456789abcdef")
    for flags in ((), ("--learn",)):
        _, err = credgate_run(site, policy, *flags, script=ask)
        assert f"{host} refused the secret api 3 times (401): it is wrong or has expired: {MEND}\n" in err
    reader, writer = os.pipe()
    done = site.run("sh", "-c", ask, flags=["--status-fd", str(writer)], pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    assert (done.returncode, done.stderr) == (0, "")  # the control for -q
    seen = [{"secret": "api", "host": host, "status": status, "count": count} for status, count in ((401, 3), (403, 1))]
    assert told[-1]["turned_away"] == seen


def test_a_run_that_was_refused_nothing_says_nothing_of_it(site: Site) -> None:
    _, err = credgate_run(site, site.policy("version = 1\n[role.dev]\n"), script="true")
    assert "0 requests allowed, 0 refused" in err
    assert "would be allowed by" not in err
    assert "policy learn" not in err
    assert os.linesep.join(err.splitlines()).count("credgate:") == 2
