#!/usr/bin/env bash
# 64-bit ARM Linux: builds static programs with zig as the only C and C++ compiler, and runs them and tests under qemu
# on three CPUs: without dotprod, with it, and with everything that qemu has. The programs have the kernels of every CPU
# level, so that each CPU runs other ones.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=aarch64-unknown-linux-musl
cpus="cortex-a53 cortex-a76 max"
say() { printf -- '--> %d s: %s\n' $SECONDS "$*"; }
fail() { echo "$*" >&2 && exit 1; }

ci/cross-install.sh
# The same tokens are wanted on the machine that builds.
cargo build --release -p smol-cli
host=$root/target/release/smol
"$host" pull smollm2-135m
model=$("$host" models --json | python3 -c 'import json,sys
print(next(m["path"] for m in json.load(sys.stdin) if m["name"] == "smollm2-135m"))')
# With one thread: under qemu two that wait for each other waste both cores.
answer() { # COMMAND...: the text of 12 greedy tokens
    "$@" run -t 1 --raw -m "$model" -p "The capital of France is" -n 12 --temp 0 --json |
        python3 -c 'import json,sys; print(repr(json.load(sys.stdin)["text"]))'
}
# At once: other steps may run beside this one and build the program again.
expected=$(answer "$host")

# shellcheck source=ci/cross-env.sh
. ci/cross-env.sh
export CARGO_TARGET_DIR=$root/target/arm
cross_env $target
suffix=${target//-/_}
# cargo-zigbuild asks for debug information of the C++ side, which no program here keeps.
export "CFLAGS_$suffix=-g0" "CXXFLAGS_$suffix=-g0"
# Whoever forgets about the target's compiler finds none.
export CC=/nonexistent CXX=/nonexistent
out=$CARGO_TARGET_DIR/$target/release
# Rust at full optimization is tested on the machine that builds; what computes here is C++.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
# The same features in every call, also those of the tests: then each thing is compiled once.
programs=(--release --target $target -p smol-cli -p llama-tools -p llama-rs
    --features smol-cli/multi-level,llama-tools/multi-level)

say "programs that need dotprod at least"
GGML_SYS_CPU=armv8.2-a+dotprod cargo zigbuild "${programs[@]}" --bin smol
if refusal=$(qemu-aarch64-static -cpu cortex-a53 "$out/smol" run -m "$model" -p Hello -n 1 2>&1); then
    fail "a CPU without dotprod must be refused: $refusal"
fi
grep -q 'lacks .*dotprod' <<< "$refusal" || fail "no clear refusal: $refusal"
echo "$refusal"

say "programs for every CPU"
cargo zigbuild "${programs[@]}"
for program in smol llama-bench llama-perplexity llama-quantize llama-completion; do
    [[ $(file -b "$out/$program") == *"statically linked"* ]] || fail "$program is not static"
    printf '%s: %d bytes\n' $program "$(stat -c %s "$out/$program")"
done

say "SmolLM2 on every CPU"
echo "this machine: $expected"
for cpu in $cpus; do
    level=$(qemu-aarch64-static -cpu "$cpu" "$out/smol" doctor --json |
        python3 -c 'import json,sys; print(json.load(sys.stdin)["build"]["cpu_level"])')
    got=$(answer qemu-aarch64-static -cpu "$cpu" "$out/smol")
    echo "$cpu, $level: $got"
    [ "$got" = "$expected" ] || fail "$cpu answers otherwise than this machine"
    case $cpu in
        cortex-a53) [ "$level" = armv8-a ] ;;
        cortex-a76) [ "$level" = armv8.2-a+dotprod+fp16 ] ;;
        *) [[ $level == *+i8mm ]] ;;
    esac || fail "not the best level of $cpu: $level"
done

say "packed layouts on every level"
for cpu in $cpus; do
    echo "$cpu"
    qemu-aarch64-static -cpu "$cpu" "$out/smol" kernels --quick || fail "a layout is wrong on $cpu"
