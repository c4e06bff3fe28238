#!/bin/sh
# Installs the programs of a release build, in the versions that it was tried with, where they are missing.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
# They run for seconds, so they need not be fast.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
for tool in cargo-auditable@0.7.7 cargo-cyclonedx@0.5.9 cargo-deb@3.8.0 cargo-generate-rpm@0.21.1; do
    name=${tool%@*} version=${tool#*@}
    grep -q "^\"$name $version " "$TOOLBOX/.crates.toml" 2>/dev/null ||
        cargo install --quiet --locked --root "$TOOLBOX" "$tool"
done
