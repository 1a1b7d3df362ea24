//! What the build script refuses, and with which words: pin, patch series, CPU levels.
// The build script's modules speak to cargo on standard output, and not all of them are used here.
#![allow(dead_code, clippy::print_stdout)]

#[path = "../build/android.rs"]
mod android;
#[path = "../build/apple.rs"]
mod apple;
#[path = "../build/cpu_level.rs"]
mod cpu_level;
#[path = "../build/levels.rs"]
mod levels;
#[path = "../build/pin.rs"]
mod pin;
#[path = "../build/series.rs"]
mod series;
#[path = "../build/source.rs"]
mod source;
#[path = "../build/symbols.rs"]
mod symbols;
#[path = "../build/tool_files.rs"]
mod tool_files;
#[path = "../build/vars.rs"]
mod vars;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

const FILE: &str = "one\ntwo\nthree\n";
const PATCH: &str = "--- a/src/a.cpp\n+++ b/src/a.cpp\n@@ -1,2 +1,3 @@\n one\n+inserted\n two\n";
const PATCHED: &str = "one\ninserted\ntwo\nthree\n";

/// A small pin, patch series and llama.cpp tree in a temporary folder.
struct Fixture {
    dir: tempfile::TempDir,
    vars: vars::Vars,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| dir.path().join(name);
        let vars = vars::Vars {
            out_dir: path("out"),
            manifest_dir: path("crate"),
            cargo: "false".into(),
            target: "x86_64-unknown-linux-gnu".into(),
            host: "x86_64-unknown-linux-gnu".into(),
            target_arch: "x86_64".into(),
            target_os: "linux".into(),
            target_env: "gnu".into(),
            features: BTreeSet::from(["insert".to_owned()]),
            docs_rs: false,
            llama_dir: Some(path("tree")),
            cpu: None,
            ios_version: None,
            android: android::AndroidVars::default(),
            ndk: None,
            stdlib_is_set: false,
        };
        let fixture = Fixture { dir, vars };
        fixture.write("tree/include/llama.h", "");
        fixture.write(
            "tree/CMakeLists.txt",
            "set(LLAMA_VERSION_MAJOR 0)\nset(LLAMA_VERSION_MINOR 8)\nset(LLAMA_VERSION_PATCH 0)\n",
        );
        fixture.write("tree/src/a.cpp", FILE);
        fixture.write(
            "crate/vendor/pin.toml",
            "llama_version = \"0.8.0\"\nggml_version = \"0.28.0\"\ncommit = \"abc\"\nbuild_number = 7\npackage = \"carrier\"\n\
             package_version = \"1.0.0\"\n",
        );
        fixture.write(
            "crate/vendor/files.sha256",
            &format!("{}  src/a.cpp\n", pin::sha256(FILE.as_bytes())),
        );
        fixture.write("crate/vendor/fetch.lock", "");
        fixture.write("crate/patches/0001-insert.patch", PATCH);
        fixture.series(&pin::sha256(FILE.as_bytes()), &pin::sha256(PATCHED.as_bytes()));
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("create folder");
        fs::write(path, text).expect("write");
    }

    fn series(&self, before: &str, after: &str) {
        self.write(
            "crate/patches/series.toml",
            &format!(
                "[[patch]]\nid = \"insert\"\nfile = \"0001-insert.patch\"\nfeature = \"insert\"\npurpose = \"p\"\n\
                 source = \"s\"\nupstream = \"u\"\ntest = \"t\"\n[[patch.touches]]\npath = \"src/a.cpp\"\n\
                 before = \"{before}\"\nafter = \"{after}\"\n"
            ),
        );
    }

    fn prepare(&self) -> Result<String, String> {
        let pin = pin::Pin::load(&self.vars.manifest_dir)?;
        let series = series::Series::load(&self.vars.manifest_dir, &self.vars.features)?;
        let tree = self.path("out/llama.cpp");
        source::prepare(&self.vars, &pin, &series, &tree)?;
        Ok(fs::read_to_string(tree.join("src/a.cpp")).expect("copied"))
    }

    fn error(&self) -> String {
        self.prepare().expect_err("must be refused")
    }
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

#[test]
fn a_good_tree_is_copied_and_patched_and_the_source_left_alone() {
    let fixture = Fixture::new();
    assert_eq!(fixture.prepare().expect("good"), PATCHED);
    assert_eq!(fs::read_to_string(fixture.path("tree/src/a.cpp")).expect("source"), FILE);
}

