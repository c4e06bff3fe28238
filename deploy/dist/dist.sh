#!/bin/sh
# Builds, trains, measures and packs a release: dist.sh, with PGO=no or PROFILE=FILE in the environment.
#
# PGO=no builds without a profile, and every file name says so. PROFILE names the merged profile of an earlier training,
# such as the one among the files of a release, which gives the same bytes again.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
mkdir -p "$WORK"

llvm_profdata() {
    llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    sysroot=$(rustc --print sysroot)
    for program in "$sysroot/lib/rustlib/$TARGET/bin/llvm-profdata" "llvm-profdata-$llvm"; do
        command -v "$program" && return
    done
    echo "make dist: rustc has LLVM $llvm, whose llvm-profdata is missing. Install Debian's package llvm-$llvm, or run" \
        "\`rustup component add llvm-tools\`; \`make dist PGO=no\` builds a slower program without it." >&2
    return 1
}

if [ "${PGO:-yes}" = no ]; then
    program=$(deploy/dist/build.sh plain)
    exec deploy/dist/package.sh "$program" -no-pgo
fi

profile=$WORK/merged.profdata
if [ -n "${PROFILE:-}" ]; then
    [ "$PROFILE" -ef "$profile" ] || cp "$PROFILE" "$profile"
else
    llvm_profdata=$(llvm_profdata)
    program=$(deploy/dist/build.sh instrumented)
    rm -rf "$WORK/counters"
    python3 deploy/dist/train.py "$program" "$WORK/counters"
    "$llvm_profdata" merge --output "$profile" "$WORK"/counters/*.profraw
fi
plain=$(deploy/dist/build.sh plain)
optimised=$(deploy/dist/build.sh optimised "$profile")
deploy/dist/compare.sh "$plain" "$optimised"
exec deploy/dist/package.sh "$optimised" "" "$profile"
