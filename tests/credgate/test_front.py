"""The front of `credgate run`: it asks as Python does, or leaves it to Python, and believes no message that is none."""

import contextlib
import json
import os
import pty
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from credgate import buildfront, compiling, front
from credgate.commands import run
from credgate.commands.ended import ended
from credgate.errors import CredgateError
from credgate.front import Front, request
from tests.credgate import front_rig
from tests.credgate.front_rig import PYTHON, UID, Asked, Rig, end
from tests.credgate.test_run_start import words as cli_words

needs_compiler = pytest.mark.needs("compiler")
FUZZ = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with front_rig.rig() as made:
        yield made


def settled(rig: Rig, *messages: tuple[bytes, list[int]]) -> tuple[int, bytes, bytes]:
    """How a front ends to which a daemon says that, and no more."""
    process = rig.start("run", "-q", "--", "x")
    asked = rig.asked(process)
    assert asked is not None, process.communicate()
    for message, fds in messages:
        try:
            asked.say(message, fds)
        except OSError:  # it has ended
            break
    asked.close()
    os.close(asked.payload)
    return end(process)


@needs_compiler
@FUZZ
@given(argv=st.lists(cli_words, max_size=7))
@example(argv=["--env", "--policy", "p", "true"])
@example(argv=["--env", "A", "--env=B", "--role=r", "--warm", "--read-only", "--", "x", "--", "-q"])
@example(argv=["--workdir", "/d", "--policy", "p", "-"])
@example(argv=["--", "--", "true"])
def test_it_reads_a_command_line_as_python_does(rig: Rig, argv: list[str]) -> None:
    options = run.plain(argv)
    process = rig.start("run", *argv)
    asked = rig.asked(process)
    if asked is None:
        status, out, _ = end(process)
        assert status == PYTHON and front_rig.words(out) == ["run", *argv]
        assert options is None or options.learn or options.user or options.status_fd >= 0
        return
    asked.say(b"X125\n")
    asked.close()
    os.close(asked.payload)
    assert end(process)[0] == 125
    assert options is not None
    body = request(asked.raw)
    env = body.pop("env")
    assert isinstance(env, dict) and env["HOME"] == str(rig.home)
    expected = {name: getattr(options, name) for name in ("policy", "role", "workdir", "read_only")}
    assert body == {**expected, "argv": options.command, "env_names": options.env, "cwd": "/"}
    assert not (options.learn or options.user or options.status_fd >= 0)
    asks = {"op": "run.front", "front": front.VERSION, "ttys": [], "warm": options.warm, "quiet": options.quiet}
    assert asked.body == asks


@needs_compiler
def test_words_of_any_bytes_come_as_they_are(rig: Rig) -> None:
    process = rig.start("run", b"--role=\xfe", "--", b"\xff\n", b"", env={b"A": b"\x80="})
    asked = rig.asked(process)
    assert asked is not None
    asked.say(b"X125\n")
    asked.close()
    end(process)
    body = request(asked.raw)
    assert (body["role"], body["argv"]) == ("\udcfe", ["\udcff\n", ""])
    assert isinstance(body["env"], dict) and body["env"]["A"] == "\udc80="


PARTS = [b"/", b"1", b"2", b"A=b", b"", b"-1", b"9" * 30, b"x"]


@given(raw=st.binary(max_size=60) | st.lists(st.sampled_from(PARTS)).map(b"\0".join))
@example(raw=b"/\0\0\0\0\x001\0")
@example(raw=b"/\0\0\0\0\0" + b"9" * 5000 + b"\0")
def test_a_request_that_is_none_is_refused_as_such(raw: bytes) -> None:
    with contextlib.suppress(CredgateError):
        body = request(raw)
        assert set(body) == {"argv", "cwd", "env", "policy", "role", "workdir", "read_only", "env_names"}
        assert raw.endswith(b"\0")


def test_the_first_of_two_variables_counts() -> None:
    assert request(b"/\0\0\0\0\x000\x001\0x\0A=1\0B\0A=2\0=c\0")["env"] == {"A": "1", "": "c"}


NUMBERS = st.integers(0, 300).map(str) | st.sampled_from(["", "-1", " 1", "0001", "12x"])
MESSAGES = st.tuples(
    st.builds(
        lambda kind, number, words: (kind + number + words).encode(),
        st.sampled_from(["P", "S", "R", "X", "E", "{", "Z"]),
        NUMBERS,
        st.sampled_from(["\n", "\nwords\n", "", "words"]),
    )
    | st.binary(min_size=1, max_size=40),
    st.sampled_from([0, 0, 0, 2, 1, 3]),
)


