"""What a jail of the same user can use up: who meets it fails alone, and goes on."""

import asyncio
import errno
import os
import resource
import selectors
import socket
import subprocess
import sys
from typing import Any

import pytest

from credgate import hostlimits, peer
from credgate.commands import run
from jail import fdpass, keeper
from resolver import __main__ as resolver_main
from tests.jail.forked import attempt


def test_the_soft_limit_of_open_files_is_raised() -> None:
    def raised() -> object:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        return [hostlimits.raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE), hard]

    value = attempt(raised).value
    assert isinstance(value, list)
    assert len(set(value)) == 1


def in_flight(limit: int) -> object:
    """The errno of passing one descriptor with `limit` open files, while this user has 600 in flight."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = [fdpass.pair() for _ in range(10)]
    for mine, _ in kept:
        fdpass.send(mine, {}, [0] * 60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit or hard, hard))
    try:
        fdpass.send(kept[0][0], {}, [0])
    except OSError as error:
        return error.errno
    return 0


@pytest.mark.needs("root")
def test_who_has_the_higher_limit_passes_descriptors_still() -> None:
    assert attempt(lambda: in_flight(0), uid=54321).value == 0
    assert attempt(lambda: in_flight(256), uid=54321).value == errno.ETOOMANYREFS  # control


def test_what_runs_out_is_told_with_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_self: object) -> int:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    monkeypatch.setattr(run.Launch, "run", fails)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run.main(["--", "true"]) == 125
    said = capsys.readouterr().err
    assert said.startswith("error: credgate run: Too many references")
    assert "\nhint: a limit of your user" in said
    assert hostlimits.shown(OSError(errno.EIO, "x"), "y").code == "system_error"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ECONNABORTED])
def test_accepting_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class Listener(socket.socket):
        failures = 2

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(code, os.strerror(code))
            return super().accept()

    async def main() -> int:
        with Listener(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0credgate-test-{os.getpid()}")
            listener.listen()
            listener.setblocking(False)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(listener.getsockname())
                async with asyncio.timeout(60):
                    (await peer.accept(listener)).close()
            return listener.failures

    monkeypatch.setattr(peer, "PAUSE", 0.01)
    assert asyncio.run(main()) == 0


def test_accepting_ends_where_the_listener_is_at_fault() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            await peer.accept(sock)

    with pytest.raises(OSError, match="Invalid argument"):
        asyncio.run(main())


def test_no_loop_of_ours_needs_the_users_epoll_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[Any] = []

    def ran(main: Any, *, loop_factory: Any) -> None:
        main.cr_frame.f_locals["sock"].close()
        main.close()
        loops.append(loop_factory())

    monkeypatch.setattr(asyncio, "run", ran)
    monkeypatch.setattr(resolver_main, "confine", lambda: None)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert resolver_main.main(["resolver", str(theirs.detach())]) == 0
    mine.close()
    loops.append(asyncio.new_event_loop())  # control: what there would be otherwise
    assert [isinstance(loop._selector, selectors.PollSelector) for loop in loops] == [True, False]
    for loop in loops:
        loop.close()


def test_the_berths_keeper_has_no_loop_at_all() -> None:
    asked = "import sys; import {}; print('asyncio' in sys.modules)"
    said = [
        subprocess.run([sys.executable, "-c", asked.format(name)], capture_output=True, text=True, check=True).stdout
        for name in ("jail.keeper", "credgate.session")  # the second: what the question finds otherwise
    ]
    assert said == ["False\n", "True\n"]


def test_a_berth_that_can_not_be_passed_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = fdpass.pair()
    one = keeper.Keeper(theirs)
    dropped: list[int] = []
    monkeypatch.setattr(one, "_drop", dropped.append)
    really = fdpass.send

    def send(sock: socket.socket, body: fdpass.Json, fds: Any = ()) -> None:
        if fds:
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        really(sock, body, fds)

    monkeypatch.setattr(fdpass, "send", send)
    one._reply({"ok": True, "berth": 3}, [0])
    got = fdpass.recv(ours)
    assert got is not None
    assert got.body["code"] == "berth_not_passed"
    assert got.body["errno"] == errno.ETOOMANYREFS
    assert dropped == [3]
    ours.close()
    with pytest.raises(OSError, match="Broken pipe"):
        one._reply({"ok": True}, [])
    theirs.close()
