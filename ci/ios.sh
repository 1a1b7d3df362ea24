#!/usr/bin/env bash
# iOS 12 on an iPad Air, without Apple's SDK: every crate is checked, and the static library for apps is built from all
# its files and laid out as an XCFramework. What it wants of the system must be in ci/ios/allowed-symbols.txt.
# Nothing can be linked here. The C++ code is compiled for size, which takes half the time of -O3, and Rust at level 1.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=aarch64-apple-ios
ci/cross-install.sh
# shellcheck source=ci/cross-env.sh
. ci/cross-env.sh
cross_env $target
export CARGO_TARGET_DIR=$root/target/ios IOS_CHECK_OPTIMIZATION=-Os CARGO_PROFILE_RELEASE_OPT_LEVEL=1
export CC_aarch64_apple_ios=$root/ci/ios/cc CXX_aarch64_apple_ios=$root/ci/ios/c++ AR_aarch64_apple_ios=$root/ci/ios/ar
# The cc crate wants one.
export SDKROOT=$CARGO_TARGET_DIR/no-sdk GGML_SYS_CPU=ipad-air
mkdir -p "$SDKROOT"

if log=$(IPHONEOS_DEPLOYMENT_TARGET=11.0 cargo check --release --target $target -p ggml-sys 2>&1); then
    echo "iOS 11 must be refused" >&2
    exit 1
fi
grep -q 'IPHONEOS_DEPLOYMENT_TARGET=11.0: llama.cpp needs' <<< "$log" || { echo "$log" >&2; exit 1; }

unset IPHONEOS_DEPLOYMENT_TARGET # 12.0 is the default
cargo check --release --target $target -p smol-cli -p smolmaxxing -p smol-capi
cargo build --release --target $target -p smol-capi
library=$CARGO_TARGET_DIR/$target/release/libsmol_capi.a
python3 ci/ios/symbols.py "$library" ci/ios/allowed-symbols.txt

framework=$CARGO_TARGET_DIR/Smolmaxxing.xcframework
smol-capi/xcframework.sh "$framework" ios-arm64="$library"
python3 - "$framework" << 'END'
import pathlib, plistlib, sys
framework = pathlib.Path(sys.argv[1])
info = plistlib.loads((framework / "Info.plist").read_bytes())
(library,) = info["AvailableLibraries"]
folder = framework / library["LibraryIdentifier"]
assert (folder / library["LibraryPath"]).stat().st_size > 1_000_000
assert (folder / library["HeadersPath"] / "Smolmaxxing/module.modulemap").is_file()
assert library["SupportedPlatform"] == "ios" and library["SupportedArchitectures"] == ["arm64"]
END
# The header is one that the compiler takes, for C and for C++.
compile() { ci/ios/c++ -miphoneos-version-min=12.0 -std=$1 -Wall -Wextra -Werror -pedantic "${@:2}" -o "$CARGO_TARGET_DIR/check.o"; }
for language in c:c99 c++:c++17; do
    compile ${language#*:} -x ${language%:*} -I "$framework/ios-arm64/Headers/Smolmaxxing" -c smol-capi/examples/complete.c
done
# What came after iOS 12 does not compile: otherwise the checks above would prove nothing.
newer() {
    if log=$(compile "${@:2}" -c - 2>&1) || ! grep -q 'iOS 1[36]' <<< "$log"; then
        echo "a compiler for iOS 12 must refuse $1: $log" >&2
        exit 1
    fi
}
newer timespec_get c99 -x c <<< $'#include <time.h>\nint f(struct timespec *t) { return timespec_get(t, 1); }'
newer to_chars c++17 -x c++ <<< $'#include <charconv>\nchar *f(char *p) { return std::to_chars(p, p + 9, 1.0).ptr; }'
left=$(find . -path ./target -prune -o -name a.o -print)
[ -z "$left" ] || { echo "the compiler has left $left" >&2; exit 1; }
ls -l "$library"