def model(messages: list[tuple[bytes, int]]) -> int:
    """The status that these have, by what credgate/front.py says of them."""
    planned, refused = False, -1
    for message, descriptors in messages:
        if message.startswith(b"{"):
            return PYTHON
        head, line_end, _ = message[1:].partition(b"\n")
        good = line_end and head.isdigit() and len(head) <= 3 and int(head) <= 255 and message[:1] in b"PSRXE"
        if not good or descriptors not in (0, 2) or (descriptors and planned) or (message[:1] in b"RE" and not planned):
            return 125
        planned |= message[:1] == b"P"
        if message[:1] == b"X":
            refused = int(head)
            if not planned:
                return refused
        if message[:1] == b"E":
            return int(head) if refused < 0 else refused
    return PYTHON if refused < 0 else refused


@needs_compiler
@FUZZ
@given(messages=st.lists(MESSAGES, max_size=5), begin=st.booleans())
@example(messages=[(b"P0\n", 0), (b"X126\nno\n", 0), (b"E1\n", 0)], begin=False)
@example(messages=[(b"S0\n" + b"w" * (front.MOST - 3), 0), (b"E3\n", 0)], begin=True)
def test_it_takes_no_message_for_what_it_is_not(rig: Rig, messages: list[tuple[bytes, int]], begin: bool) -> None:
    said = [(b"P0\n", 0), *messages] if begin else messages
    held = [os.open("/dev/null", os.O_RDWR) for _ in range(3)]
    status, _, _ = settled(rig, *((message, held[:count]) for message, count in said))
    for number in held:
        os.close(number)
    expected = model(said)
    assert status == expected


@needs_compiler
def test_it_says_what_it_is_told_and_ends_with_that_status(rig: Rig) -> None:
    words = "\u00e4 \\x1b".encode()
    told = [(b"P0\n", []), (b"R0\nbanner\n", []), (b"S0\n" + words, []), (b"E42\nend\n", [])]
    assert settled(rig, *told) == (42, b"", b"banner\n" + words + b"end\n")
    assert settled(rig, (b"X126\nerror: no\n", [])) == (126, b"", b"error: no\n")
    assert settled(rig, (b"P0\n", []), (b"X127\nno\n", []), (b"E1\n", []))[0] == 127


@needs_compiler
@pytest.mark.parametrize(
    ("told", "state"),
    [([], (0, 0)), ([b"P0\n"], (1, 0)), ([b"P0\n", b"R0\n"], (1, 1)), ([b"P0\n", b"R0\n", b"{}"], (1, 1))],
)
def test_it_leaves_the_run_to_python_where_it_stands(rig: Rig, told: list[bytes], state: tuple[int, int]) -> None:
    status, out, _ = settled(rig, *((message, []) for message in told))
    resumed, *rest = front_rig.words(out)
    assert status == PYTHON and rest == ["-q", "--", "x"]
    name, _, numbers = resumed.partition(":")
    *descriptors, planned, ready = map(int, numbers.split(","))
    assert name == "run" and min(descriptors) > 2 and len(set(descriptors)) == 3
    assert (planned, ready) == state


def running(rig: Rig, **kw: object) -> tuple[front_rig.Process, Asked]:
    process = rig.start("run", "--", "x", **kw)
    asked = rig.asked(process)
    assert asked is not None
    return process, asked


@needs_compiler
def test_signals_go_to_pid_1(rig: Rig) -> None:
    process, asked = running(rig)
    asked.say(b"P0\n")
    asked.say(b"S0\nup\n")
    assert process.stderr is not None and process.stderr.read(3) == b"up\n"
    time.sleep(0.1)  # its handlers are set after "P"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        process.send_signal(number)
        assert json.loads(asked.jail[0].recv(100)) == {"op": "signal", "number": number}
    asked.say(b"E143\n")
    asked.close()
    assert end(process)[0] == 143


