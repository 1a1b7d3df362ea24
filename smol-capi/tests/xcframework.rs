//! The layout of an XCFramework, as xcodebuild -create-xcframework makes it for a static library with headers.

#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("xcframework.sh");
    Command::new("bash").arg(script).args(arguments).current_dir(folder).output().expect("bash")
}

/// All files below a folder, relative to it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(folder).unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// The words of a property list between tags, keys and strings alike.
fn words(plist: &str) -> Vec<&str> {
    plist
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let inner = line.strip_prefix("<key>").or_else(|| line.strip_prefix("<string>"))?;
            inner.split_once("</").map(|(word, _)| word)
        })
        .collect()
}

#[test]
fn libraries_are_laid_out_with_header_and_module_map() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("device.a"), "device").unwrap();
    fs::write(folder.path().join("simulator.a"), "simulator").unwrap();
    let arguments =
        ["S.xcframework", "ios-arm64=device.a", "ios-arm64_x86_64-simulator=simulator.a"];
    // Twice: an old one is replaced.
    for _ in 0..2 {
        let output = run(folder.path(), &arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let made = folder.path().join("S.xcframework");
    let slices = ["ios-arm64", "ios-arm64_x86_64-simulator"];
    let mut expected = vec![PathBuf::from("Info.plist")];
    for slice in slices {
        for file in ["Smolmaxxing/module.modulemap", "Smolmaxxing/smolmaxxing.h"] {
            expected.push([slice, "Headers", file].iter().collect());
        }
        expected.push([slice, "libsmolmaxxing.a"].iter().collect());
    }
    assert_eq!(files(&made), expected);
    let read = |name: &str| fs::read_to_string(made.join(name)).unwrap();
    assert_eq!(read("ios-arm64/libsmolmaxxing.a"), "device");
    assert_eq!(read("ios-arm64_x86_64-simulator/libsmolmaxxing.a"), "simulator");

    let plist = read("Info.plist");
    #[rustfmt::skip]
    assert_eq!(words(&plist), [
        "AvailableLibraries",
        "BinaryPath", "libsmolmaxxing.a", "HeadersPath", "Headers",
        "LibraryIdentifier", "ios-arm64", "LibraryPath", "libsmolmaxxing.a",
        "SupportedArchitectures", "arm64", "SupportedPlatform", "ios",
        "BinaryPath", "libsmolmaxxing.a", "HeadersPath", "Headers",
        "LibraryIdentifier", "ios-arm64_x86_64-simulator", "LibraryPath", "libsmolmaxxing.a",
        "SupportedArchitectures", "arm64", "x86_64", "SupportedPlatform", "ios",
        "SupportedPlatformVariant", "simulator",
        "CFBundlePackageType", "XFWK", "XCFrameworkFormatVersion", "1.0",
    ]);
    for tag in ["dict", "array", "key", "string", "plist"] {
        let count = |tag: String| plist.matches(&tag).count();
        let opened = count(format!("<{tag}>")) + count(format!("<{tag} "));
        assert_eq!(opened, count(format!("</{tag}>")), "{tag}");
    }
}

#[test]
fn what_cannot_be_laid_out_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("device.a"), "device").unwrap();
    for (arguments, reason) in [
        (&["S.xcframework"][..], "IDENTIFIER=LIBRARY"),
        (&["S.framework", "ios-arm64=device.a"], "must end in .xcframework"),
        (&["S.xcframework", "ios-arm64=no.a"], "no.a: no such library"),
        (&["S.xcframework", "watchos-arm64=device.a"], "watchos-arm64: not known"),
    ] {
        let output = run(folder.path(), arguments);
        assert!(!output.status.success());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(reason), "{message}");
        assert!(!folder.path().join("S.xcframework").exists());
    }
}
