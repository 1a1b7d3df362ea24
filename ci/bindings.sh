#!/usr/bin/env bash
# Regenerates the bindings from the pinned headers and compares them with the committed ones.
# With --write: takes the regenerated ones over.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/libclang.sh
# As for documentation: nothing is compiled.
export DOCS_RS=1
command=(cargo check --release -p ggml-sys --features buildtime-bindgen)
dir=$("${command[@]}" --message-format json 2> /dev/null |
    sed -n 's/.*"package_id":"[^"]*ggml-sys[^"]*".*"out_dir":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -n "$dir" ] || { "${command[@]}"; exit 1; }
if [ "${1:-}" = --write ]; then
    cp "$dir/bindings.rs" ggml-sys/src/bindings.rs
fi
diff -u ggml-sys/src/bindings.rs "$dir/bindings.rs" || {
    echo "ggml-sys/src/bindings.rs is not what the headers give: run ci/bindings.sh --write" >&2
    exit 1
}
echo "the committed bindings are those of the pinned headers"
