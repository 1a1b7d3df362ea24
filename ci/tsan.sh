#!/usr/bin/env bash
# ThreadSanitizer over the engine's threads, where the toolchain can build the standard library.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
source=$(rustc +nightly --print sysroot 2> /dev/null || true)/lib/rustlib/src/rust/library
if [ ! -d "$source" ]; then
    echo "no nightly toolchain here has the standard library's source (rustup +nightly component add rust-src): skipped"
    exit
fi
export CARGO_TARGET_DIR=$PWD/target/tsan RUSTFLAGS=-Zsanitizer=thread
cargo +nightly test --release -Zbuild-std --target "$target" -p smol-engine --test pager --test stream