@needs_compiler
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_signals_before_there_is_a_jail(rig: Rig, number: int, status: int) -> None:
    process, asked = running(rig, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # pytest may ignore them
    process.send_signal(number)
    assert asked.jail[1].recv(1) == b""  # and its end is the jail's
    asked.close()
    assert end(process)[0] == status


@needs_compiler
def test_what_is_lent(rig: Rig, tmp_path: Path) -> None:
    own = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("0", "1", "2")]
    process, asked = running(rig, stdin=own[0], stdout=own[1], stderr=own[2])
    same = [os.path.samestat(os.fstat(mine), os.fstat(its)) for mine, its in zip(own, asked.standard, strict=True)]
    assert same == [True] * 3
    limit = next(x for x in Path(f"/proc/{process.pid}/limits").read_text().splitlines() if "open files" in x).split()
    assert limit[3] == limit[4]  # soft as hard: see hostlimits.raise_open_files
    asked.say(b"X1\n")
    asked.close()
    assert end(process)[0] == 1
    for number in own:
        os.close(number)


@needs_compiler
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stream_that_is_closed_is_for_python_to_judge(rig: Rig, number: int) -> None:
    process = rig.start("run", "--", "x", preexec_fn=lambda: os.close(number))
    assert rig.asked(process) is None
    assert end(process)[0] == PYTHON or number == 1  # whose stand-in can't print then


