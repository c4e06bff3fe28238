# What the tests of packages share: a chroot in $folder/root, in namespaces of its own.
# shellcheck shell=sh disable=SC2034
set -eu
folder=$1
root=$folder/root
file=/etc/sluicegate/gateway.yaml
log=$folder/packages.log
: >"$log"
ip link set lo up
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
rm -rf "$root/run/systemd" "$root/systemctl.log"

fail() {
    echo "$0: $*" >&2
    tail -n 20 "$log" "$folder/gateway.log" >&2 || true
    exit 1
}

in_root() {
    chroot "$root" "$@"
}

# Waits up to ten seconds for a command to succeed.
eventually() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || fail "not in ten seconds: $*"
        sleep 0.1
    done
}

answers() {
    curl --silent --fail --max-time 2 --output /dev/null http://127.0.0.1:8080/
}

is_silent() {
    ! answers
}

has_reloads() {
    curl --silent --max-time 2 http://127.0.0.1:9901/metrics | grep -q "^sluicegate_reloads_total{result=\"$1\"} $2\$"
}

# Starts and reloads the program as the unit in $1 does, with a changed file.
start_as_unit() {
    in_root sluicegate check -c "$file" >/dev/null || fail "the default file is invalid"
    start=$(sed -n 's/^ExecStart=//p' "$root/$1")
    reload=$(sed -n 's/^ExecReload=//p' "$root/$1")
    # shellcheck disable=SC2086
    chroot "$root" $start >"$folder/gateway.log" 2>&1 &
    gateway=$!
    eventually answers
    sed -i 's#rate: 10/s#rate: 77/s#' "$root$file"
    kill -HUP "$gateway"
    eventually has_reloads ok 1
    # shellcheck disable=SC2086
    in_root $reload >/dev/null || fail "$reload"
    eventually has_reloads ok 2
}

# What systemd would do is written down; `systemd-run` runs its command here.
pretend_systemd() {
    mkdir -p "$root/run/systemd/system"
    cat >"$root/usr/bin/systemctl" <<'STUB'
#!/bin/sh
echo "systemctl $*" >>/systemctl.log
STUB
    cat >"$root/usr/bin/systemd-run" <<'STUB'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
STUB
    chmod +x "$root/usr/bin/systemctl" "$root/usr/bin/systemd-run"
}

# The package replaced the running gateway as systemd would be told to; here the signal is sent.
replaced_by_signal() {
    grep -q '^systemctl kill --kill-whom=main --signal=USR2 sluicegate.service$' "$root/systemctl.log" ||
        fail "the running gateway was not replaced"
    kill -USR2 "$gateway"
    wait "$gateway" || fail "the old program ended with $?"
    answers || fail "the new program does not serve"
}

stop_successor() {
    successor=$(pgrep --newest --exact sluicegate) || fail "no new program"
    kill -TERM "$successor"
    eventually is_silent
}
