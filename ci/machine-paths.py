#!/usr/bin/env python3
"""Fails if a file contains a path that exists on this machine: programs must not tell where they were built.

Usage: ci/machine-paths.py FILE...
"""
import os
import re
import sys

# Paths that programs use when they run.
RUNTIME = re.compile(
    r"/(dev|proc|sys|etc|tmp|bin/sh|lib(64)?/ld-[\w.-]+|usr/share/zoneinfo|usr/lib/(debug|locale)|usr/(local/)?bin|var/run/nscd)(/|$)"
)


def existing(text):
    """The longest part of a path of at least two names that exists here."""
    parts = text.split("/")
    for count in range(len(parts), 2, -1):
        path = "/".join(parts[:count])
        if os.path.lexists(path):
            return path
    return None


faults = set()
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        data = file.read()
    for match in re.finditer(rb"/[\w.+@-]+(?:/[\w.+@-]+)+", data):
        text = match.group().decode()
        if not RUNTIME.match(text) and (path := existing(text)):
            faults.add(f"{name}: {text} ({path} is a path of this machine)")
for fault in sorted(faults)[:40]:
    print(fault, file=sys.stderr)
sys.exit(1 if faults else 0)
