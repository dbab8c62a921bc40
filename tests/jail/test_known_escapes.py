"""Escapes and breakages that others had: each with the tests or guards here that hold it, and those that wait.

Numbers are those of the field's list of known escapes (bubblewrap, firejail, sandlock, codex, srt, landlock-lsm and
others). What a row names must exist: a test that was renamed or deleted leaves its row without a guard, and fails here.
"""

import re
from pathlib import Path

import pytest

from jail.guards import GUARDS

TESTS = Path(__file__).parent.parent
IDS = {guard.id for guard in GUARDS}

# A word is a guard of docs/guards.md (tried in every jail or by `prove`, beside its control), else FILE::TEST.
ROWS: dict[str, tuple[str, ...]] = {
    "1 TIOCSTI types into the host's shell": ("tiocsti", "terminal", "jail/test_seccomp.py::test_nothing_can_be_typed"),
    "2 a 64-bit compare is passed by high bits": ("tioclinux", "jail/test_seccomp.py::test_bytes_do_what_the_table"),
    "3 x32 numbers": ("x32", "jail/test_seccomp.py::test_x32_numbers_are_killed"),
    "4 int 0x80": ("foreign_arch", "jail/test_seccomp.py::test_int_0x80_is_killed"),
    "5 clone3 with EPERM kills threads": ("clone3", "jail/test_seccomp.py::test_python_threads_start"),
    "6 io_uring that kills node": ("io_uring", "jail/test_seccomp.py::test_node_starts_spawns_and_lists_interfaces"),
    "7 supplementary groups survive": ("e2e/test_root_start.py::test_groups_that_the_account_is_in_are_dropped_too",),
    "11 no descriptors left": ("credgate/test_peer.py::", "credgate/test_hostlimits.py::"),
    "12 environ of other processes": ("proc_scan", "pid1_environ", "e2e/test_leaks.py::test_the_secret_is_nowhere"),
    "13 children outlive the supervisor": ("e2e/test_lifecycle.py::test_daemonised_processes_end_with_the_launcher",),
    "14 background processes survive": (
        "kill_tree",
        "e2e/test_lifecycle.py::test_daemonised_processes_end_with_the_co",
    ),
    "17 hooks and configuration planted for the host": (
        "island_write",
        "island_rename",
        "e2e/test_files.py::test_islands_hidden_files_and_what_is_left_free",
        "e2e/test_files.py::test_what_was_planted_elsewhere_is_reported",
    ),
    "18 a repository made where none was": ("e2e/test_files.py::test_a_repository_made_where_none_was_is_reported",),
    "20 node spawnSync": ("jail/test_seccomp.py::test_node_starts_spawns_and_lists_interfaces",),
    "21 a host that closes user namespaces": ("e2e/test_bad_input.py::", "jail/test_refusals.py::"),
    "22 /dev/null": ("jail/test_landlock.py::test_devices_can_be_used",),
    "24 a hidden directory that is writable": (
        "hidden_read",
        "hidden_write",
        "jail/test_mounts.py::test_what_is_hidden_can_not_be_reached_or_moved",
        "e2e/test_files.py::test_a_roles_own_lists",
    ),
    "25 names that carry data": ("dns_outside", "e2e/test_direct.py::test_an_unlisted_name_is_the_gateways_to_refuse"),
    "26 tools that ignore the proxy": ("tcp_anywhere", "e2e/test_clients.py::test_curl_without_proxy_variables"),
    "27 a relay inside": ("e2e/test_relay_inside.py::test_a_relay_inside_gets_the_same_verdict",),
    "28 docker, D-Bus, systemd by path": (
        "docker",
        "dbus",
        "unix_path",
        "e2e/test_leaks.py::test_no_socket_of_the_host",
    ),
    "29 the desktop's keyring by the session bus": ("dbus", "environment"),
    "30 the kernel's session keyring": ("keyring", "jail/test_keyring_kernel.py::test_key_of_the_host", "proc_masks"),
    "31 AF_VSOCK": ("vsock",),
    "32 UDP, ICMP, unix datagrams": ("udp", "icmp", "unix_datagram", "ipv6_late"),
    "33 TCP Fast Open and MPTCP": ("tcp_fastopen", "mptcp"),
    "35 a ruleset of one thread": ("jail/test_landlock.py::test_a_second_thread_is_an_error",),
    "36 unenforced and silent": ("landlock", "readonly_write", "e2e/test_mutations.py::test_run_is_refused"),
    "37 no sandbox, runs bare": ("e2e/test_mutations.py::test_run_is_refused", "e2e/test_refusals.py::"),
    "38 a probe that only looks": ("e2e/test_prove.py::",),
    "42 RLIMIT_AS kills a JIT": ("e2e/test_compat.py::test_node_runs_webassembly",),
    "43 inherited descriptors": ("descriptors", "e2e/test_run.py::test_inherited_descriptors_stay_outside"),
    "44 a browser's own sandbox": ("e2e/test_compat.py::test_chromium_brings_its_own_sandbox_where_the_role_lets_it",),
    "a parent renamed around a mount": (
        "island_rename",
        "jail/test_mounts.py::test_a_parent_that_is_renamed_goes_around_an_island_unless_it_is_pinned",
        "e2e/test_lifecycle.py::test_a_run_whose_mounts_change_is_ended",
    ),
    "a rename on the host takes a mount away inside": (
        "e2e/test_files.py::test_a_run_ends_when_the_host_replaces_an_island",
    ),
    "a child that keeps the user's terminal": (
        "e2e/test_terminal.py::test_nothing_that_is_typed_at_the_shell_is_read",
    ),
    "memory that RLIMIT_DATA does not see": ("memory_shared", "e2e/test_limits.py::"),
    "submounts stay writable": ("readonly_mounts", "jail/test_mounts.py::"),
    "a connected descriptor is lent": ("tree_socket", "tree_fifo", "credgate/test_trees.py::test_runs_of_other_rights"),
    "a socket of the host as stdin": ("credgate/test_stdio.py::test_a_network_socket_is_refused",),
}
# Not ours to show yet, and why.
WAITING = {
    "8, 39 user notification": "none is used: nothing to race",
}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_held_by_what_exists(row: str) -> None:
    for holder in ROWS[row]:
        file, _, name = holder.partition("::")
        if not name and "::" not in holder:
            assert holder in IDS, f"{row}: no guard {holder}"
            continue
        found = re.findall(r"^(?:async )?def (test_\w+)", (TESTS / file).read_text(), re.MULTILINE)
        assert any(test.startswith(name) for test in found), f"{row}: no test {holder}"
