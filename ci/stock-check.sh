#!/usr/bin/env bash
# Compares with stock llama.cpp of the same pin and flags: greedy tokens and all logits bit for bit on every tiny model
# and on both real models, perplexity within 0.1 %.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release -p smol-cli -p testkit
cargo build --release -p smolmaxxing --example greedy_tokens
smol=target/release/smol
path_of() {
    $smol models --json | python3 -c 'import json,sys
print(next(m["path"] for m in json.load(sys.stdin) if m["name"] == sys.argv[1]))' "$1"
}
$smol pull smollm2-135m
$smol pull gemma3-270m
ci/stock.sh llama-perplexity

tiny=target/tiny
rm -rf "$tiny"
target/release/testkit tiny "$tiny"
failed=0
compare() { # MODEL N PROMPT
    local stock ours
    stock=$(target/stock/bin/stock-tokens "$1" "$2" 2 "$3")
    ours=$(target/release/examples/greedy_tokens "$1" "$2" 2 "$3")
    if [ "$stock" = "$ours" ]; then
        echo "same $2 tokens and logits: $(basename "$1")"
    else
        printf 'DIFFERENT: %s\n  stock %s\n  ours  %s\n' "$1" "$stock" "$ours"
        failed=1
    fi
}
for model in "$tiny"/*.gguf; do
    # Stock wants the first shard of a split model.
    case $model in *-0000[2-9]-of-*) continue ;; esac
    compare "$model" 16 "The capital of France is"
done
for name in smollm2-135m gemma3-270m; do
    compare "$(path_of "$name")" 64 "The capital of France is"
done

text=target/perplexity.txt
cat README.md docs/*.md vendor/README.md > "$text"
for name in smollm2-135m gemma3-270m; do
    model=$(path_of "$name")
    stock=$(target/stock/bin/llama-perplexity -m "$model" -f "$text" -c 256 -t 2 2>&1 |
        sed -n 's/.*Final estimate: PPL = \([0-9.]*\).*/\1/p')
    ours=$($smol perplexity -m "$model" -f "$text" -c 256 -t 2 --json |
        python3 -c 'import json,sys; print(json.load(sys.stdin)["perplexity"])')
    python3 - "$name" "$stock" "$ours" <<'EOF' || failed=1
import sys
name, stock, ours = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
print(f"perplexity of {name}: stock {stock}, ours {ours}, ratio {ours / stock:.6f}")
sys.exit(abs(ours / stock - 1) > 0.001)
EOF
done
exit $failed
