#!/bin/sh
# Checks the files of a release.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
exec python3 deploy/dist/check.py "$VERSION" "$TARGET"
