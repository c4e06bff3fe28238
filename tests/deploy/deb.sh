#!/bin/sh
# The Debian package: install, serve, upgrade, remove, purge. packages.sh prepares it.
. tests/deploy/chroot.sh

install_package() {
    cp "$1" "$root/package.deb"
    in_root dpkg "$2" -i /package.deb </dev/null >>"$log" 2>&1 || fail "dpkg -i $1"
    rm "$root/package.deb"
}

echo "deb: install"
install_package "$folder/package.deb" --force-confdef
for name in /usr/bin/sluicegate "$file" /usr/share/man/man1/sluicegate.1.gz /lib/systemd/system/sluicegate.service \
    /lib/systemd/system/sluicegate.socket /usr/share/bash-completion/completions/sluicegate; do
    [ -e "$root$name" ] || fail "the package has no $name"
done

echo "deb: start, as the unit does, and reload"
start_as_unit lib/systemd/system/sluicegate.service
pretend_systemd

echo "deb: upgrade with an invalid file: the old program keeps running"
cp "$root$file" "$folder/changed"
echo 'limit: {}' >>"$root$file"
install_package "$folder/next.deb" --force-confold
grep -q 'gateway.yaml is invalid for this version' "$log" || fail "no warning about the invalid file"
grep -q USR2 "$root/systemctl.log" && fail "the gateway was replaced in spite of its invalid file"
answers || fail "the old program serves no more"
cp "$folder/changed" "$root$file"

echo "deb: upgrade with a valid file: the new program takes over, and the changed file stays"
install_package "$folder/package.deb" --force-confdef
install_package "$folder/next.deb" --force-confold
grep -q 'rate: 77/s' "$root$file" || fail "the changed file was replaced"
in_root dpkg-query --show --showformat '${Version}' sluicegate | grep -q '^99.0-1$' || fail "not upgraded"
replaced_by_signal

echo "deb: remove and purge"
stop_successor
in_root dpkg --remove sluicegate >>"$log" 2>&1 || fail "dpkg --remove"
grep -q '^systemctl disable --now' "$root/systemctl.log" || fail "the service was not stopped"
[ ! -e "$root/usr/bin/sluicegate" ] || fail "the program is left"
[ -e "$root$file" ] || fail "the changed file went before the purge"
mkdir -p "$root/var/lib/private/sluicegate"
ln -s private/sluicegate "$root/var/lib/sluicegate"
in_root dpkg --purge sluicegate >>"$log" 2>&1 || fail "dpkg --purge"
left=$(find "$root" -xdev -path "$root/proc" -prune -o -name '*sluicegate*' -print)
[ -z "$left" ] || fail "left after the purge: $left"
echo "deb: the package is fine"
