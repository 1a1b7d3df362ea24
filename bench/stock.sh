#!/usr/bin/env bash
# Prompt and generation speed of `smol bench` and of our llama-bench against stock llama-bench of the same pin and flags,
# interleaved: one round of each in turn, median of the ratios.  Usage: bench/stock.sh [ROUNDS] [THREADS] [MODEL_NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-7} threads=${2:-2}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- smollm2-135m gemma3-270m
cargo build --release -p smol-cli -p llama-tools
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
commands = {
    "stock": ["target/stock/bin/llama-bench", *common, "-o", "json"],
    "smol bench": ["target/release/smol", "bench", *common, "--json"],
    "llama-bench": ["target/release/llama-bench", *common, "-o", "json"],
}
ratios, speeds = {}, {}
for index in range(rounds):
    # Whoever comes first meets the colder machine.
    names = list(commands)
    order = names[index % 3:] + names[:index % 3]
    got = {who: run(commands[who]) for who in order}
    for who in names[1:]:
        for test in got["stock"]:
            ratios.setdefault((who, test), []).append(got[who][test] / got["stock"][test])
            speeds.setdefault((who, test), []).append((got[who][test], got["stock"][test]))
for (who, test), values in ratios.items():
    ours, stock = (statistics.median(pair[i] for pair in speeds[who, test]) for i in (0, 1))
    print(f"{model.split('/')[-1]:36} {test:6} {who:11} {ours:8.1f} t/s  stock {stock:8.1f} t/s  "
          f"ratio {statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})")
EOF
done
