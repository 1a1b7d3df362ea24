#!/usr/bin/env bash
# Builds stock llama.cpp of the pinned commit with cmake, for comparison: the same CPU flags as this project's build, no
# patches, no overlay. Result: target/stock/bin/{llama-bench,llama-perplexity,stock-tokens}.
# Usage: ci/stock.sh [--quick] [TARGET...]   (default: llama-bench llama-perplexity)
# --quick: not for measurements of speed (ci/stock.cmake).
# Needs cmake and ninja (python3 -m pip install cmake ninja) and a release build of `smol`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/target/stock
tree=$("$root/ci/pinned-tree.sh")
flags=$("$root/target/release/smol" doctor --json |
    python3 -c 'import json,sys; b = json.load(sys.stdin)["build"]
print(next(level["flags"] for level in b["cpu_levels"] if level["name"] == b["cpu_level"]))')

options=(-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Release -DLLAMA_OPENSSL=OFF
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_CURL=OFF
    "-DCMAKE_PROJECT_llama.cpp_INCLUDE=$root/ci/stock.cmake")
quick=OFF
[ "${1:-}" != --quick ] || { quick=ON && shift; }
options+=("-DSMOL_QUICK=$quick")
if [ "$(uname -m)" = x86_64 ]; then
    for pair in SSE42:-msse4.2 AVX:-mavx AVX2:-mavx2 FMA:-mfma F16C:-mf16c BMI2:-mbmi2 AVX_VNNI:-mavxvnni \
        AVX512:-mavx512f AVX512_VBMI:-mavx512vbmi AVX512_VNNI:-mavx512vnni AVX512_BF16:-mavx512bf16; do
        case " $flags " in *" ${pair#*:} "*) state=ON ;; *) state=OFF ;; esac
        options+=("-DGGML_${pair%%:*}=$state")
    done
else
    options+=("-DGGML_CPU_ARM_ARCH=${flags#-march=}")
fi

cmake -G Ninja -S "$tree" -B "$out" "${options[@]}" > "$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
[ $# -gt 0 ] || set -- llama-bench llama-perplexity
ninja -C "$out" "$@" > "$out.log" 2>&1 ||
    { tail -n 40 "$out.log" >&2; exit 1; }
libs=$(find "$out/src" "$out/ggml" -name '*.a' | sort -r | tr '\n' ' ')
# shellcheck disable=SC2086
c++ -std=c++17 -O2 -I "$tree/include" -I "$tree/ggml/include" "$root/ci/stock_tokens.cpp" -o "$out/bin/stock-tokens" \
    -Wl,--start-group $libs -Wl,--end-group -lpthread -ldl -lm
ls "$out/bin"
