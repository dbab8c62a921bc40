"""One guard taken out at a time: the daemon, which is as installed, has to notice, and the command must not run."""

import functools
import json
import os
import pty
import subprocess

import pytest

from jail.guards import BY_ID, GUARDS
from tests.e2e.mutant import wrapper
from tests.e2e.place import module_site
from tests.e2e.site import TIMEOUT, Site

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")
place = pytest.fixture(scope="module")(module_site)

COPY = 'version = 1\n[role.dev]\nworkdir = "copy"\nlimits = { memory = "256MiB", processes = 64, open_files = 256 }\n'
WRITE = 'version = 1\n[role.dev]\nworkdir = "write"\nlimits = { memory = "256MiB", processes = 64, open_files = 256 }\n'

# What each must flip before every exec: ids of guards whose attempt must say so, then words of the read-back.
PER_RUN: dict[str, tuple[str, tuple[str, ...]]] = {
    "no_landlock": ("landlock tree_socket tree_fifo", ()),
    "no_seccomp": (
        "keyring io_uring clone3 foreign_arch userns mount_api vsock packet mptcp netlink tiocsti",
        ("pid 1: seccomp: expected 2", "workload: seccomp: expected 2", "filters"),
    ),
    "empty_filter": ("keyring io_uring clone3 foreign_arch userns mount_api vsock packet mptcp netlink tiocsti", ()),
    "capabilities_kept": ("network_admin", ("pid 1: capabilities", "workload: capabilities")),
    "one_capability_kept": ("network_admin", ("pid 1: capabilities", "workload: capabilities")),
    "keyring_kept": ("", ("session keyring: expected a new one",)),
    "dumpable": ("pid1_environ pid1_mem", ("pid 1: owner: expected not dumpable",)),
    "limits_not_set": ("memory", ("limits.data", "limits.processes", "limits.open_files", "limits.file_size")),
    "user_namespaces_unbounded": ("userns_limit", ()),
    "descriptor_leaked": ("descriptors", ("pid 1: descriptor", "workload: descriptor")),
    "variable_inherited": ("environment", ()),
    "users_environment": ("environment pid1_environ pid1_mem", ("pid 1: owner: expected not dumpable",)),
    "extra_route": ("tcp_metadata tcp_private tcp_anywhere udp", ("pid 1: routes", "jail: routes")),
    "ipv6_on": ("ipv6", ("addresses6", "disable_ipv6: got 0")),
    "second_address": ("", ("jail: addresses",)),
    "other_network": ("", ("namespaces.net", "routes")),
    "uid_zero": ("", ("uid_map", "namespaces.user")),
    "host_proc": ("proc_host proc_masks", ()),
    "unmasked_proc": ("proc_masks", ()),
    "writable_proc_sys": ("proc_sys", ()),
    "host_sys": ("sysfs", ()),
    "host_home": (
        "file_read file_write file_create own_ledger own_ca_key own_socket unix_path",
        (),
    ),
    "writable_binds": ("readonly_mounts", ("mounts./usr: expected ro",)),
    "sockets_in_tree": ("tree_socket tree_fifo", ()),
    "islands_left_out": ("island_write", ("mounts.", "/.vscode: expected mounted, got none")),
    "pins_left_out": ("island_rename", ("/.github: expected mounted, got none",)),
    "hidden_left_out": ("hidden_read", ()),  # the stand-in is a mount even so
    "hosts_ipc": ("", ("namespaces.ipc: expected not the host's",)),
    "hosts_cgroup": ("", ("namespaces.cgroup: expected not the host's",)),
}
# The same for what `credgate prove` alone tries. The states of these guards must be "not shown".
PROVE: dict[str, str] = {
    "no_seccomp": "ptrace ptrace_host process_vm pidfd_getfd x32 userns_clone mount setns chroot raw sctp udplite "
    "tioclinux",
    "host_home": "file_truncate file_rename_out file_link_out own_policy unix_datagram ssh_agent docker dbus",
    "host_tmp": "neighbour_tmp neighbour_shm",
    "writable_binds": "readonly_write readonly_create readonly_truncate readonly_rename readonly_link readonly_meta",
    "limits_not_set": "processes open_files file_size core",
    "large_tmpfs": "tmpfs_size",
    "users_environment": "proc_scan",
    "extra_route": "tcp_fastopen dns_outside",
    "ipv6_on": "ipv6_late",
    "uid_zero": "root_user",
    "hosts_ipc": "neighbour_sysv neighbour_signal signal_host kill_tree",
    "other_network": "unix_abstract unix_abstract_in host_loopback neighbour_network neighbour_abstract icmp",
    "sockets_in_tree": "neighbour_tree",
    "hidden_left_out": "hidden_write",
    "users_terminal": "terminal",
}
SUMMED = "memory_shared"
OF_COPY = "copy_write"
# Guards that no mutation of a launcher can take out, and where else each is seen without its guard.
ELSEWHERE = {
    "gateway_port": "the ruleset is the berth's: tests/jail/test_firewall.py",
    "gateway_udp": "the ruleset is the berth's: tests/jail/test_firewall.py",
}


@pytest.fixture
def site(place: Site) -> Site:
    place.policy(WRITE)
    return place


