#!/bin/sh
# Cargo for cargo-auditable, which names itself by its whole path; cargo mixes that name into those of symbols.
RUSTC_WORKSPACE_WRAPPER=cargo-auditable exec cargo "$@"
