#!/bin/sh
# Packs a program: package.sh PROGRAM SUFFIX [PROFILE]. All files of the release are in target/dist afterwards.
#
# The same program gives the same bytes: archives are sorted, belong to root, and have the time of SOURCE_DATE_EPOCH.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
program=$1 suffix=$2 profile=${3:-}
name=sluicegate-$VERSION-x86_64-linux$suffix
stage=$WORK/stage
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022

rm -rf "$DIST" "$stage"
mkdir -p "$DIST" "$stage/man" "$stage/completions" "$stage/deploy"

objcopy --only-keep-debug --compress-debug-sections=zlib "$program" "$DIST/$name.debug"
chmod 644 "$DIST/$name.debug"
objcopy --strip-all --add-gnu-debuglink="$DIST/$name.debug" "$program" "$stage/sluicegate"
chmod 755 "$stage/sluicegate"

"$stage/sluicegate" man --dir "$stage/man"
"$stage/sluicegate" completions bash >"$stage/completions/sluicegate.bash"
"$stage/sluicegate" completions zsh >"$stage/completions/_sluicegate"
"$stage/sluicegate" completions fish >"$stage/completions/sluicegate.fish"
install -m 644 gateway.yaml gateway.schema.json LICENSE-APACHE LICENSE-MIT "$stage"
install -m 644 deploy/sluicegate.service deploy/sluicegate.socket deploy/alerts.yml deploy/grafana.json "$stage/deploy"
python3 deploy/dist/licences.py "$TARGET" >"$stage/THIRD-PARTY-LICENSES"

tar --create --directory "$WORK" --transform "s,^stage,$name," --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 \
    --group=0 --numeric-owner --format=gnu stage | gzip --no-name --best >"$DIST/$name.tar.gz"
"$TOOLBOX/bin/cargo-deb" --no-build --no-strip --quiet --output "$DIST/sluicegate_$VERSION-1_amd64$suffix.deb"
"$TOOLBOX/bin/cargo-generate-rpm" --auto-req builtin --source-date "$SOURCE_DATE_EPOCH" \
    --output "$DIST/sluicegate-$VERSION-1.x86_64$suffix.rpm"
deploy/dist/sbom.sh "$DIST/sluicegate-$VERSION$suffix.cdx.json"
if [ -n "$profile" ]; then
    install -m 644 "$profile" "$DIST/$name.profdata"
fi
cd "$DIST"
sums=$(sha256sum -- *)
echo "$sums" >SHA256SUMS
cat SHA256SUMS
