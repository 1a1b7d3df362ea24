#!/usr/bin/env bash
# `smol recut --experts-last` against `cp`, both until all is on disk, in changing order; then --punch and --fill of the copy.
# Prints medians, smallest and largest of the rounds, and the peak memory of recut. The files go to the current folder, whose disk is
# measured: three times the model's size.
# Usage: bench/recut.sh [-s SMOL] MODEL [ROUNDS]   (a mixture of experts; `testkit moe` makes one; default: 7 rounds)
#   -s SMOL  the binary to measure [built from this tree]
set -euo pipefail
usage() { sed -n '5,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
smol=''
while getopts s: option; do
    case $option in s) smol=$(readlink -f "$OPTARG") ;; *) usage ;; esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
model=$(readlink -f "$1") rounds=${2:-7}
if [ -z "$smol" ]; then
    root=$(cd "$(dirname "$0")/.." && pwd)
    (cd "$root" && cargo build --release -p smol-cli)
    smol=$root/target/release/smol
fi
work=$(mktemp -d -p .)
trap 'rm -rf "$work"' EXIT

now() { date +%s.%N; }
clear() { rm -f "$work"/*.gguf; sync; sleep 2; }
copy() {
    clear
    local start; start=$(now)
    cp "$model" "$work/copy.gguf"; sync "$work/copy.gguf"
    cp_seconds=$(echo "$(now) - $start" | bc)
}
recut() {
    clear
    local start seen; start=$(now)
    "$smol" recut --experts-last "$model" "$work/last.gguf" > "$work/report" &
    peak=0
    while kill -0 $! 2> /dev/null; do
        # Where there is no /proc, memory isn't told.
        seen=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$!/status" 2> /dev/null || true)
        peak=${seen:-$peak}
        sleep 0.01
    done
    wait $!
    recut_seconds=$(echo "$(now) - $start" | bc)
}
cat "$model" > /dev/null
for round in $(seq "$rounds"); do
    # What comes second finds a busier disk, so that they take turns at it.
    if [ $((round % 2)) = 1 ]; then copy; recut; else recut; copy; fi
    echo "$cp_seconds $recut_seconds $peak"
done | python3 -c '
import statistics, sys
rows = [[float(word) for word in line.split()] for line in sys.stdin]
cp, recut = [r[0] for r in rows], [r[1] for r in rows]
def show(name, values, unit):
    print(f"{name:10} {statistics.median(values):8.2f} ({min(values):.2f}-{max(values):.2f}) {unit}")
show("cp", cp, "s")
show("recut", recut, "s")
show("cp/recut", [a / b for a, b in zip(cp, recut)], "")
show("memory", [r[2] / 1000 for r in rows], "MB")'
cat "$work/report"

"$smol" recut --experts-last --force "$model" "$work/last.gguf" > /dev/null
cp "$model" "$work/model.gguf"
sync
"$smol" recut --punch "$work/model.gguf" --copy "$work/last.gguf"
du -k "$work/model.gguf"
"$smol" recut --fill "$work/model.gguf" --copy "$work/last.gguf"
cmp "$work/model.gguf" "$model" && echo "filled: the same bytes as before"
