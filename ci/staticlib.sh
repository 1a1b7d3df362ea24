#!/usr/bin/env bash
# The static library for C: it has each native object once and no names but its own, and a program can link another static
# library beside it that was made from Rust and has this library inside too.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/prebuilt.sh
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
foreign=$(nm -g --defined-only "$library" 2> /dev/null |
    awk 'NF == 3 && $2 != "W" && $2 != "V" && $3 !~ /^(_Z|_R|__|anon\.|smx_|smol_)/ { print $3 }' | sort -u)
echo "names in C's way besides smx_ and smol_: ${foreign:-none}"
[ -z "$foreign" ]

cargo build "${prebuilt[@]}" -p second
second=target/beside/release/libsecond.a
expected=$(cargo run -q "${prebuilt[@]}" --bin ours_alone)
for order in "$library $second" "$second $library"; do
    # shellcheck disable=SC2086
    c++ -x c -I smol-capi/include ci/beside/staticlib/main.c -x none $order -o target/beside/two -lpthread -ldl -lm
    [ "$(target/beside/two)" = "$expected" ]
done
echo "$(members "$archive" | wc -l) native objects, each once; two static libraries in one program"
