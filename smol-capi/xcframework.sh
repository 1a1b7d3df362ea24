#!/usr/bin/env bash
# Lays out Smolmaxxing.xcframework from static libraries, without Apple's tools:
#
#   smol-capi/xcframework.sh OUT.xcframework IDENTIFIER=LIBRARY...
#
# IDENTIFIER names the platform and the architectures of a library: ios-arm64, ios-arm64-simulator,
# ios-arm64_x86_64-simulator (one library made with lipo), macos-arm64, macos-arm64_x86_64.
set -euo pipefail
usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
case $out in *.xcframework) ;; *) echo "$out: the name must end in .xcframework" >&2; exit 2 ;; esac

entries=
for argument in "$@"; do
    identifier=${argument%%=*}
    library=${argument#*=}
    [ -f "$library" ] || { echo "$library: no such library" >&2; exit 1; }
    if ! [[ $identifier =~ ^(ios|macos)-(arm64|x86_64|arm64_x86_64)(-simulator)?$ ]]; then
        echo "$identifier: not known; see the head of $0" >&2
        exit 2
    fi
    entries+="
		<dict>
			<key>BinaryPath</key>
			<string>libsmolmaxxing.a</string>
			<key>HeadersPath</key>
			<string>Headers</string>
			<key>LibraryIdentifier</key>
			<string>$identifier</string>
			<key>LibraryPath</key>
			<string>libsmolmaxxing.a</string>
			<key>SupportedArchitectures</key>
			<array>"
    case ${BASH_REMATCH[2]} in
        arm64_x86_64) architectures="arm64 x86_64" ;;
        *) architectures=${BASH_REMATCH[2]} ;;
    esac
    for architecture in $architectures; do
        entries+="
				<string>$architecture</string>"
    done
    entries+="
			</array>
			<key>SupportedPlatform</key>
			<string>${BASH_REMATCH[1]}</string>"
    [ -z "${BASH_REMATCH[3]:-}" ] || entries+="
			<key>SupportedPlatformVariant</key>
			<string>simulator</string>"
    entries+="
		</dict>"
done

rm -rf "$out"
mkdir -p "$out"
cat > "$out/Info.plist" << END
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
	<key>AvailableLibraries</key>
	<array>$entries
	</array>
	<key>CFBundlePackageType</key>
	<string>XFWK</string>
	<key>XCFrameworkFormatVersion</key>
	<string>1.0</string>
</dict>
</plist>
END
for argument in "$@"; do
    slice=$out/${argument%%=*}
    # A folder of the module's name: module maps of several frameworks would overwrite each other otherwise.
    mkdir -p "$slice/Headers/Smolmaxxing"
    cp "${argument#*=}" "$slice/libsmolmaxxing.a"
    cp "$here/include/smolmaxxing.h" "$here/include/module.modulemap" "$slice/Headers/Smolmaxxing/"
done
