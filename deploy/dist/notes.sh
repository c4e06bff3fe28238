#!/bin/sh
# Prints the section of CHANGELOG.md for the version of Cargo.toml.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
awk -v heading="## [$VERSION]" '
    index($0, heading) == 1 { section = 1; next }
    section && (/^## / || /^\[[^]]*\]: /) { exit }
    section { print; lines++ }
    END { exit !lines }' CHANGELOG.md