done
# The level between, which is no CPU's best.
qemu-aarch64-static -cpu max "$out/smol" kernels --quick --isa armv8.2-a+dotprod || fail "a layout is wrong"

say "upstream's tools, with and without the engines"
work=$CARGO_TARGET_DIR/tools
mkdir -p "$work"
printf 'It was the best of times, it was the worst of times. %.0s' {1..12} > "$work/text.txt"
config() { printf '[cpu]\nlevel = "%s"\n[observe]\nreport = "%s/report.json"\n' "$1" "$work" > "$work/engines.toml"; }
tool() { # CPU TOOL ARGUMENT...
    qemu-aarch64-static -cpu "$1" "$out/$2" "${@:3}" 2>&1 || fail "$2 failed on $1"
}
perplexity() { # CPU ARGUMENT...
    tool "$1" llama-perplexity -m "$model" -f "$work/text.txt" -c 64 --chunks 1 -t 1 "${@:2}" |
        sed -n 's/.*Final estimate: PPL = \([0-9.]*\).*/\1/p'
}
estimates=()
for cpu in cortex-a53 max; do
    config auto
    for engines in "" "--smol-config=$work/engines.toml"; do
        # shellcheck disable=SC2086
        {
            tool $cpu llama-bench $engines -m "$model" -p 8 -n 2 -r 1 -t 1 | grep 'tg2'
            tool $cpu llama-quantize $engines --allow-requantize "$model" "$work/q8_0.gguf" Q8_0 1 | grep 'quantize time'
            estimates+=("$(perplexity $cpu $engines)")
            printf '%s%s: perplexity %s\n' "$cpu" "${engines:+ with engines}" "${estimates[-1]}"
        }
    done
done
# The levels between, on the CPU that has them all: the kernels differ, the model does not.
for level in armv8.2-a+dotprod armv8.2-a+dotprod+fp16; do
    config $level
    estimates+=("$(perplexity max "--smol-config=$work/engines.toml")")
    echo "$level: perplexity ${estimates[-1]}"
done
python3 -c 'import sys
values = [float(value) for value in sys.argv[1:]]
assert max(values) / min(values) < 1.01, values' "${estimates[@]}"

say "tests"
variable=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<< $target)
# Those that depend on how fast a machine is, or are too slow under qemu, run on real machines only.
tests=(--release --target $target -p ggml-sys -p smol-engine -p llama-rs --features llama-rs/tools,llama-rs/multi-level)
quick=(--lib --test registry --test one_row --test thread_stack --test kernels --test observe --test worker --test sampler_upstream)
cargo-zigbuild test -q "${tests[@]}" "${quick[@]}" --test running --test pager --no-run
tests_on() { # CPU ARGUMENT...
    say "tests on $1"
    env "${variable}_RUNNER=/usr/bin/qemu-aarch64-static -cpu $1" cargo-zigbuild test -q "${tests[@]}" "${@:2}"
}
quick_on() { # CPU
    # One at a time: each has threads of its own, and waiting threads spin. Quantizing is the same code at every level, and
    # so are the walk through the pager's states and the simulated flash, which are long. Nothing is fast there.
    local skip=(--skip expert::state --skip expert::prefetch --skip expert::simulate --skip _128_experts
        --skip recording_is_cheap)
    [ "$1" = max ] || skip+=(--skip quants::)
    tests_on "$1" "${quick[@]}" -- --test-threads 1 "${skip[@]}"
}
# Two CPUs at once: one leaves a core idle.
{
    quick_on cortex-a53
    tests_on max --test running --test pager -- --test-threads 1 decode:: vocab:: exact::floats exact::packed
} > "$work/tests.log" 2>&1 &
other=$!
trap 'kill "$other" 2> /dev/null || true' EXIT
quick_on cortex-a76
quick_on max
status=0
wait "$other" || status=$?
trap - EXIT
cat "$work/tests.log"
[ $status = 0 ] || fail "tests fail, see above"
say "done"
