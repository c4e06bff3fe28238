#!/bin/sh
# Writes the bill of materials of the program, in CycloneDX: sbom.sh FILE.
#
# cargo-cyclonedx writes a file beside each manifest of the workspace, so it gets a copy of the manifests.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
copy=$WORK/manifests
rm -rf "$copy"
mkdir -p "$copy"
for manifest in Cargo.toml crates/*/Cargo.toml; do
    folder=$copy/$(dirname "$manifest")
    mkdir -p "$folder/src"
    sed '/^\[\[bench\]\]$/,/^$/d' "$manifest" >"$folder/Cargo.toml"
    : >"$folder/src/lib.rs"
done
echo 'fn main() {}' >"$copy/src/main.rs"
cp Cargo.lock "$copy"
"$TOOLBOX/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --target "$TARGET" \
    --manifest-path "$copy/Cargo.toml"
python3 deploy/dist/sbom.py "$copy" "$TARGET" >"$1"
