#!/usr/bin/env bash
# Documentation and `cargo check` need no C++ compiler; a build says that one is missing.
# (ci/package.sh builds without the patches.)
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=$PWD/target/features
CXX=/nonexistent CC=/nonexistent cargo check --release -p ggml-sys
if CXX=/nonexistent CC=/nonexistent cargo build --release -p ggml-sys 2> target/features.log; then
    echo "a build without a C++ compiler must fail" >&2
    exit 1
fi
grep -q 'needs-a-C++17-compiler' target/features.log
DOCS_RS=1 CXX=/nonexistent CC=/nonexistent cargo doc --release -p ggml-sys --no-deps
