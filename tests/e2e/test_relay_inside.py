"""A relay inside a jail is judged as its clients are: by the listener that the connection came in at."""

import pytest

from tests.e2e.site import Site, bound, endpoint
from tests.targets.served import Target

RELAY = """
import os, socket, subprocess, sys, threading
gateway = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
relay = socket.create_server(("127.0.0.1", 0))
def pipe(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
def serve():
    while True:
        client, _ = relay.accept()
        target = socket.create_connection((gateway[0], int(gateway[1])))
        for pair in ((client, target), (target, client)):
            threading.Thread(target=pipe, args=pair, daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
for url in sys.argv[1:]:
    proxy = f"http://127.0.0.1:{relay.getsockname()[1]}"
    argv = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} ", "--proxy", proxy, url]
    print(subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout, end="")
"""


@pytest.mark.needs("curl", "userns", "netns")
def test_a_relay_inside_gets_the_same_verdict(site: Site, https_target: Target) -> None:
    text = "version = 1\n" + endpoint(https_target) + bound() + '[role.dev]\nbindings = ["api"]\n'
    site.policy(text, https_target.ca)
    site.secret("api", https_target.token)
    urls = [f"https://{https_target.host}/private/x", "https://elsewhere.acme.example/"]
    done = site.run(site.python(), "-I", "-c", RELAY, *urls)
    assert done.stdout.split() == ["200", "403"], done.stdout + done.stderr
    assert [seen.authorization for seen in https_target.seen()] == [f"Bearer {https_target.token}"]
