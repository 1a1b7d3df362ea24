#!/usr/bin/env bash
# AddressSanitizer over llama.cpp, the overlay and the safe API, with the tiny models.
# RUSTC_BOOTSTRAP lets a stable compiler take -Zsanitizer; C and C++ are instrumented by the system's compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=$PWD/target/asan
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
suffix=${target//-/_}
# -O1: instrumented at -O3 the compilation alone takes several times longer.
export "CFLAGS_$suffix=-fsanitize=address -O1 -g1" "CXXFLAGS_$suffix=-fsanitize=address -O1 -g1"
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
# Leaks: ggml keeps its registries and type tables for the process; everything else is checked by the tests.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1
# All but the programs that must not compile: there is nothing to run in them.
tests=()
for path in llama-rs/tests/*; do
    name=$(basename "$path" .rs)
    case $name in ui | common) ;; *) tests+=(--test "$name") ;; esac
done
cargo test --release --target "$target" -p llama-rs --lib "${tests[@]}"
