"""`credgate secret import AGENT`: an agent's login by subscription becomes the gateway's."""

import argparse
import sys
from pathlib import Path

from credgate.commands.secret import keep
from credgate.errors import CredgateError
from credgate.loginfile import at_home, client_secret, login_agent, read_login
from credgate.paths import Places
from credgate.secretindex import read_index
from credgate.text import escape
from rules.logins import Login

_ONE_OWNER = """\
note: {path} still holds this login, and its refresh token counts once: after the gateway's first use the agent on
note: the host is signed out, or, if it refreshes first, the gateway is. Remove the file (--move does), and sign in
note: anew on the host for a login of its own: two logins of one account don't disturb each other
"""


def import_login(options: argparse.Namespace, places: Places) -> dict[str, object]:
    """Take it over; return what was kept. Raises CredgateError, before anything is changed where the file is wrong."""
    agent, login = login_agent(options.name)
    path = Path(options.file) if options.file else at_home(login)
    values = dict(read_login(login, path))
    missing = login.client_secret and not _is_kept(places, login.client_secret)
    if missing and (found := client_secret(agent, login)):
        values[login.client_secret] = found
    for name, value in values.items():
        keep(places, name, value, quiet=options.json)
    if missing and login.client_secret not in values:
        sys.stderr.write(f"note: no {agent.commands[0]} found here: its client's secret is to be kept by hand:\n")
        sys.stderr.write(f"note: credgate secret set {login.client_secret}\n")
    _one_owner(login, path, move=options.move)
    return {
        "agent": agent.name,
        "command": agent.commands[0],
        "file": str(path),
        "kept": sorted(values),
        "moved": options.move,
    }


def _one_owner(login: Login, path: Path, *, move: bool) -> None:
    if move:
        try:
            path.unlink()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            hint = "the login is in the vault; remove the file by hand"
            raise CredgateError("login_not_moved", f"{path}: can't be removed: {why}", hint) from error
    elif login.rotates:
        sys.stderr.write(_ONE_OWNER.format(path=escape(str(path))))


def _is_kept(places: Places, name: str) -> bool:
    index = read_index(places)
    return index is not None and name in index.entries
