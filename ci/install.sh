#!/usr/bin/env bash
# Installs what the checks need beyond a Rust toolchain: a C++17 compiler and pip are all that a user needs; libclang,
# cmake and ninja are for the comparison with regenerated bindings and with stock llama.cpp.
set -euo pipefail
packages=()
need() { command -v "$1" > /dev/null || packages+=("$2"); }
need c++ g++
need python3 python3
[ -n "$(find /usr/lib/llvm-*/lib -name 'libclang*.so*' 2> /dev/null | head -n 1)" ] || packages+=(libclang-dev)
if [ ${#packages[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" > /dev/null
fi
python3 -m pip --version > /dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq python3-pip > /dev/null; }
for tool in cmake ninja; do
    command -v "$tool" > /dev/null || python3 -m pip install -q "$tool" 2> /dev/null ||
        python3 -m pip install -q --break-system-packages "$tool"
done
echo "tools are in place"
