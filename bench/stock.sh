#!/usr/bin/env bash
# Prompt and generation speed against stock llama-bench of the same pin and flags, interleaved: one round of each in
# turn, median of the ratios.  Usage: bench/stock.sh [ROUNDS] [THREADS] [MODEL_NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-7} threads=${2:-2}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- smollm2-135m gemma3-270m
cargo build --release -p smol-cli
[ -x target/stock/bin/llama-bench ] || ci/stock.sh llama-bench llama-perplexity
for name in "$@"; do
    target/release/smol pull "$name" >&2
    python3 - "$name" "$rounds" "$threads" <<'EOF'
import json, statistics, subprocess, sys
name, rounds, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3]
known = json.loads(subprocess.run(["target/release/smol", "models", "--json"], capture_output=True, check=True).stdout)
model = next(entry["path"] for entry in known if entry["name"] == name)
def run(command):
    rows = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return {("pp" if row["n_prompt"] else "tg") + str(row["n_prompt"] or row["n_gen"]): row["avg_ts"] for row in rows}
common = ["-m", model, "-p", "512", "-n", "64", "-r", "2", "-t", threads]
ratios, speeds = {}, {}
for index in range(rounds):
    order = ["stock", "smol"] if index % 2 == 0 else ["smol", "stock"]
    got = {}
    for who in order:
        command = ["target/stock/bin/llama-bench", *common, "-o", "json"] if who == "stock" else \
            ["target/release/smol", "bench", *common, "--json"]
        got[who] = run(command)
    for test in got["stock"]:
        ratios.setdefault(test, []).append(got["smol"][test] / got["stock"][test])
        speeds.setdefault(test, []).append((got["smol"][test], got["stock"][test]))
for test, values in ratios.items():
    ours, stock = (statistics.median(pair[i] for pair in speeds[test]) for i in (0, 1))
    print(f"{model.split('/')[-1]:44} {test:6} smol {ours:8.1f} t/s  stock {stock:8.1f} t/s  "
          f"ratio {statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})")
EOF
done
