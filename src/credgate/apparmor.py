"""The AppArmor profile for hosts that let user namespaces be made and take their rights away (Ubuntu 23.10 and newer).

An unconfined profile with `userns`: it adds that one permission and takes nothing. It attaches to the interpreter by
its real path, so a Python that other programs run too gives it to them as well; one of Credgate's own does not. To the
front too (native/run.c), which needs it for nothing: a jail is forked in a launcher's place where both have one label.
"""

import os

PLACE = "/etc/apparmor.d/credgate"
OWN = "/opt/credgate/{python/bin/python3.[0-9]*,venvs/*/bin/credgate}"  # where root's set-up puts both


def both(interpreter: str, command: str) -> str:
    """AppArmor's pattern for an interpreter and a front by their paths, of which links are followed."""
    return f"{{{os.path.realpath(interpreter)},{os.path.realpath(command)}}}"


def profile(path: str) -> str:
    """The profile's text for a path or a pattern of AppArmor's."""
    return f"""# Credgate's jails are made in user namespaces, which this host's AppArmor keeps from ordinary programs.
# Place: {PLACE}. Then, as root: apparmor_parser -r {PLACE}
# `credgate doctor --apparmor` prints this file with the paths of the interpreter that runs it and of its command.
abi <abi/4.0>,
include <tunables/global>

profile credgate "{path}" flags=(unconfined) {{
  userns,

  include if exists <local/credgate>
}}
"""
