#!/bin/sh
# The tarball: README's own lines, from the files of a release to the first 429. packages.sh prepares it.
. tests/deploy/chroot.sh
readme=${README:-README.md}

tarball=$(realpath "$folder/package.tar.gz")
mkdir "$root/release"
cp "$tarball" "$(dirname "$tarball")/SHA256SUMS" "$root/release"
# A tarball without a profile says so in its name.
suffix=$(basename "$tarball" | sed 's/.*-x86_64-linux//; s/\.tar\.gz$//')
# The first block of shell below the heading `Install`.
awk '/^## / { section = /^## Install$/ } section && /^```$/ { exit } block; section && /^```sh$/ { block = 1 }' \
    "$readme" | sed "s/-x86_64-linux/&$suffix/g" >"$root/release/install.sh"
[ -s "$root/release/install.sh" ] || fail "$readme has no block of shell below \"## Install\""

echo "tarball: the lines of $readme"
chroot "$root" env HOME=/root timeout 60 sh -ec 'cd /release && . ./install.sh' >"$log" 2>&1 </dev/null ||
    fail "the lines end with $?, or took a minute"
grep -q 429 "$log" || fail "no request was answered with 429"
stop=$(pgrep --exact sluicegate) || true
[ -z "$stop" ] || kill -TERM $stop
eventually is_silent
echo "tarball: the first 429 after the lines of $readme"
