# Names that the scripts of a release share. They run in the folder of the repository.
# shellcheck shell=sh disable=SC2034
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version *= *"\(.*\)"$/\1/p' Cargo.toml)
TARGET=x86_64-unknown-linux-gnu
TOOLBOX=target/tools
# Builds and everything between them; the files of the release themselves.
WORK=target/dist-work
DIST=target/dist
# The small profile serves the test of reproducibility.
CARGO_PROFILE=${CARGO_PROFILE:-release}
