#!/bin/sh
# Ends with an error unless the profile pays: compare.sh PLAIN OPTIMISED. A profile that does not fit the program, by
# another compiler, cargo profile or source, changes nothing, and no tool warns of it.
set -eu
cd "$(dirname "$0")/../.."
. deploy/dist/names.sh
RATIO_MAX=0.92

for program in "$1" "$2"; do
    echo "compare.sh: instructions of a request by $program" >&2
    cargo test --locked --bench instructions -- --gateway "$program" >"$WORK/instructions" 2>&1 ||
        { cat "$WORK/instructions" >&2; exit 1; }
    grep '^sluicegate ' "$WORK/instructions" | tee "$WORK/instructions-$(basename "$(dirname "$program")")" >&2
    sed -n 's/^sluicegate *\([a-z-]*\) *\([0-9]*\) user instructions.*/\1 \2/p' "$WORK/instructions" >"$WORK/counts"
    cat "$WORK/counts"
done | awk -v most="$RATIO_MAX" '
    !($1 in plain) { plain[$1] = $2; next }
    { ratio = $2 / plain[$1]; printf "%-10s %7d -> %7d: %.3f of the plain program\n", $1, plain[$1], $2, ratio; seen++
      if (($1 == "none" || $1 == "pass") && ratio > most) { printf "more than %s\n", most; bad = 1 } }
    END { exit bad || !(seen >= 3) }' ||
    { echo "compare.sh: the profile does not pay, or was not compared" >&2; exit 1; }
