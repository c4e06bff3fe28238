#!/bin/sh
# The same source gives the same bytes in another folder: packs the small profile twice, without training, and compares
# the files. What is committed is built.
set -eu
cd "$(dirname "$0")/../.."
root=$(pwd -P)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
unset CARGO_TARGET_DIR
export CARGO_PROFILE=quick PGO=no
commit=$(git rev-parse HEAD)
for copy in one another/with-a-longer-name; do
    mkdir -p "$folder/$copy/target"
    git archive "$commit" | tar --extract --directory "$folder/$copy"
    cp -R "$root/target/tools" "$folder/$copy/target/tools"
    SOURCE_DATE_EPOCH=1750000000 "$folder/$copy/deploy/dist/dist.sh" >"$folder/log" 2>&1 ||
        { tail -n 30 "$folder/log" >&2; exit 1; }
done
diff --recursive --brief "$folder/one/target/dist" "$folder/another/with-a-longer-name/target/dist"
cat "$folder/one/target/dist/SHA256SUMS"
echo "the same bytes in two folders"
