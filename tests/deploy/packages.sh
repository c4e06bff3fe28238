#!/bin/sh
# Installs the packages of target/dist in a new chroot without a compiler: packages.sh [deb] [rpm] [tarball].
#
# Needs root, debootstrap, and a mirror in apt's configuration. The chroot has namespaces of its own for the network,
# the mounts and the processes: all of them end with this script, and no port of the machine is taken. RPM packages are
# tried with Debian's rpm, which knows no package that they could depend on.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh

if [ "${1:-}" = inside ]; then
    folder=$2
    shift 2
    for kind; do
        sh "tests/deploy/$kind.sh" "$folder"
    done
    exit
fi

[ "$(id -u)" -eq 0 ] || { echo "packages.sh: run this as root" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf --one-file-system "$folder"' EXIT
trap 'exit 1' INT TERM
for kind in deb rpm tar.gz; do
    found=$(find "$DIST" -name "*.$kind" 2>/dev/null)
    [ -n "$found" ] || { echo "packages.sh: no .$kind in $DIST; run \`make dist\` first" >&2; exit 1; }
    ln -s "$(realpath "$found")" "$folder/package.$kind"
done

. /etc/os-release
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    awk -v suite="$VERSION_CODENAME" '$2 == suite && $3 == "main" { print $1; exit }')
echo "a chroot of $VERSION_CODENAME"
unshare --mount --pid --fork --kill-child debootstrap --variant=minbase --include=rpm,curl,ca-certificates \
    "$VERSION_CODENAME" "$folder/root" "$mirror" >"$folder/log" 2>&1 || { tail -n 20 "$folder/log" >&2; exit 1; }
for compiler in cc gcc clang rustc; do
    ! chroot "$folder/root" sh -c "command -v $compiler" || { echo "packages.sh: $compiler in the chroot" >&2; exit 1; }
done

# The same package with the next version, another default file, and one thing more.
dpkg-deb --raw-extract "$folder/package.deb" "$folder/next"
sed -i 's/^Version: .*/Version: 99.0-1/' "$folder/next/DEBIAN/control"
default=$folder/next/etc/sluicegate/gateway.yaml
echo '# The default of the next version.' >>"$default"
dpkg-deb --build --root-owner-group "$folder/next" "$folder/next.deb" >/dev/null
{
    echo 'version = "99.0"'
    sed -n '/^\[package.metadata.generate-rpm\]/,/^]$/p' Cargo.toml | sed 1d |
        sed "s#\"$WORK/stage/gateway.yaml\"#\"$default\"#"
} >"$folder/next.toml"
"$TOOLBOX/bin/cargo-generate-rpm" --metadata-overwrite "$folder/next.toml" --output "$folder/next.rpm"

[ $# -gt 0 ] || set -- deb rpm tarball
unshare --net --mount --pid --fork --kill-child --mount-proc timeout 600 "$0" inside "$folder" "$@"
