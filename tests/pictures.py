"""The pictures of docs/first-run.md, taken from a real run on a real terminal: `.venv/bin/python -m tests.pictures`.

A local target, an ordinary user's home, tmux; what its screen holds becomes an SVG. By root it runs as `credgate-test`.
"""

import os
import pwd
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from tests.agents.tmux import Screen
from tests.e2e.site import BIN, PATH, Site, bound, endpoint, make_site
from tests.targets.fixtures import https_target_at
from tests.targets.pki import Authority

FOLDER = Path(__file__).parent.parent / "docs/pictures"
COLUMNS = 112
WIDTH, HEIGHT = 8.0, 18  # of one character, in the picture's units
HOME = "/home/you"
COLOURS = {"31": "#f47067", "32": "#6bc46d", "33": "#daaa3f", "2": "#8b949e"}
PLAIN, PAPER = "#d8dee6", "#161b22"
_SGR = re.compile(r"\x1b\[([0-9;]*)m")

AGENT = """\
say() { echo "agent: $1: $(curl -sS -o /dev/null -w '%{http_code}' $2 2>&1)"; }
say "the issues" https://HOST/private/issues
for n in 17 18 21; do say "comments of $n" https://HOST/issues/$n/comments; done
say "a page that it read of" https://docs.acme-tools.dev/guide
say "the cloud's credentials" http://metadata.google.internal/token
"""


def spans(line: str) -> Iterator[tuple[str, str]]:
    """Colour and text, in their order, of a line with SGR sequences."""
    colour = PLAIN
    for number, piece in enumerate(_SGR.split(line)):
        if number % 2:
            colour = next((COLOURS[word] for word in piece.split(";") if word in COLOURS), PLAIN)
        elif piece:
            yield colour, piece


def wrapped(line: str, columns: int) -> list[str]:
    """A line as a terminal of so many columns shows it; one with colours is as it is."""
    return [line] if "\x1b" in line or len(line) <= columns else textwrap.wrap(line, columns, drop_whitespace=False)


def svg(title: str, lines: Sequence[str], columns: int = COLUMNS) -> str:
    """The picture of a screen; its text can be read, searched and copied."""
    rows = [row for line in lines for row in wrapped(line, columns)]
    widest = max(columns, *(len(_SGR.sub("", row)) for row in rows))
    wide, high = int(widest * WIDTH) + 32, len(rows) * HEIGHT + 32
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" font-size="13"',
        " font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\">",
        f'<title>{escape(title)}</title><rect width="{wide}" height="{high}" rx="8" fill="{PAPER}"/>',
    ]
    for number, row in enumerate(rows):
        at, parts = 0, []
        for colour, text in spans(row):
            long = len(text) * WIDTH
            parts.append(f'<tspan x="{16 + at * WIDTH:g}" textLength="{long:g}" fill="{colour}">{escape(text)}</tspan>')
            at += len(text)
        if parts:
            out.append(f'<text y="{number * HEIGHT + 30}" xml:space="preserve">{"".join(parts)}</text>')
    return "\n".join([*out, "</svg>\n"])


def taken(site: Site, screen: Screen, *, until: str) -> list[str]:
    """What is on the screen, wrapped lines joined, the machine's own paths replaced."""
    screen.until(until)
    shown = screen.tmux("capture-pane", "-p", "-e", "-J")
    lines = shown.replace(str(site.home), HOME).rstrip().split("\n")
    return [line.rstrip() for line in lines if not re.match(r"\$ (clear|exec)|PS1", line)]


def screens(site: Site) -> Iterator[tuple[str, str, list[str]]]:
    """Name, title and lines of each picture."""
    with Screen(site, ["env", "PS1=$ ", "bash", "--norc", "--noprofile", "-i"]) as screen:
        screen.until("$")
        screen.tmux("resize-window", "-x", str(COLUMNS), "-y", "60")
        screen.tmux("send-keys", "-l", "clear; tput cup 0 0\n")
        screen.type("credgate run -- sh agent.sh")
        run = taken(site, screen, until="policy learn r")
        yield "run", "A run, what was refused, and the rules that would allow it", run
        found = re.search(r"policy learn (r[0-9a-f]+)", "\n".join(run))
        if found is None:
            raise SystemExit("no run in what the screen shows")
        screen.tmux("resize-window", "-x", "220", "-y", "40")
        screen.tmux("send-keys", "-l", "clear\n")
        screen.type(f"credgate log tail -n 12 --run {found[1]}")
        log = taken(site, screen, until="run.end")
        yield "log-tail", "credgate log tail: each request with its verdict", [short(line) for line in log]


def short(line: str) -> str:
    """A row without what a picture has no room for: the date, some fields, and what a refusal would have needed."""
    line = re.sub(r" \[(at|ms|of|secret|binding) [^]]*\]|\d{4}-\d\d-\d\d | \(UTC\)     ", "", line)
    return re.sub(r" (a rule in|an endpoint with) .*", "", line)


@contextmanager
def state_directory() -> Iterator[Path]:
    """For the target, beside the home: its token is in it."""
    with tempfile.TemporaryDirectory(prefix="credgate-pictures-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def main(folder: Path) -> int:
    """Make them anew; exit status 0."""
    who = pwd.getpwnam("credgate-test") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    site = make_site(who.pw_uid, who.pw_gid)
    site.env["PATH"] = f"{BIN}:{PATH}"
    try:
        with state_directory() as state, https_target_at(state, Authority(state, "acme-ca"), "api.acme.dev") as target:
            narrow = 'methods = ["GET"]\npaths = ["/private/issues"]'
            text = f'version = 1\n{endpoint(target, allow=narrow)}{bound()}[role.dev]\nbindings = ["api"]\n'
            site.write(".config/credgate/ca.pem", target.ca.read_text())
            site.write(".config/credgate/policy.toml", text)
            site.write("work/agent.sh", AGENT.replace("HOST", target.host))
            site.secret("api", target.token)
            for name, title, lines in screens(site):
                (folder / f"{name}.svg").write_text(svg(title, lines))
                sys.stdout.write("\n".join(_SGR.sub("", line) for line in lines) + "\n\n")
    finally:
        site.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
