#!/usr/bin/env bash
# Writes vendor/files.sha256 for a llama.cpp tree: ci/pin-update.sh TREE
set -euo pipefail
tree=${1:?usage: ci/pin-update.sh TREE}
out=$(cd "$(dirname "$0")/.." && pwd)/vendor/files.sha256
cd "$tree"
{
    ls LICENSE CMakeLists.txt ggml/CMakeLists.txt ggml/src/CMakeLists.txt ggml/src/ggml-cpu/CMakeLists.txt src/CMakeLists.txt
    find ggml/include include src -name '*.h' -o -path 'src/*.cpp'
    find ggml/src -maxdepth 1 \( -name '*.c' -o -name '*.cpp' -o -name '*.h' \)
    find ggml/src/ggml-cpu -maxdepth 1 \( -name '*.c' -o -name '*.cpp' -o -name '*.h' \)
    find ggml/src/ggml-cpu/{amx,tiled,llamafile,arch/x86,arch/arm} \( -name '*.c' -o -name '*.cpp' -o -name '*.h' \)
    # What the feature `tools` needs.
    find common \( -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.in' -o -name 'CMakeLists.txt' -o -name '*.cmake' \)
    for tool in llama-bench perplexity quantize completion; do ls tools/$tool/{CMakeLists.txt,$tool.cpp}; done
    ls vendor/cpp-httplib/{CMakeLists.txt,LICENSE,httplib.cpp,httplib.h} vendor/nlohmann/*.hpp vendor/sheredom/subprocess.h
} | LC_ALL=C sort -u | xargs sha256sum > "$out"
wc -l "$out"
