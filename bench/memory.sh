#!/usr/bin/env bash
# Dense models larger than memory against the speed of the disk, and against stock llama.cpp, which maps the file: 1.9 GB in
# a memory cgroup of 900 MB, with the disk throttled; loads with the packed-weight cache; pruned vocabulary heads.  Makes
# the models, the cgroup and the tables of docs/memory.md.
#
# Usage: bench/memory.sh [OPTIONS] [STOCK_BIN_FOLDER]
#   STOCK_BIN_FOLDER  where stock's llama-completion lies (see ci/stock.sh) [target/stock/bin]
#   -p PARTS          some of stock,stream,open,cache,head [all]
#   -m MODEL          a dense model; made by testkit in the work folder if this is not said
#   -s SMOL           the binary to measure [built from this tree]
#   -w FOLDER         work folder, on a real disk with 5 GB free [target/bench-memory]
#   -t THREADS        [2]   -n TOKENS  generated tokens of a run [12]   -r ROUNDS  of what is interleaved [5]
#   -d MB_PER_S       speed the disk is throttled to; 0 leaves it as it is [278]
#   -c CORPUS         text whose tokens pruned heads keep, or a folder of texts [a part of bench/persuasion.txt]
# As root it makes cgroups (v1 or v2) and changes the disk's read-ahead, and undoes both at its end, whatever ends it. What
# it may not do it says, and leaves out the parts that need it.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=stock,stream,open,cache,head
model='' smol='' folder=target/bench-memory threads=2 tokens=12 rounds=5 disk=278 corpus=''
while getopts p:m:s:w:t:n:r:d:c: option; do
    case $option in
        p) parts=$OPTARG ;; m) model=$OPTARG ;; s) smol=$OPTARG ;; w) folder=$OPTARG ;; t) threads=$OPTARG ;;
        n) tokens=$OPTARG ;; r) rounds=$OPTARG ;; d) disk=$OPTARG ;; c) corpus=$OPTARG ;;
        *) sed -n '6,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
stock=${1:-target/stock/bin}

[ -n "$smol" ] || { cargo build --release -p smol-cli; smol=target/release/smol; }
mkdir -p "$folder"
"$smol" pull smollm2-135m gemma3-270m >&2
path_of() {
    "$smol" models --json | python3 -c 'import json, sys
print(next(entry["path"] for entry in json.load(sys.stdin) if entry["name"] == sys.argv[1]))' "$1"
}
# deep FILE OPTIONS...: a dense model made of SmolLM2.
deep() {
    local file=$1
    shift
    [ -e "$file" ] && return
    cargo build --release -p testkit
    target/release/testkit deep "$(path_of smollm2-135m)" "$file.part" "$@" >&2
    sync "$file.part"
    mv "$file.part" "$file"
}
if [ -z "$model" ]; then
    model=$folder/dense.gguf
    deep "$model"
fi
packed=$folder/dense-1gb.gguf
case ,$parts, in *,cache,*) deep "$packed" --columns 1536 --heads 24 --units 4096 --layers 64 ;; esac

limit=900000000
# shellcheck source=bench/fences.sh
. bench/fences.sh

python3 -B bench/memory.py --parts "$parts" --model "$model" --packed "$packed" --smol "$smol" --stock "$stock" \
    --folder "$folder" --text bench/persuasion.txt --threads "$threads" --tokens "$tokens" --rounds "$rounds" \
    --limit "$limit" --in-memory "$in_memory" --in-disk "$in_disk" --read-ahead "$read_ahead" \
    --small "$(path_of smollm2-135m)" --large "$(path_of gemma3-270m)" --corpus "$corpus" &
child=$!
wait "$child"
child=''
