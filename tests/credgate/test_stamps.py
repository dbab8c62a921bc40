"""The denial that a request bears until it is judged: a lifted one is used again, one that was seen is not."""

import subprocess
import sys

from credgate.gateway.exchange import Exchange
from credgate.gateway.refusal import Refusal, deny, stamp
from rules.reasons import Reason


def test_a_lifted_stamp_is_the_next_one() -> None:
    exchange = Exchange(refusal=stamp())
    first = exchange.refusal
    exchange.pass_on()
    assert exchange.refusal is None
    assert stamp() is first
    assert stamp() is not first


def test_what_is_in_the_ledger_is_not_used_again() -> None:
    exchange = Exchange(refusal=stamp(), finished=True)
    first = exchange.refusal
    assert first is not None
    exchange.pass_on()
    assert exchange.refusal is None
    assert first.request_id not in {stamp().request_id for _ in range(100)}


def test_another_denial_is_no_stamp() -> None:
    exchange = Exchange(refusal=Refusal(deny=deny(Reason.REVOKED)))
    exchange.pass_on()
    assert stamp().deny.reason is Reason.INTERNAL


FORKED = """
import os
from credgate.gateway import refusal
refusal.lift(refusal.stamp())
assert refusal._unused
pid = os.fork()
if not pid:
    os._exit(len(refusal._unused))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_has_no_stamp_of_its_parent() -> None:
    assert subprocess.run([sys.executable, "-I", "-c", FORKED], check=False).returncode == 0
