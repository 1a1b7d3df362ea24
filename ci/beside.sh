#!/usr/bin/env bash
# This library beside others in one program (ci/beside): no native name is left that another ggml may have too, and with
# whisper.cpp, which carries a ggml of another version, both compute what they compute alone. The static library for C has
# each native object once and no names but its own, and a program can link another static library beside it that was made
# from Rust and has this library inside too. Needs cmake (ci/install.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# Cargo uses the workspace's native part for packages outside of it, which would compile llama.cpp once more. It is its own
# override of a build script: https://doc.rust-lang.org/cargo/reference/build-scripts.html#overriding-build-scripts
out=$(cargo build --release -p smol-cli --message-format json-render-diagnostics |
    sed -n 's/.*"package_id":"[^"]*ggml-sys[^"]*".*"out_dir":"\([^"]*\)".*/\1/p' | tail -n 1)
archive=$out/libsmol_llama.a
mkdir -p target/beside
python3 - "$(rustc -vV | sed -n 's/^host: //p')" "$out" > target/beside/native.toml << 'END'
import collections, hashlib, json, pathlib, re, sys
host, out = sys.argv[1:]
keys, env = collections.defaultdict(list), {"OUT_DIR": out}
for line in (pathlib.Path(out).parent / "output").read_text().splitlines():
    match = re.fullmatch(r"cargo:{1,2}([^=]+)=(.*)", line)
    if not match or match[1].startswith(("rerun-if", "warning")):
        continue
    key, value = match.groups()
    if key == "metadata":
        key, value = value.split("=", 1)
        keys[key] = value
    elif key == "rustc-env":
        name, value = value.split("=", 1)
        env[name] = value
    else:
        keys[key].append(value)
# Cargo does not look at the library itself.
keys["library_sha256"] = hashlib.sha256((pathlib.Path(out) / "libsmol_llama.a").read_bytes()).hexdigest()
print(f"[target.{host}.smol_llama]")
for key, value in keys.items():
    print(f"{key} = {json.dumps(value)}")
print(f"[target.{host}.smol_llama.rustc-env]")
for key, value in env.items():
    print(f"{key} = {json.dumps(value)}")
END

names() { nm -g --defined-only "$@" 2> /dev/null | awk 'NF == 3'; }
foreign=$(names "$archive" | awk '{ print $3 }' | grep -vE '^smol_|\.smol$' | sort -u || true)
wanted=$(nm -gu "$archive" | grep -E ' (ggml|gguf|llama)_' | sort -u || true)
# Of the groups with one signature, inline functions and templates, the linker keeps one.
groups=$(readelf -gW "$archive" | sed -n 's/^COMDAT group .*\[\(.*\)\] contains .*/\1/p')
merged=$(grep -vE '^smol_|\.smol$' <<< "$groups" | sort -u || true)
if [ -n "$foreign$wanted$merged" ] || [ -z "$groups" ]; then
    printf 'names that another ggml may have too; defined:\n%s\nused:\n%s\ngroups:\n%s\n' \
        "$foreign" "$wanted" "$merged" >&2
    exit 1
fi

cargo build --release -p smol-capi
library=target/release/libsmol_capi.a
members() { ar t "$1" | LC_ALL=C sort; }
twice=$(members "$library" | uniq -d)
missing=$(comm -23 <(members "$archive") <(members "$library"))
if [ -n "$twice$missing" ]; then
    printf 'more than once:\n%s\nmissing:\n%s\n' "$twice" "$missing" >&2
    exit 1
fi
# Names as in C; what Rust and C++ mangle, and what the compilers bring, is unique or weak.
foreign=$(names "$library" | awk '$2 != "W" && $2 != "V" && $3 !~ /^(_Z|_R|__|anon\.|smx_|smol_)/ { print $3 }' | sort -u)
echo "names in C's way besides smx_ and smol_: ${foreign:-none}"
[ -z "$foreign" ]

# In one call: in each, cargo takes such an override for a new one and compiles what depends on it again. What is tested
# is what the linker does, not speed. The generated bindings of whisper-rs-sys are in its package: no libclang.
test=$(WHISPER_DONT_GENERATE_BINDINGS=1 CMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" CMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG" \
    cargo build --release --locked --manifest-path ci/beside/Cargo.toml --config target/beside/native.toml \
    --config profile.release.opt-level=1 --target-dir target/beside --workspace --lib --bins --test beside \
    --message-format json-render-diagnostics |
    sed -n 's/.*"name":"beside".*"executable":"\([^"]*\/beside-[^"]*\)".*/\1/p' | tail -n 1)
built=target/beside/release
expected=$($built/ours_alone)
for order in "$library $built/libsecond.a" "$built/libsecond.a $library"; do
    # shellcheck disable=SC2086
    c++ -x c -I smol-capi/include ci/beside/staticlib/main.c -x none $order -o target/beside/two -lpthread -ldl -lm
    [ "$(target/beside/two)" = "$expected" ]
done
echo "$(members "$archive" | wc -l) native objects, each once; two static libraries in one program"

"$test"
