#!/bin/sh
# Builds the program of a release: build.sh plain|instrumented|optimised [PROFILE], and prints its path.
#
# The three builds share cargo's profile, target, wrapper and features, because the names of symbols depend on them and
# a profile of other symbols changes nothing, without a warning. No path of this machine enters the program: cargo
# leaves RUSTFLAGS with a remapping out of all names, and the wrapper is named without its folder.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
kind=$1
root=$(pwd -P)
home=$(realpath "${CARGO_HOME:-$HOME/.cargo}")
sysroot=$(rustc --print sysroot)
hash=$(rustc -vV | sed -n 's/^commit-hash: //p')
case "$root$home$sysroot" in
    *[[:space:]]*) echo "build.sh: a path with a space cannot be remapped: $root, $home, $sysroot" >&2; exit 1 ;;
esac

# Of two that match, both compilers take the last one.
maps="$home=/cargo $root=/sluicegate $sysroot/lib/rustlib/src/rust=/rustc/$hash"
for registry in "$home"/registry/src/*/; do
    maps="$maps ${registry%/}=/crates"
done
rust_flags=
c_flags=
for map in $maps; do
    rust_flags="$rust_flags --remap-path-prefix=$map"
    c_flags="$c_flags -ffile-prefix-map=$map"
done

unset SLUICEGATE_PGO
case $kind in
    plain) export SLUICEGATE_PGO=no ;;
    instrumented) rust_flags="$rust_flags -Cprofile-generate=$root/$WORK/counters" ;;
    optimised) rust_flags="$rust_flags -Cprofile-use=$(realpath "$2")" ;;
    *) echo "build.sh: no kind $kind" >&2; exit 2 ;;
esac

unset CARGO_ENCODED_RUSTFLAGS
export RUSTFLAGS="$rust_flags" CFLAGS="$c_flags" CARGO=deploy/dist/cargo.sh CARGO_INCREMENTAL=0
export PATH="$root/$TOOLBOX/bin:$PATH"
cargo-auditable auditable build --locked --bin sluicegate --profile "$CARGO_PROFILE" --target "$TARGET" \
    --target-dir "$WORK/$kind" >&2
echo "$WORK/$kind/$TARGET/$CARGO_PROFILE/sluicegate"
