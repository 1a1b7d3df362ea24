//! Which compilers the build script finds, and how it speaks to them: levels for GCC, clang and zig, the Android NDK,
//! the C++ standard library.
#![cfg(unix)]
// The build script's modules speak to cargo on standard output, and not all of them are used here.
#![allow(dead_code, clippy::print_stdout)]

#[path = "../build/android.rs"]
mod android;
#[path = "../build/apple.rs"]
mod apple;
#[path = "../build/cpu_level.rs"]
mod cpu_level;
#[path = "../build/spelling.rs"]
mod spelling;
#[path = "../build/stdlib.rs"]
mod stdlib;
#[path = "../build/vars.rs"]
mod vars;

use cpu_level::CpuLevel;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn vars(target: &str, os: &str, env: &str) -> vars::Vars {
    vars::Vars {
        out_dir: PathBuf::new(),
        manifest_dir: PathBuf::new(),
        cargo: PathBuf::new(),
        target: target.into(),
        host: "x86_64-unknown-linux-gnu".into(),
        target_arch: "aarch64".into(),
        target_os: os.into(),
        target_env: env.into(),
        features: BTreeSet::new(),
        docs_rs: false,
        llama_dir: None,
        cpu: None,
        ios_version: None,
        android: android::AndroidVars::default(),
        ndk: None,
        stdlib_is_set: false,
    }
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

fn script(path: &Path, body: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("create folder");
    // By another process: one that other tests start meanwhile would inherit the open file, and what is open to be
    // written can't be run.
    let mut writer = Command::new("sh");
    writer
        .args(["-c", "printf '#!/bin/sh\\n%s' \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .arg(body);
    assert!(writer.status().expect("a shell").success());
}

/// A compiler that takes what `cases` (of a shell) take, and predefines what they print.
struct Fake {
    dir: tempfile::TempDir,
}

impl Fake {
    fn new(cases: &str) -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        // As `def A B`: the macros of an ARM compiler, by their ends.
        let body = format!(
            "def() {{ for name; do echo \"#define __ARM_FEATURE_$name 1\"; done; }}\n\
             level=; tune=; previous=\n\
             for arg; do\n\
             case $previous in -tune-cpu) tune=own;; esac\n\
             case $arg in\n\
             -march=*|-mcpu=*) level=$arg;;\n\
             -mtune=*) tune=$arg;;\n\
             -Xclang) case $previous in -tune-cpu) arg=-tune-cpu;; esac;;\n\
             esac\n\
             previous=$arg\n\
             done\n\
             refuse() {{ echo \"error: unknown $1\" >&2; exit 1; }}\n\
             case $level,$tune in\n{cases}\n*) refuse \"$level,$tune\";;\nesac\n"
        );
        script(&dir.path().join("c++"), &body);
        fs::write(dir.path().join("empty.cpp"), "").expect("write");
        Fake { dir }
    }

    fn choose(&self, level: &mut CpuLevel) -> Result<Option<String>, String> {
        self.choose_on(level, "linux")
    }

    fn choose_on(&self, level: &mut CpuLevel, os: &str) -> Result<Option<String>, String> {
        let program = self.dir.path().join("c++");
        let target = spelling::Target { arch: "aarch64", os };
        spelling::choose(
            level,
            target,
            &[&|| Command::new(&program)],
            &self.dir.path().join("empty.cpp"),
        )
    }
}

fn level(name: &str) -> CpuLevel {
    let mut vars = vars("aarch64-unknown-linux-musl", "linux", "musl");
    vars.cpu = Some(name.into());
    CpuLevel::resolve(&vars).expect("known")
}

const GCC: &str = "-march=armv8-a,) ;;
    -march=armv8-a,-mtune=cortex-a72) ;;
    -march=armv8.2-a+dotprod+fp16,) def ATOMICS QRDMX DOTPROD FP16_VECTOR_ARITHMETIC;;
    -march=armv8.2-a+dotprod+fp16,-mtune=cortex-a55) def ATOMICS QRDMX DOTPROD FP16_VECTOR_ARITHMETIC;;";

