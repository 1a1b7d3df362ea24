#!/usr/bin/env bash
# Whole models with packed layouts and without, by turns on this machine: medians of tokens/s, and their ratio.
# Usage: bench/layouts.sh ROUNDS THREADS [PROMPT] [GENERATE] MODEL.gguf...   (PROMPT 512, GENERATE 64; 0 leaves it out)
set -euo pipefail
rounds=${1:?usage: bench/layouts.sh ROUNDS THREADS [PROMPT] [GENERATE] MODEL.gguf...} threads=$2
shift 2
prompt=512 generate=64
case ${1:-} in [0-9]*) prompt=$1 && shift ;; esac
case ${1:-} in [0-9]*) generate=$1 && shift ;; esac
smol=$(cd "$(dirname "$0")/.." && pwd)/target/release/smol
for ((round = 0; round < rounds; round++)); do
    for model in "$@"; do
        for layouts in off auto; do
            "$smol" bench -m "$model" -p "$prompt" -n "$generate" -r 1 -t "$threads" --layouts "$layouts" --json |
                python3 -c 'import json, sys
for row in json.load(sys.stdin):
    print(*sys.argv[1:], "prompt" if row["n_prompt"] else "generation", row["avg_ts"])' "$model" "$layouts"
        done
    done
done | python3 -c 'import statistics, sys, pathlib
speeds = {}
for line in sys.stdin:
    model, layouts, test, speed = line.rsplit(" ", 3)
    speeds.setdefault((pathlib.Path(model).stem, test), {}).setdefault(layouts, []).append(float(speed))
print("| model | test | plain, tokens/s | packed, tokens/s | ratio |\n|---|---|---:|---:|---|")
for (model, test), of in speeds.items():
    ratios = sorted(b / a for a, b in zip(of["off"], of["auto"]))
    plain, packed = (statistics.median(of[layouts]) for layouts in ("off", "auto"))
    print(f"| {model} | {test} | {plain:.1f} | {packed:.1f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) |")'
