#!/bin/sh
# Verifies the units and their sandbox. `systemd-analyze verify` looks for the programs, so it gets one that exists.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp deploy/sluicegate.socket "$folder"
sed 's#/usr/bin/sluicegate#/bin/true#' deploy/sluicegate.service >"$folder/sluicegate.service"
found=$(systemd-analyze verify --man=no --recursive-errors=no "$folder/sluicegate.service" "$folder/sluicegate.socket" 2>&1)
if [ -n "$found" ]; then
    echo "$found" >&2
    exit 1
fi
# The exposure times ten: at most 2.0.
exposure=$(systemd-analyze security --offline=true --threshold=20 --no-pager deploy/sluicegate.service 2>&1) || {
    echo "$exposure" >&2
    exit 1
}
echo "$exposure" | tail -n 1
