"""What a jail will be, as one JSON document: computed here (pure), applied by pid 1, read back by the daemon.

Paths are str with surrogateescape, so that a work tree whose name is not UTF-8 survives the JSON round trip.
Every `from` is a real path (no symlink in it): pid 1 opens it with RESOLVE_NO_SYMLINKS and fails otherwise.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

MIB = 1 << 20
SLACK = 16  # processes of this user in the berth's user namespace that are not in the jail, and some
RESERVED = 256 << 30  # a JIT reserves far more than it uses: Bun 1.3 has 74 GB of private memory mapped, 0.9 in use

# Of /etc a list, not the whole: pip.conf, environment and the like hold passwords on real machines.
ETC_ALLOWED = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "chromium.d",
    "debian_version",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "mime.types",
    "netconfig",
    "os-release",
    "perl",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "rpc",
    "services",
    "shells",
    "terminfo",
    "timezone",
    "vim",
]

# /proc files that show the host, or kernel memory: covered by /dev/null. Directories are made read-only.
PROC_MASKED = (
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "sched_debug",
    "timer_list",
    "sysrq-trigger",
    "kallsyms",
    "kpagecount",
)
PROC_MASKED_MORE = ("kpageflags", "kpagecgroup", "vmallocinfo", "mtrr")
PROC_READ_ONLY = ("sys", "bus", "fs", "irq", "acpi", "scsi", "driver", "asound", "tty")

IGNORE_AT = "/etc/credgate/gitignore"
CANARY_AT = "/etc/credgate/canary"
CHILDREN_AT = "/run/credgate/children"
CLIENT_AT = "/run/credgate/credgate-child"
AS_RUN_AT = "/run/credgate/credgate"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A host path bound at the same path, read-only unless `write`."""

    path: str
    write: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEntry:
    """A top-level system path as the host has it: a real directory (link ""), or a symlink to `link`."""

    path: str
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What is covered. A file's cover has the file's size and time (ns), by which git takes it for unchanged."""

    path: str
    directory: bool = False
    size: int = 0
    mtime: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What is held fast or hidden in the work tree: whole paths, outer ones first.

    pins: directories between the tree and an island, writable, which can't be renamed. islands: read-only (a link: the
    link itself). reserved: (path, content) of what is made before the start: a directory where the content is "".
    ignore: lines of a gitignore(5) that name what is hidden.
    """

    pins: tuple[str, ...] = ()
    islands: tuple[str, ...] = ()
    hidden: tuple[Hidden, ...] = ()
    reserved: tuple[tuple[str, str], ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Where a copy of the work tree keeps what is written: `upper`, and `work` for the kernel's own use."""

    upper: str
    work: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """All that a plan is computed from; sizes in bytes, times in seconds."""

    run: str
    uid: int
    gid: int
    user: str
    home: str
    workdir: str
    workdir_write: bool  # whether the jail may write at it
    cwd: str
    argv: tuple[str, ...]
    exe: str  # path inside the jail that is exec'd
    env: tuple[tuple[str, str], ...]
    system: tuple[SystemEntry, ...]
    etc: tuple[SystemEntry, ...]  # those of ETC_ALLOWED that exist on this host
    trees: tuple[Tree, ...] = ()  # install trees, tools, read: read-only
    private: tuple[
        tuple[str, str], ...
    ] = ()  # (host path, path inside): of the jail's own, writable, kept when it dies
    links: tuple[tuple[str, str], ...] = ()  # (path inside, target)
    files: tuple[tuple[str, str], ...] = ()  # (path below the home, text): of its user alone, writable
    trust: tuple[tuple[str, str], ...] = ()  # (host path, path inside): bundles and trust stores, read-only
    copied: tuple[tuple[str, str], ...] = ()  # (host path, path inside): likewise, where its client wants to write it
    protected: Protection = field(default_factory=Protection)
    overlay: Overlay | None = None  # then what is written lands there, and the host's work tree is only read
    canary: str = ""  # host path of a file that is bound in and hidden, so that an attempt can show that hiding works
    children: str = ""  # host path of the socket that child runs are asked for at, "" where the role has none
    client: str = ""  # text of the program that asks
    gateway: str = "10.213.0.1"
    jail_ip: str = "10.213.0.2"
    proxy_port: int = 3128
    memory: int = 4096 * MIB
    processes: int = 512
    open_files: int = 4096
    cpu: int = 3600
    file_size: int = 8192 * MIB
    deadline: int | None = None
    sums: tuple[str, ...] = ("memory", "processes", "cpu")  # what pid 1 has to sum; the rest is held by a cgroup
    user_namespaces: int = 0  # how many may be made below the jail's; not 0 with allow_userns alone
    landlock: dict[str, Any] = field(default_factory=dict)  # of jail.landlock.plan_for
    seccomp: str = ""  # the filter's bytes, hex
    check: dict[str, str] = field(default_factory=dict)  # of the look from inside: denied name, bundle, its sha256

    @property
    def host_written(self) -> bool:
        """Whether what the jail writes lands in the host's work tree."""
        return self.workdir_write and self.overlay is None


def under(path: str, tree: str) -> bool:
    """True where `path` is `tree` or lies below it (by components, not by text)."""
    if _plain(path) and _plain(tree):
        return path == tree or path.startswith(tree if tree == "/" else f"{tree}/")
    return PurePosixPath(path).is_relative_to(PurePosixPath(tree))


def _plain(path: str) -> bool:
    """An absolute path whose text is that of its components: nearly all, and sixty pairs a launch are compared."""
    text = f"{path}/"
    return path == "/" or (text[0] == "/" and "//" not in text and "/./" not in text)


def build_plan(spec: JailSpec) -> dict[str, Any]:
    """The whole plan: mounts in order, identity, limits, Landlock rules, what to exec. JSON-able."""
    return {
        "run": spec.run,
        "uid": spec.uid,
        "gid": spec.gid,
        "hostname": "credgate",
        "user_namespaces": spec.user_namespaces,
        "mounts": mounts(spec),
        "limits": {
            "memory": spec.memory,
            "data": rlimit_data(spec.memory),
            "processes": rlimit_processes(spec),
            "open_files": spec.open_files,
            "cpu": spec.cpu,
            "file_size": spec.file_size,
            "deadline": spec.deadline,
            "sums": list(spec.sums),
        },
        "landlock": dict(spec.landlock),
        "seccomp": spec.seccomp,
        "network": {"gateway": spec.gateway, "jail": spec.jail_ip, "proxy_port": spec.proxy_port},
        "check": dict(spec.check),
        "exec": {"exe": spec.exe, "argv": list(spec.argv), "env": [list(pair) for pair in spec.env], "cwd": spec.cwd},
    }


def rlimit_data(memory: int) -> int:
    """RLIMIT_DATA in bytes beside that limit of a jail's memory: what is reserved, used or not, counts for it."""
    return memory + RESERVED


def rlimit_processes(spec: JailSpec) -> int:
    """RLIMIT_NPROC: looser beside a cgroup, so that the cgroup refuses first, and counts what it refuses."""
    return spec.processes if "processes" in spec.sums else spec.processes + SLACK


def private_trees(home: str) -> list[str]:
    """Trees that are the jail's own and die with it: its tmpfs mounts."""
    return ["/tmp", "/var/tmp", "/run", "/dev/shm", "/dev/pts", home]  # noqa: S108 - the jail's - inside the jail


def common(spec: JailSpec) -> list[dict[str, Any]]:
    """What nearly every jail of a user begins with; of a spec that has host, user and gateway alone."""
    return [*_as_on_host(spec.system), *_etc(spec), *_dev(), *_proc(), *_layers(spec)]


def _layers(spec: JailSpec) -> list[dict[str, Any]]:
    layers = [_tmpfs("/tmp", 1024, 0o1777), _tmpfs("/var/tmp", 256, 0o1777), _tmpfs("/run", 64, 0o755)]  # noqa: S108 - the jail's
    layers.append(_tmpfs(spec.home, 1024, 0o700))
    return sorted(layers, key=_depth)


def _depth(op: dict[str, Any]) -> int:
    return len(PurePosixPath(op["at"]).parts)


def mounts(spec: JailSpec) -> list[dict[str, Any]]:
    """Operations in order. Parents come before what lies below them, so that no mount hides an earlier one."""
    layers = _layers(spec)
    binds: list[dict[str, Any]] = [
        {"op": "bind", "from": t.path, "at": t.path, "write": t.write} for t in _outermost(spec)
    ]
    binds += [{"op": "bind", "from": host, "at": inside, "write": True} for host, inside in spec.private]
    binds.append(_work_tree(spec))
    binds.sort(key=_depth)
    if any(under(layer["at"], bind["at"]) for layer in layers for bind in binds):
        begun = [*_as_on_host(spec.system), *_etc(spec), *_dev(), *_proc()]
        begun += sorted(layers + binds, key=_depth)
    else:
        begun = [*common(spec), *binds]
    return [
        *begun,
        *_links(spec),
        *_files(spec),
        *_trust(spec),
        *_children(spec),
        *_protected(spec),
    ]


def _work_tree(spec: JailSpec) -> dict[str, Any]:
    made = {"from": spec.workdir, "at": spec.workdir}
    if spec.overlay is None:
        return {"op": "bind", **made, "write": spec.workdir_write}
    return {"op": "overlay", **made, "upper": spec.overlay.upper, "work": spec.overlay.work}


def _tmpfs(at: str, mebibytes: int, mode: int) -> dict[str, Any]:
    return {"op": "tmpfs", "at": at, "size": mebibytes * MIB, "inodes": mebibytes * 64, "mode": mode}


def _as_on_host(entries: tuple[SystemEntry, ...]) -> list[dict[str, Any]]:
    return [
        {"op": "link", "at": entry.path, "to": entry.link}
        if entry.link
        else {"op": "bind", "from": entry.path, "at": entry.path, "write": False}
        for entry in entries
    ]


def _outermost(spec: JailSpec) -> list[Tree]:
    """Drop trees that something already shows: a system path, the work tree, or a tree further out."""
    system = [entry.path for entry in spec.system if not entry.link]
    kept: list[Tree] = []
    for tree in sorted(set(spec.trees), key=lambda t: len(PurePosixPath(t.path).parts)):
        if not any(under(tree.path, other) for other in [*system, spec.workdir, *(k.path for k in kept)]):
            kept.append(tree)
    return kept


def _etc(spec: JailSpec) -> list[dict[str, Any]]:
    return [*_as_on_host(spec.etc), *({"op": "file", "at": at, "text": text} for at, text in _etc_files(spec).items())]


def _etc_files(spec: JailSpec) -> dict[str, str]:
    # The host name has no dot: glibc would otherwise query it with the domain part appended (dns.md).
    # No search list: a suffix would turn a denied name into others.
    return {
        "/etc/resolv.conf": f"nameserver {spec.gateway}\noptions ndots:1 timeout:1 attempts:2\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nprotocols: files\n"
        "services: files\nethers: files\nrpc: files\n",
        "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "/etc/hostname": "credgate\n",
        "/etc/machine-id": "0" * 31 + "1\n",
        "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{spec.user}:x:{spec.uid}:{spec.gid}:"
        f"{spec.user}:{spec.home}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "/etc/group": f"root:x:0:\n{spec.user}:x:{spec.gid}:\nnogroup:x:65534:\n",
    }


def _dev() -> list[dict[str, Any]]:
    return [
        {"op": "tmpfs", "at": "/dev", "size": MIB, "inodes": 512, "mode": 0o755},
        *({"op": "device", "from": f"/dev/{name}", "at": f"/dev/{name}"} for name in DEVICES),
        {"op": "devpts", "at": "/dev/pts"},
        _tmpfs("/dev/shm", 512, 0o1777),  # noqa: S108 - the jail's - inside the jail
        {"op": "link", "at": "/dev/ptmx", "to": "pts/ptmx"},
        {"op": "link", "at": "/dev/fd", "to": "/proc/self/fd"},
        {"op": "link", "at": "/dev/stdin", "to": "/proc/self/fd/0"},
        {"op": "link", "at": "/dev/stdout", "to": "/proc/self/fd/1"},
        {"op": "link", "at": "/dev/stderr", "to": "/proc/self/fd/2"},
    ]


def _proc() -> list[dict[str, Any]]:
    masked = [{"op": "mask", "at": f"/proc/{name}"} for name in PROC_MASKED + PROC_MASKED_MORE]
    return [{"op": "proc", "at": "/proc"}, *masked, *({"op": "readonly", "at": f"/proc/{n}"} for n in PROC_READ_ONLY)]


def _links(spec: JailSpec) -> list[dict[str, Any]]:
    """Those that nothing bound shows already: /etc/alternatives has its own, and a work tree too."""
    entries = [entry.path for entry in (*spec.system, *spec.etc) if not entry.link]
    shown = [*entries, *(tree.path for tree in spec.trees), spec.workdir]
    missing = [pair for pair in spec.links if not any(under(pair[0], path) for path in shown)]
    return [{"op": "link", "at": at, "to": to} for at, to in missing]


def _files(spec: JailSpec) -> list[dict[str, Any]]:
    return [{"op": "file", "at": at, "text": text, "mode": 0o600} for at, text in spec.files]


def _trust(spec: JailSpec) -> list[dict[str, Any]]:
    bound = [{"op": "bind", "from": host, "at": inside, "write": False} for host, inside in spec.trust]
    return [*bound, *({"op": "file", "from": host, "at": inside, "mode": 0o600} for host, inside in spec.copied)]


def _children(spec: JailSpec) -> list[dict[str, Any]]:
    """A connect(2) needs write permission on the socket's inode, which a read-only mount does not take away."""
    if not spec.children:
        return []
    return [
        {"op": "bind", "from": spec.children, "at": CHILDREN_AT, "write": False},
        *({"op": "file", "at": at, "text": spec.client, "mode": 0o555} for at in (CLIENT_AT, AS_RUN_AT)),
    ]


def _protected(spec: JailSpec) -> list[dict[str, Any]]:
    """Pins first, from the outside: an island's mount lies on its parent's. What is hidden may lie in an island."""
    kept = spec.protected
    covered = [*kept.hidden, *([Hidden(path=CANARY_AT)] if spec.canary else [])]
    ignore = "".join(f"{line}\n" for line in kept.ignore)
    return [
        *([{"op": "bind", "from": spec.canary, "at": CANARY_AT, "write": False}] if spec.canary else []),
        *({"op": "pin", "at": path} for path in kept.pins),
        *({"op": "island", "at": path} for path in kept.islands),
        *(
            {"op": "hide", "at": h.path, "directory": h.directory, "size": h.size, "mtime": h.mtime, "number": number}
            for number, h in enumerate(covered)
        ),
        *([{"op": "file", "at": IGNORE_AT, "text": ignore}] if ignore else []),
    ]
