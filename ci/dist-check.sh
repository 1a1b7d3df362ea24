#!/usr/bin/env bash
# Makes an archive here and once more from a copy of the sources in another folder, with cargo's own folder elsewhere
# too, and compares the bytes; then checks the archive's sums and, where this machine can run the programs, that they say
# what build-info.json says.
# Usage: ci/dist-check.sh TARGET [--preset NAME | --multi-level]   (as ci/dist.sh)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
first=$(ci/dist.sh "$@")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
copy="$scratch/a folder/of another length"
mkdir -p "$copy"
git -c advice.detachedHead=false clone -q --no-hardlinks "$root" "$copy"
# What is not committed yet is part of both.
git ls-files -coz --exclude-standard | while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -xf - -C "$copy"
git ls-files -dz | (cd "$copy" && xargs -0r rm -f)
# The downloaded crates, under another name.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$scratch/cargo home"
for name in registry git bin config.toml; do
    [ ! -e "$cargo_home/$name" ] || ln -s "$cargo_home/$name" "$scratch/cargo home/$name"
done
second=$(CARGO_HOME="$scratch/cargo home" "$copy/ci/dist.sh" "$@")

if ! cmp "$first" "$second"; then
    diff -r "${first%.tar.gz}" "${second%.tar.gz}" || true
    exit 1
fi
echo "the same bytes from two folders: $(basename "$first"), $(stat -c %s "$first") bytes"

unpacked=$scratch/unpacked
mkdir "$unpacked"
tar -xzf "$first" -C "$unpacked" --strip-components 1
(cd "$unpacked" && sha256sum --quiet --check SHA256SUMS)
run=()
case $(uname -m)-$1 in
    x86_64-x86_64-*linux* | aarch64-aarch64-*linux*) ;;
    *-aarch64-*linux-musl) run=(qemu-aarch64-static) ;;
    *) exit ;;
esac
"${run[@]}" "$unpacked/bin/smol" doctor --json > "$scratch/doctor.json"
python3 - "$unpacked/build-info.json" "$scratch/doctor.json" << 'END'
import json, sys
packed, said = (json.load(open(path)) for path in sys.argv[1:])
def same(a, b):
    """What both tell: the program also tells what this machine lacks."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[key], b[key]) for key in a.keys() & b.keys())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
wrong = [key for key in packed["build"].keys() & said["build"].keys() if not same(packed["build"][key], said["build"][key])]
assert packed["version"] == said["version"] and not wrong, wrong
END
for tool in "$unpacked"/bin/*; do
    # llama-quantize prints its help and exits with 1, as upstream.
    "${run[@]}" "$tool" --help > "$scratch/help" 2>&1 || [ $? = 1 ]
    grep -qi usage "$scratch/help"
done
echo "the programs run and say what build-info.json says"
