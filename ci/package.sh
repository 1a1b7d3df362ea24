#!/usr/bin/env bash
# Packs ggml-sys and builds and tests it from the package alone, away from the workspace, and without the patches: each
# of them can be left out. That the package applies them too is seen where nothing has to be compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
dir=$root/target/from-package
rm -rf "$dir" target/package/ggml-sys-*
cargo package -p ggml-sys --no-verify --allow-dirty -q
mkdir -p "$dir"
# Files in a package have all the same time: with it, a change since an earlier run would not be seen.
tar -xmzf target/package/ggml-sys-*.crate -C "$dir" --strip-components 1
printf '\n[workspace]\n' >> "$dir/Cargo.toml"
cd "$dir"
# The workspace's: what no patch changes has been compiled there (ggml-sys/build/native/reuse.rs).
export CARGO_TARGET_DIR=$root/target
cargo test --release --no-default-features
# The second build must find nothing to do.
again=$(cargo build --release --no-default-features 2>&1)
again=$(cargo build --release --no-default-features 2>&1)
if grep -q Compiling <<< "$again"; then
    echo "a second build compiles again: $again" >&2
    exit 1
fi
source "$root/ci/libclang.sh"
DOCS_RS=1 cargo check --release --features buildtime-bindgen
