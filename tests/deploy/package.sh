#!/bin/sh
# Installs the Debian package given as $1 in a new chroot, serves with it, upgrades, removes and purges it.
#
# Needs root, debootstrap, and a mirror in apt's configuration. The chroot has namespaces of its own for the network,
# the mounts and the processes: all of them end with this script, and no port of the machine is taken.
set -eu

if [ "${2:-}" != inside ]; then
    [ "$(id -u)" -eq 0 ] || { echo "package.sh: run this as root" >&2; exit 1; }
    folder=$(mktemp -d)
    trap 'rm -rf --one-file-system "$folder"' EXIT
    trap 'exit 1' INT TERM
    . /etc/os-release
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
        awk -v suite="$VERSION_CODENAME" '$2 == suite && $3 == "main" { print $1; exit }')
    echo "a chroot of $VERSION_CODENAME"
    unshare --mount --pid --fork --kill-child \
        debootstrap --variant=minbase "$VERSION_CODENAME" "$folder/root" "$mirror" >"$folder/log" 2>&1 ||
        { tail -n 20 "$folder/log" >&2; exit 1; }
    unshare --net --mount --pid --fork --kill-child --mount-proc timeout 300 "$0" "$1" inside "$folder"
    exit
fi

folder=$3
root=$folder/root
file=/etc/sluicegate/gateway.yaml
ip link set lo up
mount -t proc proc "$root/proc"

fail() {
    echo "package.sh: $*" >&2
    tail -n 20 "$folder/gateway.log" >&2 || true
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

install_package() {
    cp "$1" "$root/package.deb"
    in_root dpkg "$2" -i /package.deb </dev/null >>"$folder/dpkg.log" 2>&1 ||
        { cat "$folder/dpkg.log" >&2; fail "dpkg -i $1"; }
    rm "$root/package.deb"
}

has_reloads() {
    curl --silent --max-time 2 http://127.0.0.1:9901/metrics | grep -q "^sluicegate_reloads_total{result=\"$1\"} $2\$"
}

# The same package with the next version, another default file, and one thing more.
dpkg-deb --raw-extract "$1" "$folder/next"
sed -i 's/^Version: .*/Version: 99.0-1/' "$folder/next/DEBIAN/control"
echo '# The default of the next version.' >>"$folder/next$file"
dpkg-deb --build --root-owner-group "$folder/next" "$folder/next.deb" >/dev/null

echo "install"
install_package "$1" --force-confdef
for name in /usr/bin/sluicegate "$file" /usr/share/man/man1/sluicegate.1.gz /lib/systemd/system/sluicegate.service \
    /lib/systemd/system/sluicegate.socket /usr/share/bash-completion/completions/sluicegate; do
    [ -e "$root$name" ] || fail "the package has no $name"
done
in_root sluicegate check -c "$file" >/dev/null || fail "the default file is invalid"

echo "start, as the unit does, and reload"
start=$(sed -n 's/^ExecStart=//p' "$root/lib/systemd/system/sluicegate.service")
reload=$(sed -n 's/^ExecReload=//p' "$root/lib/systemd/system/sluicegate.service")
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

# What systemd would do is written down; `systemd-run` runs its command here.
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

echo "upgrade with an invalid file: the old program keeps running"
cp "$root$file" "$folder/changed"
echo 'limit: {}' >>"$root$file"
install_package "$folder/next.deb" --force-confold
grep -q 'gateway.yaml is invalid for this version' "$folder/dpkg.log" || fail "no warning about the invalid file"
grep -q USR2 "$root/systemctl.log" && fail "the gateway was replaced in spite of its invalid file"
answers || fail "the old program serves no more"
cp "$folder/changed" "$root$file"

echo "upgrade with a valid file: the new program takes over, and the changed file stays"
install_package "$1" --force-confdef
install_package "$folder/next.deb" --force-confold
grep -q 'rate: 77/s' "$root$file" || fail "the changed file was replaced"
in_root dpkg-query --show --showformat '${Version}' sluicegate | grep -q '^99.0-1$' || fail "not upgraded"
grep -q '^systemctl kill --kill-whom=main --signal=USR2 sluicegate.service$' "$root/systemctl.log" ||
    fail "the running gateway was not replaced"
kill -USR2 "$gateway"
wait "$gateway" || fail "the old program ended with $?"
answers || fail "the new program does not serve"

echo "remove and purge"
successor=$(pgrep --exact sluicegate) || fail "no new program"
kill -TERM "$successor"
eventually is_silent
in_root dpkg --remove sluicegate >>"$folder/dpkg.log" 2>&1 || fail "dpkg --remove"
grep -q '^systemctl disable --now' "$root/systemctl.log" || fail "the service was not stopped"
[ ! -e "$root/usr/bin/sluicegate" ] || fail "the program is left"
[ -e "$root$file" ] || fail "the changed file went before the purge"
mkdir -p "$root/var/lib/private/sluicegate"
ln -s private/sluicegate "$root/var/lib/sluicegate"
in_root dpkg --purge sluicegate >>"$folder/dpkg.log" 2>&1 || fail "dpkg --purge"
left=$(find "$root" -xdev -path "$root/proc" -prune -o -name '*sluicegate*' -print)
[ -z "$left" ] || fail "left after the purge: $left"
echo "the package is fine"
