"""Start the daemon in a scope of the user's service manager, where there is one: it may then make control groups.

From a login session's own scope an ordinary user can make none. Standard library only: the launcher's side.
"""

import os
from collections.abc import Mapping, Sequence

SYSTEMD_RUN = "/usr/bin/systemd-run"
UNIFIED = "/sys/fs/cgroup/cgroup.controllers"  # there where cgroup v2 is the only one


def in_scope(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """The command line that starts `arguments` in a delegated scope; None where this host has nothing of the kind.

    The name is one that jail.cgroups knows again. systemd-run becomes the command, so descriptors and pid stay.
    """
    manager = os.path.join(environment.get("XDG_RUNTIME_DIR", "/nonexistent"), "systemd/private")  # noqa: PTH118
    if not (os.path.exists(manager) and os.path.exists(UNIFIED) and os.access(SYSTEMD_RUN, os.X_OK)):  # noqa: PTH110
        return None
    unit = f"--unit=credgate-{os.urandom(4).hex()}"
    flags = ["--user", "--scope", "--quiet", "--collect", unit, "--property=Delegate=yes", "--"]
    return [SYSTEMD_RUN, *flags, *arguments]
