"""How a run ended, as its launcher says it. Standard library only; loaded once it has."""

import os
import sys

from credgate import said, thinclient
from credgate.commands.run import CANNOT
from credgate.errors import CredgateError, print_error
from credgate.stdio import say
from jail.ready import readable

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from credgate.commands.run import Launch

LAST_WORD = 60.0  # seconds for the daemon to close what belonged to the run


def hear_the_end(launch: "Launch") -> None:
    """The daemon confirms the death on its own and closes what belonged to the run; wait for its last word.

    Raises CredgateError where there is none, sooner of a daemon that is stopped.
    """
    silent = 0.0
    while launch.control is not None and not launch.ended:
        if readable(launch.control, thinclient.PATIENCE):
            silent = 0.0
            launch.from_daemon(launch.control)
            continue
        thinclient.check_not_stopped(launch.control)
        silent += thinclient.PATIENCE
        if silent >= LAST_WORD:
            raise CredgateError("daemon_silent", f"no end from the daemon in {LAST_WORD:.0f} s", "see its log", CANNOT)


def ended(launch: "Launch") -> int:
    """Say how it ended, on stderr and --status-fd; returns the exit status."""
    if launch.refused is not None:
        return print_error(launch.refused)
    status, reason = 137 if launch.ready else CANNOT, "gateway"  # 137: ended by SIGKILL
    if not launch.ended:
        where = thinclient.log_file(os.environ)
        print_error(
            CredgateError("gateway_gone", "the gateway daemon ended; the run was ended with it", f"{where} may say why")
        )
    else:
        status, reason = int(str(launch.ended["status"])), str(launch.ended["reason"])
    if launch.ready:
        # null where it could not be read, or the daemon is gone: that is not zero
        keys: tuple[str, ...] = ("off_route", "counters", "filter_kills", "files")
        keys = (*keys, *(key for key in ("copy", "state", "turned_away") if key in launch.ended))
        counts = {"requests": launch.ended.get("requests", {}), **{key: launch.ended.get(key) for key in keys}}
        counts["refusals"] = launch.refusals.get("entries", [] if launch.ended else None)
        launch.write_status({"event": "exit", "run": launch.id, "status": status, "reason": reason} | counts)
    _summarise(launch)
    if launch.ready and launch.options.learn:
        _propose(launch)
    return status


def _propose(launch: "Launch") -> None:
    """Let `policy learn` print: nothing was allowed beyond the policy, and nothing is written."""
    chosen = ["--policy", os.path.abspath(launch.options.policy)] if launch.options.policy else []
    argv = [sys.executable, "-I", "-m", "credgate", "policy", "learn", *chosen, launch.id]
    to_stderr = [(os.POSIX_SPAWN_DUP2, 2, 1)]
    try:
        os.chdir(launch.options.workdir or ".")
        os.waitpid(os.posix_spawn(sys.executable, argv, os.environ, file_actions=to_stderr), 0)
    except OSError as error:  # the run has ended with a status of its own, which stands
        say(f"credgate: no rules proposed: {error.strerror}; later: credgate policy learn {launch.id}\n")


def _summarise(launch: "Launch") -> None:
    if launch.ended:
        say(said.cut_short(str(launch.ended["reason"])))
    if launch.ready and not launch.options.quiet:
        say(said.summary(launch.ended, None if launch.options.learn else launch.refusals.get("lines")))
