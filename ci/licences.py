#!/usr/bin/env python3
"""Collects the licences of the Rust crates inside binaries, out of the crates' own packages.

Usage: cargo metadata --format-version 1 --filter-platform TARGET | ci/licences.py PACKAGE... > FILE

Fails on a crate without a licence text, and on a licence that is not in ACCEPTED: it has to be looked at first.
"""
import json
import os
import re
import sys

ACCEPTED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Unlicense", "Zlib",
}
FILES = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)


def shipped(metadata, roots):
    """The packages whose code the roots contain: dependencies of the usual kind, over all steps."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    todo = [id for id in metadata["workspace_members"] if packages[id]["name"] in roots]
    if len(todo) != len(roots):
        sys.exit(f"not all of {' '.join(roots)} are in the workspace")
    found = set()
    while todo:
        id = todo.pop()
        if id not in found:
            found.add(id)
            for dependency in nodes[id]["deps"]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    todo.append(dependency["pkg"])
    return [packages[id] for id in found if packages[id]["source"]]


def texts(package):
    """Name and content of the licence files beside a crate's manifest."""
    folder = os.path.dirname(package["manifest_path"])
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if FILES.match(name) and os.path.isfile(path) and not name.endswith(".rs"):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield name, file.read().replace("\r\n", "\n").strip() + "\n"


def main():
    packages = sorted(shipped(json.load(sys.stdin), sys.argv[1:]), key=lambda p: (p["name"], p["version"]))
    users = {}
    faults = []
    print("Rust crates in these binaries: name, version, licence, author's page.\n")
    for package in packages:
        label = f"{package['name']} {package['version']}"
        licence = package["license"] or ""
        print(f"{label:<36} {licence:<48} {package['repository'] or ''}".rstrip())
        if not set(re.split(r" OR | AND |/", licence.replace("(", "").replace(")", ""))) <= ACCEPTED:
            faults.append(f"{label}: the licence `{licence}` is not in the list of ci/licences.py")
        found = list(texts(package))
        if not found:
            faults.append(f"{label}: the package has no licence text")
        for name, text in found:
            users.setdefault(text, []).append(f"{label} ({name})")
    if faults:
        sys.exit("\n".join(faults))
    for text, where in sorted(users.items(), key=lambda item: item[1]):
        print("\n" + "=" * 100)
        print("\n".join(where))
        print("=" * 100 + "\n")
        print(text, end="")


main()
