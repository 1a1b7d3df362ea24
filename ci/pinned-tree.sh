#!/usr/bin/env bash
# Prints the folder of the unpatched, pinned llama.cpp tree, fetched by cargo as the build script does.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -f "$root/vendor/llama.cpp/include/llama.h" ]; then
    echo "$root/vendor/llama.cpp"
    exit
fi
value() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" "$root/vendor/pin.toml"; }
package=$(value package)
scratch=$root/target/fetch
mkdir -p "$scratch/src"
: > "$scratch/src/lib.rs"
cp "$root/vendor/fetch.lock" "$scratch/Cargo.lock"
cat > "$scratch/Cargo.toml" <<EOF
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[workspace]

[dependencies.$package]
version = "=$(value package_version)"
default-features = false
EOF
host=$(rustc -vV | sed -n 's/^host: //p')
dir=$(cd "$scratch" && cargo metadata --locked --format-version 1 --filter-platform "$host" |
    grep -o '"manifest_path":"[^"]*/'"$package"'-[^"]*/Cargo.toml"' | head -n 1 | cut -d'"' -f4)
dir=$(dirname "$dir")/llama.cpp
# The same check as the build script's.
(cd "$dir" && sha256sum --quiet --check "$root/vendor/files.sha256") >&2
echo "$dir"
