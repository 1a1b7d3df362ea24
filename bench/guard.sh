#!/usr/bin/env bash
# What happens to a model that reads weights when another program takes the memory: in steps, which ends the work with an
# error, and at once, which ends the process.  Both are in one memory cgroup.
#
# Usage: bench/guard.sh [OPTIONS] MODEL
#   -s SMOL           the binary [built from this tree]
#   -l MIB            memory of both together [half of the model's size, and 200]
#   -t THREADS        [2]   -i SECONDS  between two steps [1]
# It makes a cgroup (v1 or v2), which takes root's rights, and removes it at its end, whatever ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
smol='' threads=2 seconds=1 limit=''
while getopts s:l:t:i: option; do
    case $option in
        s) smol=$OPTARG ;; l) limit=$OPTARG ;; t) threads=$OPTARG ;; i) seconds=$OPTARG ;;
        *) sed -n '5,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
model=$1
[ -n "$smol" ] || { cargo build --release -p smol-cli; smol=target/release/smol; }
limit=$((${limit:-$(($(stat -c %s "$model") / 2097152 + 200))} * 1048576))
disk=0
# shellcheck source=bench/fences.sh
. bench/fences.sh
[ -n "$in_memory" ] || exit 1

python3 -B bench/guard.py --model "$model" --smol "$smol" --threads "$threads" --seconds "$seconds" --limit "$limit" \
    --in-memory "$in_memory" &
child=$!
wait "$child"
child=''