#[test]
fn a_feature_that_is_off_leaves_its_patch_out() {
    let mut fixture = Fixture::new();
    fixture.vars.features.clear();
    assert_eq!(fixture.prepare().expect("good"), FILE);
}

#[test]
fn a_changed_file_is_named() {
    let fixture = Fixture::new();
    fixture.write("tree/src/a.cpp", "changed\n");
    assert_has(&fixture.error(), &["src/a.cpp has sha256", "GGML_SYS_LLAMA_DIR", "commit abc"]);
}

#[test]
fn a_missing_file_is_named() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.path("tree/src/a.cpp")).expect("remove");
    assert_has(&fixture.error(), &["src/a.cpp: ", "not the pinned one"]);
}

#[test]
fn a_tree_of_another_version_is_told_apart() {
    let fixture = Fixture::new();
    fixture.write("tree/src/a.cpp", "changed\n");
    fixture.write(
        "tree/CMakeLists.txt",
        "set(LLAMA_VERSION_MAJOR 0)\nset(LLAMA_VERSION_MINOR 9)\nset(LLAMA_VERSION_PATCH 1)\n",
    );
    assert_has(&fixture.error(), &["that tree is version 0.9.1", "version 0.8.0"]);
}

#[test]
fn a_folder_without_llama_cpp_is_refused() {
    let mut fixture = Fixture::new();
    fixture.vars.llama_dir = Some(fixture.path("crate"));
    assert_has(&fixture.error(), &["is not a llama.cpp tree", "include/llama.h"]);
}

#[test]
fn a_vendored_tree_is_used_before_cargo() {
    let mut fixture = Fixture::new();
    fixture.vars.llama_dir = None;
    fs::rename(fixture.path("tree"), fixture.path("crate/vendor/llama.cpp")).expect("move");
    assert_eq!(fixture.prepare().expect("good"), PATCHED);
}

#[test]
fn a_failing_fetch_names_the_ways_out() {
    let mut fixture = Fixture::new();
    fixture.vars.llama_dir = None;
    assert_has(
        &fixture.error(),
        &["carrier 1.0.0", "Offline?", "vendor/llama.cpp", "GGML_SYS_LLAMA_DIR"],
    );
}

#[test]
fn a_patch_that_no_longer_applies_is_named() {
    let fixture = Fixture::new();
    fixture.write("crate/patches/0001-insert.patch", &PATCH.replace(" two", " zwei"));
    assert_has(&fixture.error(), &["patches/0001-insert.patch does not apply to src/a.cpp"]);
}

#[test]
fn a_wrong_hash_before_or_after_a_patch_is_named() {
    let fixture = Fixture::new();
    fixture.series(&"0".repeat(64), &pin::sha256(PATCHED.as_bytes()));
    assert_has(&fixture.error(), &["0001-insert.patch", "before the patch", "src/a.cpp"]);
    fixture.series(&pin::sha256(FILE.as_bytes()), &"0".repeat(64));
    assert_has(&fixture.error(), &["0001-insert.patch", "after the patch", "src/a.cpp"]);
}

#[test]
fn an_unlisted_patch_file_is_named() {
    let fixture = Fixture::new();
    fixture.write("crate/patches/0002-stray.patch", PATCH);
    assert_has(&fixture.error(), &["patches/0002-stray.patch is not listed"]);
}

#[test]
fn a_patch_of_an_unlisted_file_is_refused() {
    let fixture = Fixture::new();
    fixture.write("crate/patches/0001-insert.patch", &PATCH.replace("a.cpp", "b.cpp"));
    assert_has(&fixture.error(), &["changes src/b.cpp, which series.toml does not list"]);
}

#[test]
fn a_missing_patch_file_is_named() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.path("crate/patches/0001-insert.patch")).expect("remove");
    assert_has(&fixture.error(), &["series.toml lists patches/0001-insert.patch"]);
}

