# shellcheck shell=bash
# Sourced: a memory cgroup of $limit bytes (v1 or v2) and one whose reads from the disk of $model are throttled to $disk MB/s
# (0: as fast as it is). Sets $in_memory and $in_disk, the files through which a process enters them, and $read_ahead, the
# disk's; each is empty where the rights are lacking, and that is said. All is undone when the script ends, whatever ends it.
say() { echo "$0: $*" >&2; }

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

name=smol-bench-$$
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
