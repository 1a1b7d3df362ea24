# shellcheck shell=bash
# Sourced: tells bindgen where libclang lies, unless LIBCLANG_PATH is set.
if [ -z "${LIBCLANG_PATH:-}" ]; then
    LIBCLANG_PATH=$(dirname "$(find /usr/lib/llvm-*/lib -name 'libclang*.so*' 2> /dev/null | sort -V | tail -n 1)")
    export LIBCLANG_PATH
fi
