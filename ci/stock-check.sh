#!/usr/bin/env bash
# Compares with stock llama.cpp of the same pin and flags: greedy tokens and all logits bit for bit on every tiny model
# (mixtures also with their experts last) and on both real models, the same tokens with packed layouts, perplexity within 0.1 %. Then our builds of upstream's tools against stock's.
set -euo pipefail
cd "$(dirname "$0")/.."
# In one call, as each selection of packages has features of its own and is compiled anew; with llama-rs they are those
# of the tests.
cargo build --release -p smol-cli -p testkit -p llama-tools -p smolmaxxing -p llama-rs --bins --example greedy_tokens
smol=target/release/smol
path_of() {
    $smol models --json | python3 -c 'import json,sys
print(next(m["path"] for m in json.load(sys.stdin) if m["name"] == sys.argv[1]))' "$1"
}
$smol pull smollm2-135m
$smol pull gemma3-270m
quick=()
[ "$(uname -m)" != x86_64 ] || quick=(--quick)
ci/stock.sh "${quick[@]}" llama-perplexity llama-quantize llama-completion

tiny=target/tiny
rm -rf "$tiny"
target/release/testkit tiny "$tiny"
failed=0
compare() { # MODEL N PROMPT
    local stock ours packed
    stock=$(target/stock/bin/stock-tokens "$1" "$2" 2 "$3")
    ours=$(target/release/examples/greedy_tokens "$1" "$2" 2 "$3" plain)
    # The last word is the hash of the logits: packed layouts add up in another order.
    packed=$(target/release/examples/greedy_tokens "$1" "$2" 2 "$3")
    if [ "$stock" = "$ours" ] && [ "${stock% *}" = "${packed% *}" ]; then
        echo "same $2 tokens and logits: $(basename "$1")"
    else
        printf 'DIFFERENT: %s\n  stock  %s\n  plain  %s\n  packed %s\n' "$1" "$stock" "$ours" "$packed"
        failed=1
    fi
}
for model in "$tiny"/*.gguf; do
    # Stock wants the first shard of a split model.
    case $model in *-0000[2-9]-of-*) continue ;; esac
    compare "$model" 16 "The capital of France is"
done
# Experts last: stock computes the same, and makes the same of it; without experts it must refuse.
for model in "$tiny"/llama-moe*.gguf "$tiny"/bailingmoe*.gguf "$tiny"/glm4moe*.gguf; do
    last=$tiny/last-$(basename "$model")
    $smol recut --experts-last "$model" "$last" > /dev/null
    compare "$last" 16 "The capital of France is"
    stock=$(target/stock/bin/stock-tokens "$model" 16 2 "The capital of France is")
    quantized() { # MODEL
        target/stock/bin/llama-quantize --allow-requantize "$1" "$tiny/quantized.bin" Q8_0 2 > /dev/null 2>&1 &&
            target/stock/bin/stock-tokens "$tiny/quantized.bin" 16 2 "The capital of France is"
    }
    if [ "$(target/stock/bin/stock-tokens "$last" 16 2 "The capital of France is")" != "$stock" ] ||
        [ "$(quantized "$last")" != "$(quantized "$model")" ]; then
        echo "DIFFERENT with experts last: $model"
        failed=1
    fi
    $smol recut --punch "$last" --copy "$model" > /dev/null 2>&1
    if target/stock/bin/stock-tokens "$last" 1 2 "x" > /dev/null 2>&1; then
        echo "stock runs without experts: $model"
        failed=1
    fi
done
for name in smollm2-135m gemma3-270m; do
    compare "$(path_of "$name")" 64 "The capital of France is"
done

# About 7,000 tokens, however long the documentation gets.
text=target/perplexity.txt
cat README.md docs/*.md > "$text"
truncate -s 24000 "$text"
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

# Upstream's tools as we build them, plain and with an engine that watches.
out=target/stock-check
mkdir -p "$out"
printf '[observe]\nreport = "%s"\n' "$out/report.json" > "$out/watch.toml"
tool() { # HOW TOOL ARGS...
    case $1 in
        stock) "target/stock/bin/$2" "${@:3}" ;;
        plain) "target/release/$2" "${@:3}" ;;
        watched) "target/release/$2" --smol-config "$out/watch.toml" "${@:3}" ;;
    esac
}
same() { # WHAT STOCK PLAIN WATCHED
    if [ -n "$2" ] && [ "$2" = "$3" ] && [ "$2" = "$4" ]; then
        echo "same as stock's: $1"
    else
        printf 'DIFFERENT from stock: %s\n  stock   %s\n  plain   %s\n  watched %s\n' "$@"
        failed=1
    fi
}
smollm=$(path_of smollm2-135m)
for type in Q8_0 Q4_0 Q4_K_M Q5_K_M IQ4_XS Q2_K TQ2_0; do
    for how in stock plain watched; do
        tool $how llama-quantize --allow-requantize "$smollm" "$out/$how.gguf" "$type" 2 > "$out/$how.log" 2>&1
    done
    sum() { sha256sum < "$out/$1.gguf"; }
    same "llama-quantize $type" "$(sum stock)" "$(sum plain)" "$(sum watched)"
done
rm -f "$out"/*.gguf
complete() { # HOW
    tool "$1" llama-completion -m "$smollm" -p "The capital of France is" -n 64 --temp 0 -t 2 -no-cnv 2> /dev/null
}
# Stock's logger can lose the end of its output when the process exits: the longest of five is the whole.
stock=$(for _ in 1 2 3 4 5; do complete stock | base64 -w 0; echo; done | awk 'length > n { n = length; s = $0 } END { print s }')
same "llama-completion, 64 tokens" "$stock" "$(complete plain | base64 -w 0)" "$(complete watched | base64 -w 0)"
estimate() { # HOW
    tool "$1" llama-perplexity -m "$smollm" -f "$text" -c 256 --chunks 4 -t 2 2>&1 | sed -n 's/.*Final estimate: //p'
}
stock=
for _ in 1 2 3 4 5; do stock=${stock:-$(estimate stock)}; done
same "llama-perplexity" "$stock" "$(estimate plain)" "$(estimate watched)"
exit $failed
