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
say() { echo "bench/pager.sh: $*" >&2; }

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

# The disk below the model, of a partition the whole one; nothing where the file system has no block device of its own.
device=$(python3 -c 'import os, sys; d = os.stat(sys.argv[1]).st_dev; print(f"{os.major(d)}:{os.minor(d)}")' "$model")
block=$(readlink -f "/sys/dev/block/$device" || true)
[ ! -e "$block/partition" ] || block=${block%/*}
disk_id='' read_ahead=''
if [ -e "$block/queue" ]; then
    disk_id=$(cat "$block/dev")
    [ ! -w "$block/queue/read_ahead_kb" ] || read_ahead=$block/queue/read_ahead_kb
else
    say "the model lies on no block device ($device): the disk can't be throttled, nor its read-ahead set"
fi

groups=() handed_out=() old_read_ahead='' child=''
clean_up() {
    trap '' INT TERM HUP
    if [ -n "$child" ] && kill "$child" 2>/dev/null; then wait "$child" || true; fi  # it ends what it started
    for group in ${groups[@]+"${groups[@]}"}; do
        # Only what was started into these groups is in them. A killed process stays in its group until it is gone.
        for _ in $(seq 100); do
            pids=$(cat "$group/cgroup.procs" 2>/dev/null || true)
            # shellcheck disable=SC2086
            [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
            rmdir "$group" 2>/dev/null && break
            sleep 0.1
        done
        [ ! -d "$group" ] || say "could not remove $group"
    done
    for controller in ${handed_out[@]+"${handed_out[@]}"}; do write "-$controller" "$v2/cgroup.subtree_control" || true; done
    [ -z "$old_read_ahead" ] || echo "$old_read_ahead" > "$read_ahead"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [ -n "$read_ahead" ]; then
    old_read_ahead=$(cat "$read_ahead")
    # Asks for the right to write: root in a container has none.
    echo "$old_read_ahead" 2>/dev/null > "$read_ahead" || read_ahead='' old_read_ahead=''
fi
[ -n "$read_ahead" ] || say "the read-ahead can't be set: it stays as it is"

# new_group FOLDER: a cgroup, to be removed at the end.
new_group() { mkdir "$1" 2>/dev/null && groups=("$1" ${groups[@]+"${groups[@]}"}); }
# write VALUE FILE, whatever happens to it.
write() { echo "$1" 2>/dev/null > "$2"; }

limit=$(($(stat -c %s "$model") / 3))
name=smol-pager-$$
in_memory='' in_disk=''  # the cgroup.procs files that a process enters for the memory limit, and for the throttle
throttle=$disk_id
[ "$disk" != 0 ] || throttle=''
mounts() { awk -v kind="$1" -v with="$2" '$3 == kind && (with == "" || index("," $4 ",", "," with ",")) { print $2; exit }' /proc/mounts; }
memory_v1=$(mounts cgroup memory) disk_v1=$(mounts cgroup blkio) v2=$(mounts cgroup2 '')
if [ -n "$memory_v1" ]; then
    # Below the group that this script is in, so that its limits stay in force.
    own=$memory_v1$(sed -n 's/^[0-9]*:\([^:]*,\)\{0,1\}memory\(,[^:]*\)\{0,1\}://p' /proc/self/cgroup)
    [ -d "$own" ] || own=$memory_v1
    group=${own%/}/$name
    if new_group "$group" && write "$limit" "$group/memory.limit_in_bytes"; then
        write 0 "$group/memory.swappiness" || true
        in_memory=$group/cgroup.procs
    fi
    group=$disk_v1/$name
    if [ -n "$disk_v1" ] && [ -n "$throttle" ] && new_group "$group" &&
        write "$disk_id $((disk * 1000000))" "$group/blkio.throttle.read_bps_device"; then
        in_disk=$group/cgroup.procs
    fi
elif [ -n "$v2" ]; then
    # The root may hold processes and hand out controllers at once; other groups may not.
    for controller in memory io; do
        if ! grep -qw "$controller" "$v2/cgroup.subtree_control" && write "+$controller" "$v2/cgroup.subtree_control"; then
            handed_out+=("$controller")
        fi
    done
    if new_group "$v2/$name-disk" && [ -n "$throttle" ] &&
        write "$disk_id rbps=$((disk * 1000000))" "$v2/$name-disk/io.max"; then
        in_disk=$v2/$name-disk/cgroup.procs
    fi
    # A process is in one group of v2 only: this one has both limits.
    if new_group "$v2/$name" && write "$limit" "$v2/$name/memory.max" &&
        { [ -z "$in_disk" ] || write "$disk_id rbps=$((disk * 1000000))" "$v2/$name/io.max"; }; then
        write 0 "$v2/$name/memory.swap.max" || true
        in_memory=$v2/$name/cgroup.procs
    fi
fi
[ -n "$in_memory" ] || say "no memory cgroup may be made: parts that need a limit of memory are left out"
[ -n "$in_disk" ] || [ -z "$throttle" ] || say "the disk may not be throttled: its own speed is what is measured"

python3 bench/pager.py --parts "$parts" --model "$model" --smol "$smol" --stock "$stock" --folder "$folder" \
    --text "$text" --threads "$threads" --tokens "$tokens" --rounds "$rounds" --svg "${svg:-$folder/pool.svg}" \
    --limit "$limit" --in-memory "$in_memory" --in-disk "$in_disk" --read-ahead "$read_ahead" &
child=$!
wait "$child"
child=''
