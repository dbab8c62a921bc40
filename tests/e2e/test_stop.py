"""`credgate gateway stop` returns when the daemon is gone: what it leaves on the disk is whole by then."""

import fcntl

from tests.e2e.site import Site


def test_stop_returns_when_the_ledger_is_closed(site: Site) -> None:
    for _ in range(3):
        assert site.run("true").returncode == 0
        with (site.state / "run/daemon.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                alive = True
            else:
                alive = False
            assert alive  # control: while it lives its lock is taken
        assert site.credgate("gateway", "stop").returncode == 0
        assert site.ledger()[-1]["ev"] == "final"
        with (site.state / "run/daemon.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        done = site.credgate("log", "verify", "--json")
        assert done.returncode == 0, done.stdout
