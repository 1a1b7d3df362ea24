#!/usr/bin/env bash
# Makes target/dist/smolmaxxing-VERSION-TARGET[-NAME].tar.gz: the programs with their licences, build information and
# SHA256SUMS. The same commit and tools give the same bytes in any folder (ci/dist-check.sh). Prints the archive's path.
# Usage: ci/dist.sh TARGET [--preset NAME | --multi-level]
#   --preset NAME    for one device: a CPU preset or level (docs/cross.md); default: any CPU of the target
#   --multi-level    kernels for several CPU levels in each program
# Needs what `cargo build --release --target TARGET` needs, and python3 and GNU tar.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
usage() { sed -n 's/^# \{0,1\}//; /^Usage/,/^Needs/p' "$0" >&2; exit 2; }
target=${1:-}
case $target in '' | -*) usage ;; esac
shift
suffix='' cpu=generic features=()
case ${1:-} in
    '') ;;
    --preset) cpu=${2:?a preset needs a name} suffix=-$cpu && shift ;;
    --multi-level) cpu='' suffix=-multi-level features=(--features smol-cli/multi-level,llama-tools/multi-level) ;;
    *) usage ;;
esac
[ $# -le 1 ] || usage
packages=(smol-cli llama-tools)

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || commit+=-modified
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
name=smolmaxxing-$version-$target$suffix
out=$root/target/dist
stage=$out/$name
rm -rf "$stage" "$stage.tar.gz"
mkdir -p "$stage/bin" "$stage/licences"

host=$(rustc -vV | sed -n 's/^host: //p')
build=(cargo build)
zig=
# A build for this machine is one without --target: then the C++ objects of other builds serve it too.
to=()
if [ "$target" != "$host" ]; then
    to=(--target "$target")
    source ci/cross-env.sh
    cross_env "$target"
    case $target in *-linux-gnu | *-linux-musl | *-apple-darwin)
        build=(cargo zigbuild)
        zig=$({ zig env || python3 -m ziglang env; } 2> /dev/null | sed -n 's/.*lib_dir"\? *[=:] *"\(.*\)".*/\1/p')
        ;;
    esac
fi

# Panic messages name source files: keep this machine's folders out of the programs.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$("${RUSTC:-rustc}" --print sysroot)
release=$("${RUSTC:-rustc}" -vV | sed -n 's/^release: //p')
flags=()
variable=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<< "$target")_RUSTFLAGS
read -r -a flags <<< "${RUSTFLAGS:-} ${!variable:-}"
unset RUSTFLAGS "$variable"
remap() { # FOLDER NAME: as it is called, and as it is without links
    local folder
    for folder in "$1" "$(realpath -m "$1")"; do
        flags+=("--remap-path-prefix=$folder=$2")
    done
}
remap "$root" smolmaxxing
remap "$sysroot/lib/rustlib/src/rust" "/rustc/$release"
for folder in "$cargo_home"/registry/src/*; do remap "$folder" /cargo; done
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS
export CARGO_TARGET_DIR=$root/target
[ -z "$cpu" ] || export GGML_SYS_CPU=$cpu

# shellcheck disable=SC2068
"${build[@]}" --profile distribution --locked "${to[@]}" ${packages[@]/#/-p } "${features[@]}" \
    --message-format json-render-diagnostics > "$out/messages.json"
native=$(python3 - "$out/messages.json" "$stage/bin" << 'END'
import json, shutil, sys
native = None
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message["reason"] == "build-script-executed" and "ggml-sys" in message["package_id"]:
        native = message["out_dir"]
    elif message.get("executable"):
        shutil.copy(message["executable"], sys.argv[2])
print(native)
END
)

cp LICENSE README.md "$stage"
cargo metadata --locked --format-version 1 --filter-platform "$target" |
    python3 ci/licences.py "${packages[@]}" > "$stage/licences/rust-crates.txt"
tree=$(ci/pinned-tree.sh)
{
    cat "$tree/LICENSE"
    (cd "$tree" && cut -d' ' -f3 "$root/vendor/files.sha256" | LC_ALL=C sort > "$out/pinned.txt" &&
        grep '/LICENSE$' "$out/pinned.txt" | while read -r file; do printf '\n%s\n\n' "$file" && cat "$file"; done &&
        printf '\nNotices in files:\n' &&
        xargs grep -IiE '(copyright (\(c\) )?[0-9]|SPDX-|public domain)' < "$out/pinned.txt" |
        tr -s ' ' | LC_ALL=C sort -u)
} > "$stage/licences/llama.cpp.txt"
take() { # FILE SOURCE...: the first source that there is
    local file=$1 source
    shift
    for source in "$@"; do
        if [ -f "$source" ]; then
            cp "$source" "$stage/licences/$file"
            return
        fi
    done
    echo "no licence found for licences/$file: looked for $*" >&2
    exit 1
}
take rust-standard-library.html "$sysroot/share/doc/rust/COPYRIGHT-library.html" /usr/share/doc/rustc*/copyright
case $target in *-musl) take musl.txt "$zig/libc/musl/COPYRIGHT" /usr/share/doc/musl*/copyright ;; esac
[ -z "$zig" ] || take libc++.txt "$zig/libcxx/LICENSE.TXT"

python3 - "$native/build_info.json" "$version" "$commit" "$SOURCE_DATE_EPOCH" "$("${RUSTC:-rustc}" -V)" \
    > "$stage/build-info.json" << 'END'
import datetime, json, sys
path, version, commit, time, rustc = sys.argv[1:]
when = datetime.datetime.fromtimestamp(int(time), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
info = {"version": version, "commit": commit, "date": when, "rustc": rustc, "profile": "distribution"}
print(json.dumps(info | {"build": json.load(open(path))}, indent=2))
END

python3 ci/machine-paths.py "$stage/bin"/*
(cd "$stage" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum > "$out/sums" && mv "$out/sums" SHA256SUMS)
tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' \
    --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cf - "$name" | gzip -9n > "$stage.tar.gz"
echo "$stage.tar.gz"
