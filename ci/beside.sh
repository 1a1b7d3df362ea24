#!/usr/bin/env bash
# This library and whisper.cpp, which carries another ggml, in one program: ci/beside tests that both compute what they
# compute alone. Needs cmake (ci/install.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(cargo build --release -p smolmaxxing --message-format json |
    sed -n 's/.*"package_id":"[^"]*ggml-sys[^"]*".*"out_dir":"\([^"]*\)".*/\1/p' | tail -n 1)
archive=$out/libsmol_llama.a
foreign=$(nm -g --defined-only "$archive" | awk 'NF == 3 { print $3 }' | grep -vE '^smol_|\.smol$' | sort -u || true)
wanted=$(nm -gu "$archive" | grep -E ' _?(ggml|gguf|llama)_' | sort -u || true)
if [ -n "$foreign$wanted" ]; then
    printf 'names that another ggml may have too; defined:\n%s\nused:\n%s\n' "$foreign" "$wanted" >&2
    exit 1
fi
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p target/beside
# The package is no member of the workspace, hence cargo would compile llama.cpp once more for it: hand it the build
# script's result through cargo's own override (https://doc.rust-lang.org/cargo/reference/build-scripts.html).
python3 - "$host" "$out" > target/beside/native.toml << 'END'
import collections, json, pathlib, re, sys
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
print(f"[target.{host}.smol_llama]")
for key, value in keys.items():
    print(f"{key} = {json.dumps(value)}")
print(f"[target.{host}.smol_llama.rustc-env]")
for key, value in env.items():
    print(f"{key} = {json.dumps(value)}")
END
# The generated bindings of whisper-rs-sys are in its package: no libclang.
WHISPER_DONT_GENERATE_BINDINGS=1 cargo test --release --locked --manifest-path ci/beside/Cargo.toml \
    --config target/beside/native.toml --target-dir target/beside
