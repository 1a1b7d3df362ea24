#!/usr/bin/env bash
# The expert pager against the speed of the disk, and against stock llama.cpp, which maps the file: a mixture of 3.4 GB in
# a memory cgroup of a third of that, with the disk throttled.  Makes the model, the cgroup and the tables of docs/pager.md.
#
# Usage: bench/pager.sh [OPTIONS] [STOCK_BIN_FOLDER]
#   STOCK_BIN_FOLDER  where stock's llama-completion lies (see ci/stock.sh) [target/stock/bin]
#   -p PARTS          some of stock,pager,bias,prefetch,pool,resident,prompt,perplexity [all]
#   -m MODEL          a mixture of experts; made by testkit in the work folder if this is not said
#   -s SMOL           the binary to measure [built from this tree]
#   -w FOLDER         work folder, on a real disk with 4 GB free [target/bench-pager]
#   -t THREADS        [1]   -n TOKENS  generated tokens of a run [96]   -r ROUNDS  of what is interleaved [5]
#   -d MB_PER_S       speed the disk is throttled to; 0 leaves it as it is [278]
#   -o SVG            where the plot of tokens/s against the size of the pool goes [FOLDER/pool.svg]
# As root it makes cgroups (v1 or v2) and changes the disk's read-ahead, and undoes both at its end, whatever ends it. What
# it may not do it says, and leaves out the parts that need it.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=stock,pager,bias,prefetch,pool,resident,prompt,perplexity
model='' smol='' folder=target/bench-pager threads=1 tokens=96 rounds=5 disk=278 svg=''
while getopts p:m:s:w:t:n:r:d:o: option; do
    case $option in
        p) parts=$OPTARG ;; m) model=$OPTARG ;; s) smol=$OPTARG ;; w) folder=$OPTARG ;; t) threads=$OPTARG ;;
        n) tokens=$OPTARG ;; r) rounds=$OPTARG ;; d) disk=$OPTARG ;; o) svg=$OPTARG ;;
        *) sed -n '5,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
stock=${1:-target/stock/bin}

[ -n "$smol" ] || { cargo build --release -p smol-cli; smol=target/release/smol; }
mkdir -p "$folder"
text=bench/persuasion.txt
if [ -z "$model" ]; then
    model=$folder/mixture-96x4-q2_k.gguf
    if [ ! -e "$model" ]; then
        cargo build --release -p testkit
        "$smol" pull smollm2-135m >&2
        dense=$("$smol" models --json | python3 -c 'import json, sys
print(next(entry["path"] for entry in json.load(sys.stdin) if entry["name"] == "smollm2-135m"))')
        head -c 14000 "$text" > "$folder/routers.txt"
        target/release/testkit moe "$dense" "$model.part" --text "$folder/routers.txt" \
            --arch glm4moe --experts 96 --used 4 --type Q2_K >&2
        sync "$model.part"
        mv "$model.part" "$model"
    fi
fi

limit=$(($(stat -c %s "$model") / 3))
# shellcheck source=bench/fences.sh
. bench/fences.sh

python3 -B bench/pager.py --parts "$parts" --model "$model" --smol "$smol" --stock "$stock" --folder "$folder" \
    --text "$text" --threads "$threads" --tokens "$tokens" --rounds "$rounds" --svg "${svg:-$folder/pool.svg}" \
    --limit "$limit" --in-memory "$in_memory" --in-disk "$in_disk" --read-ahead "$read_ahead" &
child=$!
wait "$child"
child=''