@needs_compiler
def test_a_limit_of_file_sizes_leaves_it_to_python(rig: Rig) -> None:
    """The request lies in a file, and a signal would end whoever writes more than he may."""
    process = rig.start("run", "--", "x" * 5000, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    rig.listener.accept()[0].close()
    assert end(process)[0] == PYTHON


def stream() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def inet() -> tuple[socket.socket, socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    return mine, listener


def terminal() -> tuple[Any, Any]:
    class Held:
        def __init__(self, number: int) -> None:
            self.number = number

        def fileno(self) -> int:
            return self.number

        def close(self) -> None:
            os.close(self.number)

    master, slave = pty.openpty()
    return Held(slave), Held(master)


def datagram() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


@needs_compiler
@pytest.mark.parametrize(("made", "asks"), [(stream, True), (inet, False), (datagram, False), (terminal, False)])
@pytest.mark.parametrize("place", ["stdin", "stdout", "stderr"])
def test_a_terminal_or_more_than_bytes_is_for_python_to_judge(rig: Rig, made: Any, asks: bool, place: str) -> None:
    mine, other = made()
    process = rig.start("run", "--", "x", **{place: mine.fileno()})
    asked = rig.asked(process)
    assert (asked is not None) is asks
    if asked is not None:
        asked.say(b"X1\n")
        asked.close()
    mine.close()
    assert end(process)[0] == (1 if asks else PYTHON)
    other.close()


@needs_compiler
def test_other_commands_are_python_s(rig: Rig) -> None:
    for argv in ([], ["log", "show"], ["run:3,4,5,1,1", "x"], ["runs"]):
        status, out, _ = end(rig.start(*argv))
        assert status == PYTHON and out.decode().split("\0")[:-1] == ["-I", "-m", "credgate", *argv]


@needs_compiler
@pytest.mark.parametrize("mode", [0o755, 0o1700, 0o777])
def test_a_directory_that_others_can_enter_is_left_to_python(rig: Rig, mode: int) -> None:
    rig.directory.chmod(mode)
    try:
        assert end(rig.start("run", "x"))[0] == PYTHON
    finally:
        rig.directory.chmod(0o700)


@needs_compiler
@pytest.mark.parametrize(
    "env",
    [{b"HOME": b"h"}, {b"HOME": b""}, {b"HOME": b"/" + b"x" * 200}, {b"XDG_STATE_HOME": b"s"}, {b"HOME": b"/none"}],
)
def test_no_daemon_where_it_has_to_be(rig: Rig, env: dict[bytes, bytes]) -> None:
    assert end(rig.start("run", "x", env=env))[0] == PYTHON


@needs_compiler
@pytest.mark.needs("root")
def test_a_daemon_of_another_user_is_left_to_python(rig: Rig) -> None:
    control = rig.directory / "control"
    control.rename(rig.directory / "own")
    listener = rig.listen(control, 0)
    try:
        assert end(rig.start("run", "x"))[0] == PYTHON
    finally:
        listener.close()
        (rig.directory / "own").rename(control)
    assert UID != 0


READY = {
    "ev": "ready", "run": "r1", "role": "dev", "guards": 3, "limits": "cgroup", "opened": "", "files": "", "pid": 1,
    "ledger": "/l", "endpoints": 1, "proof": "p", "gateway": "g",
}  # fmt: skip
REFUSALS = {"ev": "refusals", "lines": ["refused \x1b[2J", "    on"], "entries": []}
REQUESTS = {"allow": 1, "deny": 2}
ENDED = {"ev": "ended", "run": "r1", "status": 9, "reason": "killed", "requests": REQUESTS, "seen": "s", "left": ["l"]}
REFUSED = {"ev": "refused", "code": "c", "detail": "got \x07", "hint": "", "exit": 126}


def launched(events: list[dict[str, object]], capfd: pytest.CaptureFixture[str], *, quiet: bool) -> tuple[str, int]:
    """What the Python launcher says of them, and its status."""
    options = run.Options()
    options.quiet = quiet
    launch = run.Launch(options, ["x"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for event in events:
        theirs.send(json.dumps(event).encode())
        launch.from_daemon(ours)
    status = ended(launch)
    ours.close()
    theirs.close()
    return capfd.readouterr().err, status


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    "events",
    [
        [READY, REFUSALS, ENDED],
        [READY, {"ev": "alarm", "run": "r1", "kind": "k", "detail": "\x1b", "action": "kill"}, ENDED],
        [READY, {**ENDED, "status": 0, "reason": "exited"}],
        [READY, {**ENDED, "requests": {}, "left": None}],
        [REFUSED, {**ENDED, "reason": "exec_failed"}],
    ],
)
def test_what_it_prints_is_what_python_does(
    events: list[dict[str, object]], quiet: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    told = Front.of({"front": front.VERSION, "ttys": [], "quiet": quiet})
    assert told.form({"ev": "plan", "run": "r1"}, 0) == b"P0\n"
    heads, texts = [], []
    for event in events:
        worded = told.form(event, 0)
        assert worded is not None
        if worded:
            head, _, text = worded.partition(b"\n")
            heads.append(head)
            texts.append(text.decode())
    expected, status = launched(events, capfd, quiet=quiet)
    assert "".join(texts) == expected
    assert f"X{status}".encode() in heads or f"E{status}".encode() in heads


def test_python_is_told_in_json_from_where_it_is_needed() -> None:
    told = Front.of({"front": front.VERSION, "ttys": []})
    assert told.form({"ev": "plan"}, 5) is None
    assert told.form(ENDED, 0) is None
    with pytest.raises(CredgateError, match="bad_request"):
        Front.of({"front": front.VERSION + 1, "ttys": []})


def test_a_refusal_before_the_plan_has_no_status_of_a_command() -> None:
    told = Front(quiet=True).form({**REFUSED, "exit": 2}, 0)
    assert told is not None and told.startswith(b"X125\nerror: ")


def test_a_long_end_is_cut() -> None:
    told = Front(quiet=False)
    told.form({"ev": "plan"}, 0)
    told.form(READY, 0)
    worded = told.form({**ENDED, "left": ["x" * front.MOST]}, 0)
    assert worded is not None and len(worded) == front.MOST and worded.endswith(front.CUT)


@needs_compiler
def test_a_front_is_known_by_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "credgate"
    command.write_text("#!/bin/sh\n")
    assert not buildfront.is_current(command)
    buildfront.build(command)
    assert buildfront.is_current(command) and command.stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(buildfront, "INTERPRETER", Path("/elsewhere/python"))
    assert not buildfront.is_current(command)


def test_without_a_compiler_the_command_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "credgate"
    command.write_text("#!/bin/sh\n")
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.raises(CredgateError, match="no_compiler"):
        buildfront.build(command)
    assert command.read_text() == "#!/bin/sh\n"


@needs_compiler
def test_what_does_not_compile_leaves_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "native"
    broken.mkdir()
    (broken / "run.c").write_text("int main(void) { return unknown; }\n")
    monkeypatch.setattr(buildfront, "SOURCES", broken)
    command = tmp_path / "credgate"
    command.write_text("#!/bin/sh\n")
    with pytest.raises(CredgateError, match="not_compiled"):
        buildfront.build(command)
    assert command.read_text() == "#!/bin/sh\n" and sorted(os.listdir(tmp_path)) == ["credgate", "native"]


def test_its_sources_keep_the_bounds_of_ours() -> None:
    for path in buildfront.SOURCES.glob("*.[ch]"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400 and max(len(line.expandtabs(4)) for line in lines) <= 120, path
        bodies = [n for n, line in enumerate(lines) if line in ("{", "}")]
        for start, stop in zip(bodies[::2], bodies[1::2], strict=True):
            assert stop - start <= 40, f"{path}:{start}"
