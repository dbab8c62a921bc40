"""How a copy of a work tree is asked for: by pid 1, which mounts it, and by the daemon, which looks for it."""


def overlay_options(lower: str, upper: str, work: str) -> dict[str, str | None]:
    """Of overlayfs (Documentation/filesystems/overlayfs.rst). userxattr: trusted.* is closed to a user namespace. In
    `lowerdir` a colon separates layers, and a backslash takes that from it.
    """
    escaped = lower.replace("\\", "\\\\").replace(":", "\\:")
    return {"userxattr": None, "lowerdir": escaped, "upperdir": upper, "workdir": work}