#[test]
fn levels_are_spelled_as_documented() {
    let level = |arch: &str, name: &str| {
        let mut fixture = Fixture::new();
        fixture.vars.target_arch = arch.into();
        fixture.vars.cpu = Some(name.into());
        cpu_level::CpuLevel::resolve(&fixture.vars)
    };
    let v3 = level("x86_64", "x86-64-v3").expect("known");
    assert_eq!(v3.flags, ["-msse4.2", "-mavx", "-mf16c", "-mfma", "-mbmi2", "-mavx2"]);
    let a76 = level("aarch64", "armv8.2-a+dotprod+fp16").expect("known");
    assert_eq!(a76.flags, ["-march=armv8.2-a+dotprod+fp16"]);
    assert_eq!(a76.required, ["lse", "rdm", "dotprod", "fp16"]);
    assert!(level("aarch64", "armv8-a").expect("known").required.is_empty());
    assert_eq!(
        level("aarch64", "armv8.2-a+sve").expect("known").required,
        ["lse", "rdm", "sve", "fp16"]
    );
    assert!(level("aarch64", "armv8.6-a+i8mm").is_ok());
    for (arch, name, part) in [
        ("x86_64", "x86-64-v5", "`x86-64-v5` is not known"),
        ("x86_64", "x86-64-v3+amx", "`amx` is not known"),
        ("aarch64", "armv8.2-a+dotprot", "`dotprot` is not known"),
        ("aarch64", "armv8-a+lse", "`lse` is not known"),
        ("riscv64", "rv64gcv", "only `generic` is known"),
    ] {
        let error = level(arch, name).err().unwrap_or_else(|| panic!("{name} must be refused"));
        assert_has(&error, &[part]);
    }
}

#[test]
fn presets_are_levels_tuned_for_a_core() {
    let preset = |arch: &str, name: &str| {
        let mut fixture = Fixture::new();
        fixture.vars.target_arch = arch.into();
        fixture.vars.cpu = Some(name.into());
        cpu_level::CpuLevel::resolve(&fixture.vars)
    };
    for (name, level, tune) in [
        ("tvbox", "armv8.2-a+dotprod+fp16", Some("cortex-a55")),
        ("ipad-air", "armv8-a", Some("apple-a7")),
        ("rpi4", "armv8-a", Some("cortex-a72")),
        ("rpi5", "armv8.2-a+dotprod+fp16", Some("cortex-a76")),
        ("generic", "armv8-a", None),
    ] {
        let found = preset("aarch64", name).expect("known");
        assert_eq!((found.name.as_str(), found.preset, found.tune), (level, Some(name), tune));
        let plain = preset("aarch64", level).expect("known");
        assert_eq!((plain.preset, plain.tune), (None, None));
        assert_eq!(found.required, plain.required, "tuning allows no instruction");
    }
    assert_eq!(preset("x86_64", "generic").expect("every target has it").preset, Some("generic"));
    let error = preset("x86_64", "tvbox").expect_err("another architecture");
    assert_has(&error, &["GGML_SYS_CPU=tvbox", "aarch64", "this build is for x86_64"]);
    assert_has(&preset("aarch64", "tv-box").expect_err("unknown"), &["tvbox", "ipad-air", "rpi5"]);
    let error = preset("x86_64", "x86").expect_err("unknown");
    assert!(!error.contains("tvbox"), "{error}");
}

