# shellcheck shell=bash
# Sourced: builds `smol`, and with it the library, in the workspace and sets $archive, its native part, and $prebuilt, arguments that make
# cargo use that for a package outside the workspace, where it would compile llama.cpp once more. It is cargo's own
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
# What is tested with it is what the linker does, not speed.
prebuilt=(--release --locked --manifest-path ci/beside/Cargo.toml --config target/beside/native.toml
    --config profile.release.opt-level=1 --target-dir target/beside)
