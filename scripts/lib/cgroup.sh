# shellcheck shell=bash
# By root: a subtree of the control groups for an ordinary user, in which runs get groups of their own. docs/limits.md

# delegate_cgroups UID GID: makes and hands over what this kernel has mounted; quiet where it has nothing of the kind.
delegate_cgroups() {
    local uid=$1 gid=$2 root=${3:-/sys/fs/cgroup} controller
    if [ -f "$root/cgroup.controllers" ]; then
        delegate_cgroups_v2 "$uid" "$gid" "$root"
        return
    fi
    for controller in memory pids cpuacct; do
        [ -d "$root/$controller" ] || continue
        mkdir -p "$root/$controller/credgate/$uid" || return
        chown "$uid:$gid" "$root/$controller/credgate/$uid" "$root/$controller/credgate/$uid/cgroup.procs" || return
    done
}

# The controllers have to be handed down at each level; `launchers` is where a run that root starts begins, since an
# ordinary user may move a process only below a group of its own.
delegate_cgroups_v2() {
    local uid=$1 gid=$2 root=$3 dir
    mkdir -p "$root/credgate/$uid/launchers" || return
    for dir in "$root" "$root/credgate" "$root/credgate/$uid"; do
        printf '+memory +pids' >"$dir/cgroup.subtree_control" || return
    done
    for dir in "$root/credgate/$uid" "$root/credgate/$uid/launchers"; do
        chown "$uid:$gid" "$dir" "$dir/cgroup.procs" || return
    done
    chown "$uid:$gid" "$root/credgate/$uid/cgroup.subtree_control"
}
