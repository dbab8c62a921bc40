"""`gateway reload`: a new policy counts from the next request on, whole or not at all; what is open of the old ends."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from credgate import policyfile, policytrust
from credgate.policyfile import Origin
from credgate.rights import reload
from credgate.runs import Run
from rules.intersect import child_policy
from rules.load import load_policy
from tests.credgate.gateway_rig import POLICY, Rig, echo, rig
from tests.credgate.live_rig import Live
from tests.credgate.test_revoke import ended, keep_alive, streaming

ROLE = "[role.dev]\n"
NARROW = ('paths = ["/free/*"]', 'paths = ["/other/*"]')


class World:
    """A served run whose policy lies in a file."""

    def __init__(self, r: Rig, live: Live, text: str) -> None:
        self.r, self.live, self.text = r, live, text
        self.sessions: Any = {r.run.id: live}
        self.file = live.policy_file

    def write(self, *changes: tuple[str, str]) -> None:
        text = self.text
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        self.file.write_text(text)
        self.file.chmod(0o600)

    async def reload(self, **kw: Any) -> dict[str, Any]:
        answer: Any = await reload(self.sessions, **kw)
        (row,) = [row for row in answer["runs"] if row["run"] == "run-1"]
        return dict(row)

    async def code(self, path: str) -> str:
        client = await self.r.tunnel()
        answer = await client.get(path, f"api.good.test:{self.r.direct}")
        client.close()
        return "" if answer.status == 200 else answer.code


@asynccontextmanager
async def world(tmp: Path, policy: str = POLICY) -> AsyncIterator[World]:
    async with rig(tmp, policy=policy) as r:
        ports = {"good": r.good.port, "plain": r.plain.port, "h2": r.good.port}
        text = policy.format(ca=r.extra["ca"].ca, direct=r.direct, cleartext=r.cleartext, proxy=r.proxy, **ports)
        (tmp / "tree").mkdir()
        live = Live(r, r.run, tmp)
        made = World(r, live, text)
        made.write()
        try:
            yield made
        finally:
            for session in made.sessions.values():
                session.close()


NOWHERE = Path("/nonexistent/ceiling.toml")


def test_a_new_policy_counts_at_once_and_the_records_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            before = w.r.run.policy.sha256
            assert [await w.code("/free/a"), await w.code("/other/a")] == ["", "no_rule"]
            w.write(NARROW)
            row = await w.reload(ceiling=NOWHERE)
            assert (row["changed"], row["later"]) == (True, [])
            assert [await w.code("/free/a"), await w.code("/other/a")] == ["no_rule", ""]
            assert w.r.run.policy.sha256 == row["policy_sha256"] != before
            assert [line["policy_sha256"] for line in w.r.records("intent")] == [before, row["policy_sha256"]]
            (line,) = w.r.records("grant")
            assert (line["reason"], line["policy_sha256"]) == ("reloaded", row["policy_sha256"])
            assert before in line["detail"]
            ((op, run, table),) = w.live.parts.resolver.orders
            assert (op, run, table.gateway_ip) == ("table", "run-1", "10.0.0.1")
            assert w.r.run.generation == 1

    asyncio.run(main())


@pytest.mark.parametrize("make", [keep_alive, streaming])
def test_what_the_old_policy_opened_ends(make: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            client = await make(w.r, "/free/a")
            w.write(NARROW)
            await w.reload(ceiling=NOWHERE)
            assert await ended(client) < 1.0
            w.r.good.script = echo
            assert await w.code("/free/a") == "no_rule"

    asyncio.run(main())


def test_the_same_policy_changes_nothing_and_ends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            client = await keep_alive(w.r)
            assert await w.reload(ceiling=NOWHERE) == {"run": "run-1", "changed": False}
            assert (await client.get("/ok/a", f"api.good.test:{w.r.direct}")).status == 200
            assert w.r.records("grant", "alarm") == []

    asyncio.run(main())


def test_what_was_revoked_is_not_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            w.r.run.revoked_bindings.add("token")
            w.write(NARROW)
            assert (await w.reload(ceiling=NOWHERE))["changed"]
            assert [await w.code("/ok/a"), await w.code("/other/a")] == ["revoked", ""]
            w.r.run.revoked = True
            w.write()
            assert await w.reload(ceiling=NOWHERE) == {"run": "run-1", "changed": False}
            assert await w.code("/free/a") == "revoked"
            assert len(w.r.records("grant")) == 1

    asyncio.run(main())


FAULTS = {
    "not TOML": lambda w: w.file.write_text("version = \n"),
    "unknown key": lambda w: w.file.write_text(w.text + "\n[polcy]\n"),
    "the role is gone": lambda w: w.file.write_text(
        w.text.replace("[role.dev]", "[role.other]").replace('"dev"', '"other"')
    ),
    "the file is gone": lambda w: w.file.unlink(),
    "others may write it": lambda w: (w.file.write_text(w.text + "\n# changed\n"), w.file.chmod(0o666)),
    "a link to it": lambda w: os.link(w.file, w.file.with_name("second")) or w.file.write_text(w.text + "\n# x\n"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_policy_that_can_not_be_had_keeps_the_old_one_and_alarms(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            if name == "a link to it" and os.geteuid() == 0:
                pytest.skip("a file of root's may have several names")
            before = w.r.run.policy
            client = await keep_alive(w.r)
            FAULTS[name](w)
            row = await w.reload(ceiling=NOWHERE)
            assert row["changed"] is False
            assert row["error"]
            assert w.r.run.policy is before
            assert (await client.get("/free/a", f"api.good.test:{w.r.direct}")).status == 200
            (line,) = w.r.records("alarm")
            assert (line["reason"], line["verdict"], line["detail"]) == ("reload_failed", "notify", row["error"])
            assert [said["kind"] for said in w.live.told()] == ["reload_failed"]
            assert w.live.parts.resolver.orders == []

    asyncio.run(main())


def test_a_policy_above_the_ceiling_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policyfile, "ROOT", frozenset({0, os.geteuid()}))

    async def main() -> None:
        async with world(tmp_path) as w:
            ceiling = tmp_path / "ceiling.toml"
            ceiling.write_text(w.text)
            ceiling.chmod(0o600)
            w.write(('paths = ["/free/*"]', 'paths = ["/**"]'))
            row = await w.reload(ceiling=ceiling)
            assert "covers the rule" in row["error"]
            assert await w.code("/nowhere") == "no_rule"
            assert (await w.reload(ceiling=NOWHERE))["changed"]  # the control: without a ceiling it counts
            assert await w.code("/nowhere") == ""

    asyncio.run(main())


def test_a_policy_in_a_tree_that_the_jail_writes_counts_only_while_it_is_trusted(tmp_path: Path) -> None:
    """Also where the new policy calls the tree read-only: the jail that is there can write it."""

    async def main() -> None:
        narrowing = '[endpoint.api]\nhost = "api.good.test"\nport = {p}\n[[endpoint.api.allow]]\nid = "a"\n' + (
            'methods = ["GET"]\npaths = ["/{path}"]\n[role.dev]\nendpoints = ["api"]\nworkdir = "{workdir}"\n'
        )
        async with world(tmp_path) as w:
            w.file = tmp_path / "tree/credgate.toml"
            w.live.spec.workdir_write = True

            def put(path: str, workdir: str) -> None:
                w.text = "version = 1\n" + narrowing.format(p=w.r.direct, path=path, workdir=workdir)
                w.write()

            put("a", "write")
            policytrust.trust(w.file, w.file.read_bytes(), tmp_path / "state")
            w.live.chosen = replace(w.live.chosen, path=w.file, origin=Origin.FLAG)
            assert (await w.reload(ceiling=NOWHERE))["changed"]
            for workdir in ("write", "read"):
                put("b", workdir)
                row = await w.reload(ceiling=NOWHERE)
                assert row["code"] == "policy_untrusted"
            policytrust.trust(w.file, w.file.read_bytes(), tmp_path / "state")
            assert (await w.reload(ceiling=NOWHERE))["changed"]

    asyncio.run(main())


# The jail's shape stays


@pytest.mark.parametrize(
    ("change", "later"),
    [
        ((ROLE, ROLE + 'workdir = "write"\n'), ["workdir"]),
        ((ROLE, ROLE + 'tools = ["/opt/tools"]\nread = ["/srv/x"]\nenv = ["TERM"]\n'), ["tools", "read", "env"]),
        ((ROLE, ROLE + "allow_debug = true\nallow_userns = true\n"), ["allow_debug", "allow_userns"]),
        ((ROLE, ROLE + 'deadline = "1h"\nlimits = { processes = 9 }\n'), ["deadline", "limits"]),
        ((ROLE, ROLE + 'children = ["dev"]\n'), ["children"]),
        ((ROLE, ROLE + 'on_alarm = "kill"\nbudget = { requests = 9 }\n'), []),
        (('shape = "ghp_{36}"', 'shape = "ghq_{36}"'), ["placeholder of swap"]),
        (('host = "h2.good.test"\n', 'host = "h2.good.test"\n#'), ["port"]),
    ],
)
def test_what_the_jail_was_built_with_waits_for_the_next_run(
    change: tuple[str, str], later: list[str], tmp_path: Path
) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            old = w.r.run.role_rule
            if later == ["port"]:
                w.live.berth.tcp.pop(w.r.direct).close()
            w.write(change)
            row = await w.reload(ceiling=NOWHERE)
            assert row["later"] == later
            new = w.r.run.role_rule
            assert (new.workdir, new.tools, new.read, new.env) == (old.workdir, old.tools, old.read, old.env)
            assert (new.switches(), new.deadline, new.limits) == (old.switches(), old.deadline, old.limits)
            assert w.live.chosen.policy is w.r.run.policy

    asyncio.run(main())


def test_bounds_of_the_new_policy_count_what_was_spent_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            assert [await w.code("/ok/a"), await w.code("/ok/a")] == ["", ""]
            token = 'rules = ["ok", "query", "slash"]\n'
            w.write((token, token + "max_uses = 3\n"))
            await w.reload(ceiling=NOWHERE)
            assert [await w.code("/ok/a"), await w.code("/ok/a")] == ["", "uses_exhausted"]

    asyncio.run(main())


# Children: within the parent's new policy, or without any rights

FAMILY = POLICY.replace(ROLE, ROLE + 'children = ["kid"]\n') + '[role.kid]\nendpoints = ["good"]\n'


def family(w: World) -> tuple[Run, Live]:
    policy = child_policy(w.r.run.policy, "dev", "kid")
    child = Run(id="run-2", policy=policy, role="kid", gateway_ip="", proxy_port=0, proof="p")
    w.r.run.adopt(child)
    below = Live(w.r, child, w.live.policy_file.parent, w.live)
    w.sessions = {"run-2": below, "run-1": w.live}  # whatever the order
    return child, below


def test_a_child_gets_its_part_of_the_parents_new_policy(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, FAMILY) as w:
            child, below = family(w)
            w.write(NARROW)
            answer: Any = await reload(w.sessions, NOWHERE)
            assert [(row["run"], row["changed"]) for row in answer["runs"]] == [("run-1", True), ("run-2", True)]
            assert child.policy.sha256 == w.r.run.policy.sha256
            assert child.role_rule.within
            assert below.parts.resolver.orders[0][:2] == ("table", "run-2")

    asyncio.run(main())


@pytest.mark.parametrize("change", [('children = ["kid"]\n', ""), ("[role.kid]", "[role.nephew]")])
def test_a_child_whose_parent_may_no_longer_have_it_loses_its_rights(change: tuple[str, str], tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, FAMILY) as w:
            child, below = family(w)
            w.write(change, *([('["kid"]', '["nephew"]')] if "nephew" in change[1] else []))
            answer: Any = await reload(w.sessions, NOWHERE)
            rows = {row["run"]: row for row in answer["runs"]}
            assert rows["run-1"]["changed"]
            assert rows["run-2"]["code"] == "role_unknown"
            assert child.revoked
            assert not w.r.run.revoked
            assert ("revoke", "run-2", None) in below.parts.resolver.orders

    asyncio.run(main())


def test_the_text_of_the_rig_is_the_policy_of_its_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            assert load_policy(w.text.encode(), packs={}, base_dir="/").sha256 == w.r.run.policy.sha256

    asyncio.run(main())
