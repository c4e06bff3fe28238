#!/bin/sh
# The RPM package, with Debian's rpm: install, serve, upgrade, erase. packages.sh prepares it.
. tests/deploy/chroot.sh

rpm_of() {
    cp "$1" "$root/package.rpm"
    shift
    in_root rpm --force-debian --nodeps "$@" /package.rpm </dev/null >>"$log" 2>&1 || fail "rpm $*"
    rm "$root/package.rpm"
}

echo "rpm: install"
rpm_of "$folder/package.rpm" --install
in_root rpm --verify --nodeps sluicegate >>"$log" 2>&1 || fail "rpm --verify"
for name in /usr/bin/sluicegate "$file" /usr/share/man/man1/sluicegate.1 /usr/lib/systemd/system/sluicegate.service \
    /usr/lib/systemd/system/sluicegate.socket /usr/share/licenses/sluicegate/LICENSE-MIT; do
    [ -e "$root$name" ] || fail "the package has no $name"
done

echo "rpm: start, as the unit does, and reload"
start_as_unit usr/lib/systemd/system/sluicegate.service
pretend_systemd

echo "rpm: upgrade with an invalid file: the old program keeps running"
cp "$root$file" "$folder/changed"
echo 'limit: {}' >>"$root$file"
rpm_of "$folder/next.rpm" --upgrade
grep -q 'gateway.yaml is invalid for this version' "$log" || fail "no warning about the invalid file"
grep -q USR2 "$root/systemctl.log" && fail "the gateway was replaced in spite of its invalid file"
answers || fail "the old program serves no more"

echo "rpm: upgrade with a valid file: the new program takes over, and the changed file stays"
cp "$folder/changed" "$root$file"
rpm_of "$folder/package.rpm" --upgrade --oldpackage
rpm_of "$folder/next.rpm" --upgrade
grep -q 'rate: 77/s' "$root$file" || fail "the changed file was replaced"
grep -q 'default of the next version' "$root$file.rpmnew" || fail "the new default is not beside the changed file"
[ "$(in_root rpm --query --queryformat '%{VERSION}' sluicegate)" = 99.0 ] || fail "not upgraded"
replaced_by_signal

echo "rpm: erase"
stop_successor
in_root rpm --force-debian --erase sluicegate >>"$log" 2>&1 || fail "rpm --erase"
grep -q '^systemctl disable --now' "$root/systemctl.log" || fail "the service was not stopped"
left=$(find "$root" -xdev -path "$root/proc" -prune -o -name '*sluicegate*' -not -type d -print)
[ -z "$left" ] || fail "left: $left"
[ -e "$root$file.rpmsave" ] || fail "the changed file was not kept"
rm -r "$root/etc/sluicegate"
echo "rpm: the package is fine"
