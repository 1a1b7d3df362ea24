#!/usr/bin/env bash
# Format, clippy and documentation, all with warnings denied; the release profile shares its native build with the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
cargo clippy --release --workspace --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps
for script in ci/*.sh .ci/run; do bash -n "$script"; done