#[test]
fn gcc_takes_its_own_spelling() {
    let gcc = Fake::new(GCC);
    let mut tvbox = level("tvbox");
    assert_eq!(gcc.choose(&mut tvbox), Ok(None));
    assert_eq!(tvbox.flags, ["-march=armv8.2-a+dotprod+fp16", "-mtune=cortex-a55"]);
    let mut plain = level("armv8-a");
    assert_eq!(gcc.choose(&mut plain), Ok(None));
    assert_eq!(plain.flags, ["-march=armv8-a"]);
}

#[test]
fn a_compiler_that_cannot_tune_builds_with_a_warning() {
    let mut ipad = level("ipad-air");
    let warning = Fake::new(GCC).choose(&mut ipad).expect("the level is known");
    assert_has(&warning.expect("a warning"), &["cannot tune for apple-a7"]);
    assert_eq!((ipad.flags, ipad.tune), (vec!["-march=armv8-a".to_owned()], None));
}

#[test]
fn a_wrapper_that_drops_the_base_is_seen_through() {
    // As cargo-zigbuild: `-march` without its base, and `-mtune` as a CPU with all that it has.
    let wrapper = Fake::new(
        "-march=armv8.2-a+dotprod+fp16,*) def DOTPROD FP16_VECTOR_ARITHMETIC;;
         -mcpu=generic+v8_2a+dotprod+fullfp16,-mtune=*)
             def ATOMICS QRDMX DOTPROD FP16_VECTOR_ARITHMETIC AES;;
         -mcpu=generic+v8_2a+dotprod+fullfp16,*) def ATOMICS QRDMX DOTPROD FP16_VECTOR_ARITHMETIC;;",
    );
    let mut tvbox = level("tvbox");
    assert_eq!(wrapper.choose(&mut tvbox), Ok(None));
    let own = ["-Xclang", "-tune-cpu", "-Xclang", "cortex-a55"];
    assert_eq!(tvbox.flags[0], "-mcpu=generic+v8_2a+dotprod+fullfp16");
    assert_eq!(tvbox.flags[1..], own);
}

#[test]
fn what_a_base_implies_is_named_for_older_clangs() {
    let clang = Fake::new(
        "-march=armv8.4-a+fp16,) def ATOMICS QRDMX FP16_VECTOR_ARITHMETIC;;
         -march=armv8.4-a+dotprod+fp16,) def ATOMICS QRDMX DOTPROD FP16_VECTOR_ARITHMETIC;;",
    );
    let mut mac = level("armv8.4-a+fp16");
    assert_eq!(clang.choose(&mut mac), Ok(None));
    assert_eq!(mac.flags, ["-march=armv8.4-a+dotprod+fp16"]);
}

#[test]
fn too_little_and_too_much_are_errors() {
    let error = |cases: &str| {
        Fake::new(cases).choose(&mut level("armv8.2-a+dotprod")).expect_err("must be refused")
    };
    assert_has(
        &error("-march=*) def ATOMICS QRDMX;;"),
        &[
            "CPU level armv8.2-a+dotprod",
            "-march=armv8.2-a+dotprod: accepted, but it does not define __ARM_FEATURE_DOTPROD",
            "-mcpu=generic+v8_2a+dotprod: error: unknown",
            "GGML_SYS_CPU",
        ],
    );
    assert_has(
        &error("*) def ATOMICS QRDMX DOTPROD SVE;;"),
        &["accepted, but it also defines __ARM_FEATURE_SVE"],
    );
    // As with `CXX="zig c++ -mcpu=cortex_a55"`.
    let aes = "*) def ATOMICS QRDMX DOTPROD AES;;";
    assert_has(&error(aes), &["it also defines __ARM_FEATURE_AES"]);
    let apple = Fake::new(aes).choose_on(&mut level("armv8.2-a+dotprod"), "ios");
    assert_eq!(apple, Ok(None), "Apple's compiler always has it, and so has every device");
}

