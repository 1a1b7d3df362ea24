#!/usr/bin/env bash
# Miri over the crates without C, where the toolchain has it.
set -euo pipefail
cd "$(dirname "$0")/.."
for toolchain in nightly stable; do
    if cargo "+$toolchain" miri --version > /dev/null 2>&1; then
        export MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=$PWD/target/miri
        cargo "+$toolchain" miri test -p smol-gguf --lib
        # Where the unsafe code is, and what hands its memory out; policies and simulation would take Miri an hour, and
        # reading the kernel's texts about its processors a minute.
        cargo "+$toolchain" miri test -p smol-engine --lib -- io:: machine:: expert::pager stream:: \
            --skip machine::cpu::linux
        exit
    fi
done
echo "no toolchain here has the miri component (rustup +nightly component add miri): skipped"
