#!/usr/bin/env python3
"""Checks a static library for iOS: symbols.py LIBRARY ALLOWED

Every object must be for arm64 and for iOS 12.0 or older, and what the library wants of the system must be in the list
ALLOWED: names as the linker sees them, one a line, `*` at the end stands for any rest, `#` starts a comment."""
import fnmatch
import struct
import sys


def members(data):
    """Names and contents of an archive's members, GNU and BSD format."""
    assert data[:8] == b"!<arch>\n", "not an archive"
    at, long_names = 8, b""
    while at < len(data):
        header = data[at : at + 60]
        name, size = header[:16].decode().rstrip(), int(header[48:58])
        body = data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if name == "//":
            long_names = body
            continue
        if name.startswith("#1/"):
            length = int(name[3:])
            name, body = body[:length].rstrip(b"\0").decode(), body[length:]
        elif name.startswith("/") and name[1:].isdigit():
            name = long_names[int(name[1:]) :].split(b"\n")[0].decode()
        if name not in ("/", "/SYM64/") and not name.startswith("__.SYMDEF"):
            yield name.rstrip("/"), body


def macho(body):
    """Defined and undefined names of an object, and the oldest iOS that it is for."""
    magic, cpu, _, kind, n_commands = struct.unpack_from("<5I", body)
    assert magic == 0xFEEDFACF and cpu == 0x0100000C and kind == 1, "no arm64 object"
    defined, wanted, version = set(), set(), None
    at = 32
    for _ in range(n_commands):
        command, size = struct.unpack_from("<2I", body, at)
        if command == 0x2:  # LC_SYMTAB
            symbols, count, strings = struct.unpack_from("<3I", body, at + 8)
            for i in range(count):
                name, kind, _, description, value = struct.unpack_from("<IBBHQ", body, symbols + 16 * i)
                if kind & 0xE0 or not kind & 0x01:  # debugging, or not external
                    continue
                start = strings + name
                text = body[start : body.index(b"\0", start)].decode()
                if kind & 0x0E == 0 and value == 0:
                    wanted.add(text)
                else:
                    defined.add(text)
        elif command == 0x32:  # LC_BUILD_VERSION
            platform, version = struct.unpack_from("<2I", body, at + 8)
            assert platform == 2, f"platform {platform} is not iOS"
        elif command == 0x25:  # LC_VERSION_MIN_IPHONEOS
            (version,) = struct.unpack_from("<I", body, at + 8)
        at += size
    return defined, wanted, version


def main(library, allowed):
    exact, patterns = set(), []
    for line in open(allowed):
        name = line.split("#")[0].strip()
        if name.endswith("*"):
            patterns.append(name)
        elif name:
            exact.add(name)
    defined, wanted, objects = set(), {}, 0
    for name, body in members(open(library, "rb").read()):
        if body[:4] != b"\xcf\xfa\xed\xfe":
            assert not name.endswith(".o"), f"{name} is no object for iOS"
            continue
        objects += 1
        here, there, version = macho(body)
        assert version is not None and version <= 12 << 16, f"{name} is for iOS {(version or 0) >> 16}"
        defined |= here
        for symbol in there:
            wanted.setdefault(symbol, name)
    missing = {
        symbol: name
        for symbol, name in wanted.items()
        if symbol not in defined
        and symbol not in exact
        and not any(fnmatch.fnmatchcase(symbol, pattern) for pattern in patterns)
    }
    for symbol, name in sorted(missing.items()):
        print(f"{name} wants {symbol}", file=sys.stderr)
    foreign = len(wanted.keys() - defined)
    print(f"{library}: {objects} objects for iOS 12.0, {foreign} symbols of the system")
    if missing:
        sys.exit(f"{len(missing)} symbols are not in {allowed}: does iOS 12 have them?")


main(*sys.argv[1:])
