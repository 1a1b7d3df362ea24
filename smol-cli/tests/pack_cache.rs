//! `--pack-cache` and `smol cache`.

mod common;

use common::{output, smol};
use serde_json::Value;
use smol_gguf::TensorType;
use std::path::{Path, PathBuf};
use testkit::tiny::{self, Arch, TinyOptions};

struct Bench {
    folder: tempfile::TempDir,
    model: PathBuf,
    cache: String,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tiny.gguf");
        let weights = TensorType::Q2_K;
        let options =
            TinyOptions { weights, pure: true, byte_level: true, ..TinyOptions::default() };
        tiny::write(&model, Arch::Llama, &options).unwrap();
        let cache = folder.path().join("packed").to_str().unwrap().to_owned();
        Self { folder, model, cache }
    }

    fn args(&self) -> Vec<String> {
        let model = self.model.to_str().unwrap();
        let args =
            ["run", "-m", model, "-p", "Hello", "-n", "4", "--raw", "-t", "1", "--temp", "0"];
        let args = args.iter().map(|arg| (*arg).to_owned());
        args.chain(["--json".to_owned(), "--pack-cache".to_owned(), self.cache.clone()]).collect()
    }

    fn run(&self) -> Value {
        let (stdout, stderr) = output(smol(self.folder.path()).args(self.args()), 0);
        assert_eq!(stderr, "");
        serde_json::from_str(&stdout).unwrap()
    }

    fn cache(&self, args: &[&str]) -> String {
        let (command, rest) = args.split_first().unwrap();
        let mut smol = smol(self.folder.path());
        smol.args(["cache", command, "--pack-cache", &self.cache]).args(rest);
        output(&mut smol, 0).0
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.cache(&[args, &["--json"]].concat())).unwrap()
    }
}

#[test]
fn the_second_run_finds_what_the_first_has_packed() {
    let bench = Bench::new();
    let cold = bench.run();
    let packed = cold["cache"]["misses"].as_u64().unwrap();
    assert!(packed > 0 && cold["cache"]["hits"] == 0, "{cold}");
    assert!(cold["cache"]["written_mb"].as_f64().unwrap() > 0.0);
    let warm = bench.run();
    assert_eq!(warm["text"], cold["text"]);
    assert_eq!(warm["layouts"], cold["layouts"]);
    assert_eq!((&warm["cache"]["hits"], &warm["cache"]["misses"]), (&packed.into(), &0.into()));

    let list = bench.json(&["list"]);
    let file = &list["files"][0];
    assert_eq!((&file["state"], &file["weights"]), (&"current".into(), &packed.into()));
    assert_eq!(file["file"], warm["cache"]["file"]);
    assert_eq!(file["bytes"], list["bytes"]);
    let mut bytes = std::fs::read(file["file"].as_str().unwrap()).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(file["file"].as_str().unwrap(), bytes).unwrap();
    assert_eq!(bench.json(&["list"])["files"][0]["state"], "current");
    let damaged = bench.json(&["list", "--verify"]);
    assert_eq!(damaged["files"][0]["state"], "damaged");
    assert!(bench.cache(&["list", "--verify"]).contains("damaged: "));

    let cleared = bench.json(&["clear"]);
    assert_eq!((&cleared["files"], &cleared["bytes"]), (&1.into(), &list["bytes"]));
    assert_eq!(bench.json(&["list"])["files"].as_array().unwrap().len(), 0);
    assert_eq!(bench.cache(&["clear"]), "removed 0 files, 0 B\n");
}

#[test]
fn two_processes_at_once_both_succeed() {
    let bench = Bench::new();
    let start = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_smol"));
        command.args(bench.args()).env("HOME", bench.folder.path());
        command.env("XDG_CACHE_HOME", bench.folder.path());
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let texts: Vec<_> = [start(), start()]
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            serde_json::from_slice::<Value>(&output.stdout).unwrap()["text"].clone()
        })
        .into();
    assert_eq!(texts[0], texts[1]);
    let warm = bench.run();
    assert_eq!((&warm["cache"]["misses"], &warm["text"]), (&0.into(), &texts[0]));
}

#[test]
#[cfg(unix)]
fn a_full_disk_is_no_error() {
    let bench = Bench::new();
    // No file of more than 100 KB, for which the system has an error as for a full disk.
    let script = "ulimit -f 100; exec \"$0\" \"$@\"";
    let mut shell = assert_cmd::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_smol")]).args(bench.args());
    shell.env("HOME", bench.folder.path()).env("XDG_CACHE_HOME", bench.folder.path());
    let (stdout, stderr) = output(&mut shell, 0);
    // Nobody looks for the reason in a report that was not asked for.
    assert!(stderr.starts_with("smol: packed weights are not kept in "), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert!(report["cache"]["note"].as_str().unwrap().starts_with("not kept: "), "{report}");
    assert_eq!(std::fs::read_dir(Path::new(&bench.cache)).unwrap().count(), 0);
    assert_eq!(bench.run()["text"], report["text"]);
}

/// Opening a pipe waits for its other end, which nobody will open.
#[test]
#[cfg(unix)]
fn pipes_in_place_of_files_do_not_stop_a_run() {
    let bench = Bench::new();
    let text = bench.run()["text"].clone();
    let list = bench.json(&["list"]);
    let file = PathBuf::from(list["files"][0]["file"].as_str().unwrap());
    let mut lock = std::ffi::OsString::from(".");
    lock.push(file.file_name().unwrap());
    lock.push(".lock");
    let lock = file.with_file_name(lock);
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    std::fs::remove_file(&file).unwrap();
    pipe(&file);
    pipe(&bench.folder.path().join("smolmaxxing/running/1.json"));
    let report = bench.run();
    assert_eq!((&report["text"], &report["cache"]["note"]), (&text, &"it is no file".into()));
    assert_eq!(bench.run()["cache"]["misses"], 0);
    std::fs::remove_file(&file).unwrap();
    pipe(&lock);
    let (stdout, stderr) = output(smol(bench.folder.path()).args(bench.args()), 0);
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["text"], text);
    assert!(stderr.contains(" is no file"), "{stderr}");
}

#[test]
fn mistakes_are_told() {
    let bench = Bench::new();
    let mut args = bench.args();
    args.truncate(args.len() - 2);
    args.push("--pack-cache-verify".into());
    let (_, stderr) = output(smol(bench.folder.path()).args(args), 2);
    assert!(stderr.contains("--pack-cache <DIR>"), "{stderr}");
    for command in ["list", "clear"] {
        let mut smol = smol(bench.folder.path());
        let (_, stderr) = output(smol.args(["cache", command, "--pack-cache", &bench.cache]), 1);
        assert!(stderr.contains("there is no folder "), "{stderr}");
    }
}
