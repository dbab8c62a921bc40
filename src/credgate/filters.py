"""The system-call filters in a form that people read, with the digests that stand in the ledger."""

import platform

from jail.errors import JailError

# By the role's switches, as the ledger names them.
VARIANTS = {
    "default": (False, False),
    "allow_debug": (True, False),
    "allow_userns": (False, True),
    "allow_debug allow_userns": (True, True),
}


def shown() -> dict[str, dict[str, str | int]]:
    """sha256, instructions and readable form ("pfc") of each variant; empty where libseccomp is missing."""
    try:
        from jail.seccomp import compile_filter  # noqa: PLC0415 - loads libseccomp, which may be what is missing

        made = {name: compile_filter(arch=platform.machine(), debug=d, userns=u) for name, (d, u) in VARIANTS.items()}
    except (ImportError, OSError, RuntimeError, JailError):  # the seccomp row says which, and how to mend it
        return {}
    return {
        name: {"sha256": filter_.sha256, "instructions": len(filter_.bpf) // 8, "pfc": filter_.pfc}
        for name, filter_ in made.items()
    }