#[test]
fn a_cross_build_is_generic_and_native_refused() {
    let mut fixture = Fixture::new();
    fixture.vars.target = "aarch64-unknown-linux-musl".into();
    fixture.vars.target_arch = "aarch64".into();
    assert_eq!(cpu_level::CpuLevel::resolve(&fixture.vars).expect("generic").name, "armv8-a");
    fixture.vars.cpu = Some("native".into());
    let error = cpu_level::CpuLevel::resolve(&fixture.vars).expect_err("native makes no sense");
    assert_has(&error, &["cross build"]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn native_is_what_the_system_allows() {
    let fixture = Fixture::new();
    let level = cpu_level::CpuLevel::resolve(&fixture.vars).expect("native");
    assert!(!level.name.contains("amx"));
    assert!(
        level.flags.iter().all(|flag| flag.starts_with("-m") && !flag.contains("native")),
        "{:?}",
        level.flags
    );
    assert_eq!(level.flags.contains(&"-mavx2".to_owned()), is_x86_feature_detected!("avx2"));
}

#[test]
fn ios_is_12_unless_a_later_one_is_asked_for() {
    let mut fixture = Fixture::new();
    assert_eq!(apple::deployment_target(&fixture.vars), Ok(None));
    fixture.vars.target_os = "ios".into();
    assert_eq!(apple::deployment_target(&fixture.vars), Ok(Some("12.0".to_owned())));
    for version in ["12.0", "12", "12.1", "26.0"] {
        fixture.vars.ios_version = Some(version.to_owned());
        assert_eq!(apple::deployment_target(&fixture.vars), Ok(Some(version.to_owned())));
    }
    for version in ["11.4", "9", "latest", ""] {
        fixture.vars.ios_version = Some(version.to_owned());
        let error = apple::deployment_target(&fixture.vars).expect_err("must be refused");
        assert_has(&error, &["IPHONEOS_DEPLOYMENT_TARGET", "12.0"]);
    }
}

/// Names of the levels that are built for an architecture.
fn levels_of(
    arch: &str,
    os: &str,
    cpu: Option<&str>,
    features: &[&str],
) -> Result<Vec<String>, String> {
    let mut fixture = Fixture::new();
    fixture.vars.target = format!("{arch}-unknown-{os}");
    fixture.vars.target_arch = arch.to_owned();
    fixture.vars.target_os = os.to_owned();
    fixture.vars.cpu = cpu.map(str::to_owned);
    fixture.vars.features = features.iter().map(|name| (*name).to_owned()).collect();
    Ok(levels::resolve(&fixture.vars)?.into_iter().map(|level| level.name).collect())
}

#[test]
fn one_level_without_the_feature_and_all_with_it() {
    let arm = |features: &[&str]| levels_of("aarch64", "linux", None, features).expect("levels");
    let all =
        ["armv8-a", "armv8.2-a+dotprod", "armv8.2-a+dotprod+fp16", "armv8.2-a+dotprod+fp16+i8mm"];
    assert_eq!(arm(&[]), all[..1]);
    assert_eq!(arm(&["multi-level"]), all);
    let x86 = levels_of("x86_64", "linux", None, &["multi-level"]).expect("levels");
    assert_eq!(x86, ["x86-64-v2", "x86-64-v3", "x86-64-v4+vnni"]);
}

#[test]
fn the_level_that_is_asked_for_is_the_lowest() {
    let arm = |cpu| levels_of("aarch64", "linux", Some(cpu), &["multi-level"]).expect("levels");
    let top = "armv8.2-a+dotprod+fp16+i8mm";
    assert_eq!(arm("armv8.2-a+dotprod"), ["armv8.2-a+dotprod", "armv8.2-a+dotprod+fp16", top]);
    assert_eq!(arm("rpi5"), ["armv8.2-a+dotprod+fp16", top]);
    assert_eq!(arm("armv8.6-a+fp16"), ["armv8.6-a+fp16"]);
    let mac = levels_of("aarch64", "macos", None, &["multi-level"]).expect("levels");
    assert_eq!(mac, ["armv8.4-a+fp16", top]);
    assert!(levels_of("aarch64", "linux", Some("x86-64-v3"), &["multi-level"]).is_err());
}

fn symbol(name: &str, defined: bool, callable: bool) -> symbols::Symbol {
    symbols::Symbol { name: name.to_owned(), defined, callable, entry: 0 }
}

fn two_levels(of_the_second: Vec<symbols::Symbol>) -> levels::Names {
    let mut names = levels::Names::new(2);
    let first = ["kernel", "cpu_init", "_ZN3cpu4listEv", "table"];
    names.add(first.iter().map(|name| symbol(name, true, *name != "table")).collect(), Some(0));
    names.add(of_the_second, Some(1));
    names.add(vec![symbol("main", true, true), symbol("_ZN3cpu4listEv", false, true)], None);
    names
}

#[test]
fn what_the_header_declares_or_the_rest_calls_is_switched() {
    let second = ["kernel", "cpu_init", "_ZN3cpu4listEv"].map(|name| symbol(name, true, true));
    let names = two_levels(second.to_vec());
    let entries = names.entries("void cpu_init(void);").expect("entries");
    assert_eq!(entries, ["_ZN3cpu4listEv", "cpu_init"]);
    assert_eq!(names.rename("kernel", Some((1, "v8.2+x"))).as_deref(), Some("kernel.smol.v8_2_x"));
    assert_eq!(names.rename("main", Some((1, "v8"))).as_deref(), Some("smol_main"));
    assert_eq!(names.rename("kernel", None), None);
    assert_eq!(names.rename("malloc", Some((0, "v8"))), None);
}

#[test]
fn what_cannot_be_switched_is_refused() {
    let names = two_levels(vec![symbol("kernel", true, true)]);
    let error = names.entries("").expect_err("the second level lacks it");
    assert!(error.contains("_ZN3cpu4listEv"), "{error}");
    let all = ["kernel", "cpu_init", "_ZN3cpu4listEv", "table"];
    let names = two_levels(all.map(|name| symbol(name, true, name != "table")).to_vec());
    let error = names.entries("extern int table;").expect_err("data");
    assert!(error.contains("table of the CPU backend is data"), "{error}");
}