#[test]
fn c_and_cpp_compilers_must_agree() {
    let (gcc, zig) = (Fake::new(GCC), Fake::new("-mcpu=generic,) ;;"));
    let programs = [&gcc, &zig].map(|fake| fake.dir.path().join("c++"));
    let compilers: [spelling::Compiler<'_>; 2] =
        [&|| Command::new(&programs[0]), &|| Command::new(&programs[1])];
    let target = spelling::Target { arch: "aarch64", os: "linux" };
    let empty = gcc.dir.path().join("empty.cpp");
    let error = spelling::choose(&mut level("armv8-a"), target, &compilers, &empty);
    assert_has(&error.expect_err("no common spelling"), &["C and C++ compilers"]);
}

/// Real compilers, where this machine has them: each level comes out exactly.
#[test]
fn real_compilers_give_every_level() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let empty = dir.path().join("empty.cpp");
    fs::write(&empty, "").expect("write");
    let runs = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let mut found = Vec::new();
    for (words, arch, target) in [
        (&["c++"][..], std::env::consts::ARCH, None),
        (&["aarch64-linux-gnu-g++"], "aarch64", None),
        (&["clang++"], "aarch64", Some("--target=aarch64-linux-gnu")),
        (&["clang++"], "x86_64", Some("--target=x86_64-linux-gnu")),
        (&["python3", "-m", "ziglang", "c++"], "aarch64", Some("--target=aarch64-linux-musl")),
        (&["python3", "-m", "ziglang", "c++"], "x86_64", Some("--target=x86_64-linux-musl")),
    ] {
        if !runs(words) {
            continue;
        }
        let compiler = || {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).args(target);
            command
        };
        let levels: &[&str] = match arch {
            "x86_64" => &["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4+vnni"],
            "aarch64" => &[
                "armv8-a",
                "armv8.2-a+dotprod",
                "armv8.2-a+dotprod+fp16",
                "armv8.2-a+dotprod+fp16+i8mm",
                "armv8.4-a+fp16",
                "armv8.6-a",
                "armv8.2-a+sve",
            ],
            _ => continue,
        };
        let os = if cfg!(target_os = "macos") && words == ["c++"] { "macos" } else { "linux" };
        for name in levels {
            let mut level = CpuLevel::parse(name, arch).expect("known");
            let target = spelling::Target { arch, os };
            spelling::choose(&mut level, target, &[&compiler], &empty)
                .unwrap_or_else(|error| panic!("{words:?} {arch}: {error}"));
            found.push(format!("{words:?} {name}: {}", level.flags.join(" ")));
        }
    }
    assert!(!found.is_empty(), "the crate was compiled, so there is a compiler");
}

/// An NDK with compilers for API levels 21, 23 and 28.
fn fake_ndk(root: &Path) -> PathBuf {
    let system = if cfg!(target_os = "macos") { "darwin-x86_64" } else { "linux-x86_64" };
    let bin = root.join("toolchains/llvm/prebuilt").join(system).join("bin");
    for name in ["llvm-ar", "clang"] {
        script(&bin.join(name), "");
    }
    for api in [21, 23, 28] {
        for end in ["clang", "clang++"] {
            script(&bin.join(format!("aarch64-linux-android{api}-{end}")), "");
        }
    }
    bin
}

fn android_vars() -> vars::Vars {
    vars("aarch64-linux-android", "android", "")
}

