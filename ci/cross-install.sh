#!/usr/bin/env bash
# Installs what cross builds need on a Debian machine where rustup cannot download anything: zig as C and C++ compiler
# and linker (from PyPI), Debian's rustc with the source of its std, and qemu to run the result.
set -euo pipefail
packages=()
need() { [ -e "$1" ] || packages+=("$2"); }
need /usr/lib/rustlib/src/rust/library/Cargo.lock rust-web-src
# After rustup's in the path, so by its place: compiler and source must be of one version.
/usr/bin/rustc --version > /dev/null 2>&1 || packages+=(rustc-web)
need /usr/bin/qemu-aarch64-static qemu-user-static
need /usr/bin/file file
if [ ${#packages[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" > /dev/null
fi
python() { python3 -m pip install -q "$@" 2> /dev/null || python3 -m pip install -q --break-system-packages "$@"; }
python3 -m ziglang version > /dev/null 2>&1 || python ziglang==0.17.1
command -v cargo-zigbuild > /dev/null || python cargo-zigbuild==0.24.1
echo "cross tools are in place: zig $(python3 -m ziglang version), $(/usr/bin/rustc --version)"
