# A user's service manager of its own, in namespaces of its own: `manager.sh UID GROUP COMMAND...`, started by
# `unshare --mount --pid --fork --kill-child --mount-proc`. GROUP is an empty cgroup v2 directory; COMMAND runs as UID
# beside the manager's group, as a login session's processes do.
set -eu
uid=$1 group=$2 v2=${2%/*}
shift 2
mkdir "$group/manager" "$group/session"
chown -R "$uid:$uid" "$group"
echo $$ >"$group/session/cgroup.procs"
mount -t tmpfs none /run
mkdir -p /run/systemd/system "/run/user/$uid"
chown "$uid:$uid" "/run/user/$uid"
chmod 700 "/run/user/$uid"
mount --bind "$v2" /sys/fs/cgroup
as_user() {
    exec setpriv --reuid "$uid" --regid "$uid" --clear-groups env -i HOME=/nonexistent PATH=/usr/bin:/bin \
        XDG_RUNTIME_DIR="/run/user/$uid" DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$uid/bus" "$@"
}
(as_user dbus-daemon --session --address="unix:path=/run/user/$uid/bus" --nofork --nopidfile) >/dev/null 2>&1 &
(
    echo "$BASHPID" >"/sys/fs/cgroup/${group##*/}/manager/cgroup.procs"
    as_user /usr/lib/systemd/systemd --user --unit=basic.target --log-target=null
) >/dev/null 2>&1 &
for _ in $(seq 100); do
    [ ! -S "/run/user/$uid/systemd/private" ] || [ ! -S "/run/user/$uid/bus" ] || break
    sleep 0.1
done
sleep 0.5 # it takes its name on the bus a little later
(as_user "$@")
