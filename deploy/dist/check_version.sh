#!/bin/sh
# Ends with an error unless a tag, the manifests and the changelog name the same version: check_version.sh vNUMBER.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
tag=${1:?make check-version TAG=vNUMBER}
[ "$tag" = "v$VERSION" ] || { echo "check_version.sh: the tag is $tag, but Cargo.toml says $VERSION" >&2; exit 1; }
grep -A1 '^name = "sluicegate"$' Cargo.lock | grep -qxF "version = \"$VERSION\"" ||
    { echo "check_version.sh: Cargo.lock has another version than $VERSION; run \`cargo check\`" >&2; exit 1; }
number=$(echo "$VERSION" | sed 's/\./\\./g')
grep -q "^## \[$number\] - [0-9]\{4\}-[0-9][0-9]-[0-9][0-9]$" CHANGELOG.md ||
    { echo "check_version.sh: CHANGELOG.md has no \"## [$VERSION] - DATE\"" >&2; exit 1; }
echo "tag, Cargo.toml, Cargo.lock and CHANGELOG.md agree on $VERSION"
