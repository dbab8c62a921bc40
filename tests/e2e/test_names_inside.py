"""Names inside: libc asks the run's resolver alone. What would ask on the host's side has no socket in the jail."""

import pytest

from tests.e2e.site import Site, endpoint
from tests.targets.served import Target

# nscd, nss-resolve and D-Bus would look a name up on the host, past network namespace and firewall.
SOCKETS = [
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/dbus/system_bus_socket",
    "/run/avahi-daemon/socket",
]
LOOK = "import os, sys; print([p for p in sys.argv[1:] if os.path.exists(p)], os.listdir('/run'))"


@pytest.mark.needs("userns", "netns")
def test_libc_finds_no_other_resolver(site: Site, https_target: Target) -> None:
    text = "version = 1\n" + endpoint(https_target) + '[role.dev]\nendpoints = ["api"]\n'
    site.policy(text, https_target.ca)
    assert site.run(site.python(), "-I", "-c", LOOK, *SOCKETS).stdout.strip() == "[] []"
    done = site.run("getent", "ahostsv4", https_target.host)
    assert done.stdout.split()[0] == "10.213.0.1", done.stdout + done.stderr


@pytest.mark.needs("userns", "netns")
def test_control_a_socket_in_a_bound_tree_would_be_seen(site: Site) -> None:
    made = "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('/run/nscd'); print(os.listdir('/run'))"
    assert site.run(site.python(), "-I", "-c", made).stdout.strip() == "['nscd']"
