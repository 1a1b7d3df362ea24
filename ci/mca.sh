#!/usr/bin/env bash
# Cycles per 128 weights of every packed kernel on a Cortex-A55 and an Apple A7, as llvm-mca models them, beside
# upstream's kernel for the same type. Fails when one is more than 5 % worse than the table in docs/kernels.md.
# Usage: ci/mca.sh [--update] [--kernels DIR] [LAYOUT...]   (LAYOUT: how names start, as in `ci/mca.sh q2_k`)
set -euo pipefail
cd "$(dirname "$0")/.."
packages=()
need() { command -v "$1" > /dev/null || packages+=("$2"); }
need llvm-mca-14 llvm-14
need qemu-aarch64-static qemu-user-static
if [ ${#packages[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" > /dev/null
fi
python3 -m ziglang version > /dev/null 2>&1 || ci/cross-install.sh
exec python3 ci/mca/mca.py "$@"
