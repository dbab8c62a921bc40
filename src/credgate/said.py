"""What `credgate run` says beside the command's own output: its launcher does, or its daemon words it for a front."""

from credgate.text import escape

TYPE_CHECKING = False  # typing itself costs milliseconds at start
if TYPE_CHECKING:
    from jail.thinpass import Json

OWN_ENDS = ("exited", "signaled")  # reasons of an end that was the command's own


def ready(body: "Json", end: str = "\n") -> str:
    """The banner, of the daemon's `ready`. end: of a line."""
    return (
        f"credgate: role {body['role']}, {body['guards']} guards shown, {body['endpoints']} endpoints, "
        f"limits by {body['limits']}, {body['opened']}{escape(str(body['files']))}"
        f"run {body['run']}, ledger {escape(str(body['ledger']))}{end}"
    )


def alarm(body: "Json", end: str = "\n") -> str:
    """Said with -q too: the role chose that the user hears of it."""
    what = escape(f"{body['kind']}: {body['detail']} ({body['action']})")
    return f"credgate: alarm in run {body['run']}: {what}{end}"


def cut_short(reason: str) -> str:
    """Why the run was ended; "" where the command ended by itself."""
    return "" if reason in OWN_ENDS else f"credgate: the run was ended: {reason}\n"


def summary(ended: "Json", refused: object) -> str:
    """The last lines, of the daemon's `ended`; "" where it counted no requests. refused: lines about these."""
    requests = ended.get("requests")
    if not isinstance(requests, dict):
        return ""
    allowed, denied = requests.get("allow"), requests.get("deny")
    lines = [f"credgate: run {ended.get('run')}: {allowed} requests allowed, {denied} refused; {ended.get('seen')}\n"]
    for told in (refused, ended.get("renew"), ended.get("left")):
        lines += [_line(str(line)) for line in told] if isinstance(told, list) else []
    return "".join(lines)


def _line(words: str) -> str:
    return ("" if words.startswith("    ") else "credgate: ") + f"{escape(words)}\n"  # indented: goes on with the last
