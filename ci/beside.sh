#!/usr/bin/env bash
# This library beside others in one program: no native name is left that another ggml may have too, and with whisper.cpp,
# which carries a ggml of another version, both compute what they compute alone (ci/beside). Needs cmake (ci/install.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/prebuilt.sh
foreign=$(nm -g --defined-only "$archive" | awk 'NF == 3 { print $3 }' | grep -vE '^smol_|\.smol$' | sort -u || true)
wanted=$(nm -gu "$archive" | grep -E ' (ggml|gguf|llama)_' | sort -u || true)
# Of the groups with one signature, inline functions and templates, the linker keeps one.
groups=$(readelf -gW "$archive" | sed -n 's/^COMDAT group .*\[\(.*\)\] contains .*/\1/p')
merged=$(grep -vE '^smol_|\.smol$' <<< "$groups" | sort -u || true)
if [ -n "$foreign$wanted$merged" ] || [ -z "$groups" ]; then
    printf 'names that another ggml may have too; defined:\n%s\nused:\n%s\ngroups:\n%s\n' \
        "$foreign" "$wanted" "$merged" >&2
    exit 1
fi
# The generated bindings of whisper-rs-sys are in its package: no libclang.
WHISPER_DONT_GENERATE_BINDINGS=1 cargo test "${prebuilt[@]}"