#[test]
fn the_ndk_is_found_the_usual_way() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let bin = fake_ndk(&dir.path().join("ndk"));
    let mut vars = android_vars();
    vars.android.ndk_dirs = vec![("ANDROID_NDK_HOME", dir.path().join("ndk"))];
    let ndk = android::find(&vars).expect("good").expect("found");
    assert_eq!(ndk.cxx, bin.join("aarch64-linux-android23-clang++"));
    assert_eq!(ndk.cc, bin.join("aarch64-linux-android23-clang"));
    assert_eq!(ndk.ar, bin.join("llvm-ar"));
    vars.android.api = Some("28".into());
    let ndk = android::find(&vars).expect("good").expect("found");
    assert_eq!(ndk.cxx, bin.join("aarch64-linux-android28-clang++"));
    // cargo-ndk and people who set CXX have decided.
    vars.android.compiler_is_set = true;
    assert!(android::find(&vars).expect("good").is_none());
    // Nothing of this matters elsewhere.
    vars.android.compiler_is_set = false;
    vars.target_os = "linux".into();
    assert!(android::find(&vars).expect("good").is_none());
}

#[test]
fn the_newest_ndk_of_an_sdk_counts() {
    let dir = tempfile::tempdir().expect("temporary folder");
    for version in ["9.1.2", "27.0.12077973", "26.3.11579264"] {
        fake_ndk(&dir.path().join("ndk").join(version));
    }
    let mut vars = android_vars();
    vars.android.sdk_dirs = vec![("ANDROID_HOME", dir.path().into())];
    let ndk = android::find(&vars).expect("good").expect("found");
    assert!(ndk.cxx.starts_with(dir.path().join("ndk/27.0.12077973")), "{}", ndk.cxx.display());
    // An SDK without an NDK is no mistake.
    vars.android.sdk_dirs = vec![("ANDROID_HOME", dir.path().join("ndk"))];
    assert!(android::find(&vars).expect("good").is_none());
}

#[test]
fn a_wrong_ndk_or_api_level_is_named() {
    let dir = tempfile::tempdir().expect("temporary folder");
    fake_ndk(&dir.path().join("ndk"));
    let error = |folder: &str, api: Option<&str>| {
        let mut vars = android_vars();
        vars.android.ndk_dirs = vec![("ANDROID_NDK_ROOT", dir.path().join(folder))];
        vars.android.api = api.map(str::to_owned);
        android::find(&vars).expect_err("must be refused")
    };
    assert_has(&error("nothing", None), &["ANDROID_NDK_ROOT names ", "which is no NDK"]);
    assert_has(
        &error("ndk", Some("30")),
        &["aarch64-linux-android30-clang", "API levels 21, 23, 28", "GGML_SYS_ANDROID_API"],
    );
    for api in ["19", "nine", "-1"] {
        assert_has(&error("ndk", Some(api)), &["GGML_SYS_ANDROID_API=", "from 21"]);
    }
}

#[test]
fn programs_bring_their_cpp_library_on_android_and_musl() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let gcc = dir.path().join("g++");
    script(&gcc, &format!("echo {}/lib/libstdc++.a\n", dir.path().display()));
    let choose = |vars: &vars::Vars, clang| stdlib::choose(vars, Command::new(&gcc), clang);

    let mut android = android_vars();
    let found = choose(&android, true).expect("not the shared one");
    assert_eq!((found.libraries, found.folder), (vec!["c++_static", "c++abi"], None));
    android.stdlib_is_set = true;
    assert_eq!(choose(&android, true), None, "CXXSTDLIB counts");

    let musl = vars("aarch64-unknown-linux-musl", "linux", "musl");
    let found = choose(&musl, false).expect("the static one");
    assert_eq!(found.libraries, ["static:-bundle=stdc++"]);
    assert_eq!(found.folder, Some(format!("{}/lib", dir.path().display())));
    assert_eq!(choose(&musl, true), None, "clang's c++ is right already");
    assert_eq!(choose(&vars("aarch64-unknown-linux-gnu", "linux", "gnu"), false), None);

    // A GCC without it prints the name back.
    script(&gcc, "echo libstdc++.a\n");
    assert_eq!(choose(&musl, false), None);
}
