#!/usr/bin/env bash
# Lists, for every target, the dependencies that bring native code or link to some, and compares with the list of those
# that are known to build there: a new one has to be looked at before it is added.
set -euo pipefail
cd "$(dirname "$0")/.."
for target in {x86_64,aarch64}-unknown-linux-{gnu,musl} aarch64-linux-android aarch64-apple-{ios,darwin}; do
    cargo metadata --locked --format-version 1 --filter-platform "$target" | python3 -c '
import json, sys

target, roots = sys.argv[1], sys.argv[2:]
# What is linked on which targets, and why that works.
KNOWN = {
    "ggml-sys": "our own C++, by the cc crate",
    "ring": "C and assembly, by the cc crate; supports all of these targets",
}
COMPILE = {"cc", "cmake", "autotools", "nasm-rs", "meson-next", "bindgen", "pkg-config", "vcpkg", "system-deps"}

metadata = json.load(sys.stdin)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
todo = [id for id in metadata["workspace_members"] if packages[id]["name"] in roots]
assert len(todo) == len(roots), "a package is missing"
found = set()
while todo:
    id = todo.pop()
    if id not in found:
        found.add(id)
        kinds = ((d["pkg"], {kind["kind"] for kind in d["dep_kinds"]}) for d in nodes[id]["deps"])
        todo += [package for package, kind in kinds if None in kind]
native = {}
for id in found:
    package = packages[id]
    # Those that the chosen features bring, not all that are declared.
    built = (d["pkg"] for d in nodes[id]["deps"] if any(kind["kind"] == "build" for kind in d["dep_kinds"]))
    tools = {packages[pkg]["name"] for pkg in built} & COMPILE
    if package["links"] or tools:
        native[package["name"]] = " ".join([package["links"] or "", *sorted(tools)]).strip()
print(f"{target}: {len(found)} packages; native:", ", ".join(sorted(native)))
new = sorted(native.keys() - KNOWN.keys())
if new:
    sys.exit("\n".join(f"{target}: {name} ({native[name]}) is not known to build: see ci/tree.sh" for name in new))
' "$target" smol-cli smol-capi llama-tools smolmaxxing
done