def mutated(site: Site, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    argv = [*wrapper(site, name), "-q", "--policy", str(site.home / "policy/policy.toml"), "--", *command]
    return subprocess.run(
        site.as_user(argv),
        cwd=site.work,
        env=site.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@functools.cache
def proven(site_home: str, name: str, argv: tuple[str, ...], cwd: str, env: tuple[tuple[str, str], ...]) -> dict:
    done = subprocess.run(argv, cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    document["status"] = done.returncode
    return document


def prove(site: Site, name: str) -> dict:
    argv = [*wrapper(site, name, "prove"), "--policy", str(site.home / "policy/policy.toml"), "--json"]
    return proven(str(site.home), name, tuple(site.as_user(argv)), str(site.work), tuple(site.environment().items()))


def test_wrapper_that_takes_nothing_out(site: Site) -> None:
    done = mutated(site, "", ["sh", "-c", "touch marker; exit 7"])
    assert done.returncode == 7, done.stderr
    assert (site.work / "marker").exists()
    (site.work / "marker").unlink()


@pytest.mark.parametrize("name", PER_RUN)
def test_run_is_refused(site: Site, name: str) -> None:
    before = len(site.ledger(ev="proof"))
    done = mutated(site, name, ["touch", "marker"])
    assert done.returncode == 125, (done.returncode, done.stdout, done.stderr)
    assert not (site.work / "marker").exists()
    assert len(site.ledger(ev="proof")) == before
    assert site.ledger(ev="run.end")[-1]["reason"] == "proof_failed"
    error, hint = done.stderr.splitlines()
    told = error.removeprefix("error: ").split("; ")
    guards, words = PER_RUN[name]
    missing = [g for g in guards.split() if not any(line.startswith(f"{g}: ") for line in told)]
    assert not missing, error
    assert all(word in error for word in words), error
    assert hint == "hint: `credgate prove` tries every guard"


def test_copy_that_is_the_hosts_own_tree(site: Site) -> None:
    site.policy(COPY)
    done = mutated(site, "", ["touch", "marker"])
    assert done.returncode == 0, done.stderr
    assert f"{OF_COPY}=shown" in site.ledger(ev="proof")[-1]["guards"]
    before = sorted(site.work.iterdir())
    done = mutated(site, "copy_bound", ["touch", "marker"])
    assert done.returncode == 125, (done.returncode, done.stdout, done.stderr)
    assert f"{OF_COPY}: the attempt succeeded inside" in done.stderr
    assert "expected overlay" in done.stderr
    assert sorted(site.work.iterdir()) == before
    rows = {row["guard"]: row for row in prove(site, "copy_bound")["guards"]}
    assert (rows[OF_COPY]["inside"], rows[OF_COPY]["state"]) == ("done", "not shown")


def test_step_that_refuses_by_itself(site: Site) -> None:
    done = mutated(site, "no_new_privs_left_out", ["touch", "marker"])
    assert done.returncode == 125
    assert "no_new_privs" in done.stderr
    assert not (site.work / "marker").exists()


@pytest.mark.parametrize("name", ["users_terminal", "users_session"])
def test_run_on_a_terminal_is_refused(site: Site, name: str) -> None:
    argv = site.as_user(
        [*wrapper(site, name), "-q", "--policy", site.home / "policy/policy.toml", "--", "touch", "marker"]
    )
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.chown(os.ttyname(0), site.uid, -1)
            os.chdir(site.work)
            os.execvpe(argv[0], argv, site.environment())
        finally:
            os._exit(99)
    said = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # EIO: the last holder of the other end is gone
            break
        if not chunk:
            break
        said += chunk
    os.close(master)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 125, said
    assert not (site.work / "marker").exists()
    assert b"descriptor 0: expected a terminal of the jail's own" in said, said
    assert (b"session: expected" in said) == (name == "users_session"), said


@pytest.mark.parametrize("name", PROVE)
def test_prove_finds_it(site: Site, name: str) -> None:
    document = prove(site, name)
    states = {row["guard"]: row["state"] for row in document["guards"]}
    assert document["status"] == 1
    flipped = set(PROVE[name].split())
    assert {guard for guard in flipped if states[guard] != "not shown"} == set()
    assert all(row["why"] for row in document["guards"] if row["state"] == "not shown")


def test_sums_left_out(site: Site) -> None:
    """Where a control group holds the memory, pid 1's sums are not what the guard stands on."""
    document = prove(site, "sums_left_out")
    (row,) = [row for row in document["guards"] if row["guard"] == SUMMED]
    held = site.ledger(ev="run.start")[-1]["limits"]
    assert (row["inside"], row["state"]) == (
        ("done", "not shown") if "memory=summed by pid 1" in held else ("oom", "shown")
    )


def test_each_guard_is_flipped_by_a_mutation() -> None:
    flipped = {guard for guards, _ in PER_RUN.values() for guard in guards.split()}
    flipped |= {guard for guards in PROVE.values() for guard in guards.split()} | {SUMMED, OF_COPY}
    assert flipped <= set(BY_ID)
    assert {guard.id for guard in GUARDS} - flipped == set(ELSEWHERE)
