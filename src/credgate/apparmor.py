"""The AppArmor profile for hosts that let user namespaces be made and take their rights away (Ubuntu 23.10 and newer).

An unconfined profile with `userns`: it adds that one permission and takes nothing. It attaches to the interpreter by
its real path, so a Python that other programs run too gives it to them as well; one of Credgate's own does not.
"""

import os

PLACE = "/etc/apparmor.d/credgate"
OWN = "/opt/credgate/python/bin/python3.[0-9]*"  # where root's set-up puts an interpreter


def profile(interpreter: str) -> str:
    """The profile's text for an interpreter by its path (links are followed), or for a pattern of AppArmor's."""
    path = interpreter if "*" in interpreter else os.path.realpath(interpreter)
    return f"""# Credgate's jails are made in user namespaces, which this host's AppArmor keeps from ordinary programs.
# Place: {PLACE}. Then, as root: apparmor_parser -r {PLACE}
# `credgate doctor --apparmor` prints this file with the path of the interpreter that runs it.
abi <abi/4.0>,
include <tunables/global>

profile credgate "{path}" flags=(unconfined) {{
  userns,

  include if exists <local/credgate>
}}
"""
