//! Files with their experts last, and experts whose room is freed.

mod common;

use common::{output, smol};
use smol_gguf::{EXPERTS_OFFSET_KEY, Gguf, TensorType, Writer};
use smolmaxxing::{Batch, LayoutOptions, Model, SeqId};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::tiny::{self, Arch, TinyOptions};

fn mixtures() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|arch| arch.has_experts())
}

/// A folder with a mixture of experts in it.
struct Mixture {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Mixture {
    fn new(arch: Arch, options: &TinyOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let written = tiny::write(&folder.path().join("model.gguf"), arch, options).unwrap();
        let model = written.path().to_owned();
        Self { folder, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn recut(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = smol(self.folder.path());
        command.arg("recut").args(args).current_dir(self.folder.path());
        command
    }

    /// Writes `last.gguf`.
    fn experts_last(&self) -> PathBuf {
        let model = self.model.to_str().unwrap();
        output(&mut self.recut(&["--experts-last", model, "last.gguf"]), 0);
        self.path("last.gguf")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The bits of all logits of a few tokens.
fn logits(path: &Path) -> Vec<u32> {
    let mut layouts = LayoutOptions::default();
    layouts.enabled = false;
    let model = Model::builder(path).layouts(layouts).load().unwrap();
    let mut context = model.context().n_ctx(64).n_batch(64).threads(2, 2).build().unwrap();
    let tokens = model.vocab().tokenize("The capital of France is", true).unwrap();
    let outputs = context.decode(&Batch::sequence(&tokens, 0, SeqId(0))).unwrap();
    outputs.last_logits().unwrap().iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn every_mixture_computes_the_same() {
    for arch in mixtures() {
        for weights in [TensorType::F16, TensorType::Q4_K] {
            let options = TinyOptions { weights, ..TinyOptions::default() };
            let mixture = Mixture::new(arch, &options);
            let last = mixture.experts_last();
            assert_eq!(logits(&last), logits(&mixture.model), "{} {weights}", arch.name());
            let gguf = Gguf::open(&last).unwrap();
            let front = gguf.experts_offset().unwrap();
            assert_eq!(front % 4096, 0);
            assert_eq!(gguf.get_u64(EXPERTS_OFFSET_KEY), Some(front));
            for (name, tensor) in gguf.experts() {
                assert_eq!(gguf.file_offset(tensor).unwrap() % 4096, 0, "{name}");
            }
            let mut inspect = smol(mixture.folder.path());
            let (text, _) = output(inspect.args(["inspect", "--check"]).arg(&last), 0);
            assert!(text.contains("no fault found"), "{text}");
        }
    }
}

#[test]
fn split_models_become_one_file() {
    let whole = Mixture::new(Arch::Glm4Moe, &TinyOptions::default());
    let options = TinyOptions { shards: 3, ..TinyOptions::default() };
    let split = Mixture::new(Arch::Glm4Moe, &options);
    assert!(split.names().len() == 3);
    assert!(fs::read(split.experts_last()).unwrap() == fs::read(whole.experts_last()).unwrap());
}

#[test]
fn what_was_written_is_told() {
    let mixture = Mixture::new(Arch::LlamaMoe, &TinyOptions::default());
    let (text, stderr) =
        output(&mut mixture.recut(&["--experts-last", "model.gguf", "last.gguf"]), 0);
    assert!(text.contains("last.gguf: 8.") && text.contains("experts: 6.29 MB behind"), "{text}");
    assert_eq!(stderr, "");
    let json =
        output(&mut mixture.recut(&["--experts-last", "model.gguf", "json.gguf", "--json"]), 0).0;
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let new = Gguf::open(mixture.path("json.gguf")).unwrap();
    assert_eq!(report["out_bytes"], new.file_len());
    assert_eq!(report["experts_offset"], new.experts_offset().unwrap());
    assert_eq!(report["expert_tensors"], 6);
    assert_eq!(report["aligned_expert_tensors"], 6);
    let added = report["out_bytes"].as_u64().unwrap() - report["in_bytes"].as_u64().unwrap();
    assert!(added < 4096 + 200, "{added}");
}

#[test]
fn refused_with_advice() {
    let mixture = Mixture::new(Arch::LlamaMoe, &TinyOptions::default());
    tiny::write(&mixture.path("dense.gguf"), Arch::Llama, &TinyOptions::default()).unwrap();
    fs::create_dir(mixture.path("folder")).unwrap();
    fs::write(mixture.path("there.gguf"), "mine").unwrap();
    fs::hard_link(&mixture.model, mixture.path("link.gguf")).unwrap();
    let before = mixture.names();
    for (args, code, words) in [
        (&["--experts-last", "dense.gguf", "x.gguf"][..], 1, "has no routed experts"),
        (&["--experts-last", "model.gguf", "there.gguf"], 1, "--force replaces it"),
        (&["--experts-last", "model.gguf", "model.gguf", "--force"], 2, "is the input itself"),
        (&["--experts-last", "model.gguf", "link.gguf", "--force"], 2, "is the input itself"),
        (&["--experts-last", "model.gguf", "folder"], 2, "is a directory"),
        (&["--experts-last", "model.gguf", "no/x.gguf"], 1, "there is no folder no"),
        (&["--experts-last", "no.gguf", "x.gguf"], 1, "there is no file no.gguf"),
        (&["--experts-last", "there.gguf", "x.gguf"], 1, "there.gguf: not a GGUF file"),
        (&["--experts-last", "model.gguf"], 2, "OUT"),
        (&["model.gguf", "x.gguf"], 2, "--experts-last"),
        (&[], 2, "IN"),
        (&["--punch", "model.gguf"], 2, "--copy"),
        (&["--punch", "model.gguf", "--fill", "model.gguf", "--copy", "link.gguf"], 2, "--fill"),
        (&["--punch", "model.gguf", "--copy", "link.gguf"], 2, "is a part of the model itself"),
        (&["--punch", "model.gguf", "--copy", "dense.gguf"], 1, "is missing there"),
        (&["--punch", "dense.gguf", "--copy", "model.gguf"], 1, "no routed experts"),
        (&["--punch", "no.gguf", "--copy", "model.gguf"], 1, "there is no file no.gguf"),
        (&["--fill", "model.gguf", "--copy", "dense.gguf"], 1, "is missing there"),
        (&["--copy", "model.gguf"], 2, "IN"),
    ] {
        let (stdout, stderr) = output(&mut mixture.recut(args), code);
        assert_eq!(stdout, "");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        assert_eq!(mixture.names(), before, "{args:?}");
    }
    assert_eq!(fs::read(mixture.path("there.gguf")).unwrap(), b"mine");
    output(&mut mixture.recut(&["--experts-last", "model.gguf", "there.gguf", "--force"]), 0);
    assert!(Gguf::open(mixture.path("there.gguf")).is_ok());
}

#[test]
fn truncated_models_are_refused_at_once() {
    let mixture = Mixture::new(Arch::LlamaMoe, &TinyOptions::default());
    let file = fs::OpenOptions::new().write(true).open(&mixture.model).unwrap();
    file.set_len(fs::metadata(&mixture.model).unwrap().len() - 100_000).unwrap();
    let (_, stderr) = output(&mut mixture.recut(&["--experts-last", "model.gguf", "last.gguf"]), 1);
    assert!(stderr.contains("truncated"), "{stderr}");
    assert_eq!(mixture.names(), ["model.gguf"]);
}

/// A model of `mib` MiB that takes no room: its weights are a hole.
#[cfg(target_os = "linux")]
fn sparse_model(path: &Path, mib: u64) {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    let per_tensor = 64;
    for block in 0..mib / per_tensor {
        writer
            .tensor(
                format!("blk.{block}.ffn_up_exps.weight"),
                &[1024, per_tensor * 128, 2],
                TensorType::F32,
            )
            .unwrap();
        writer.tensor(format!("blk.{block}.ffn_norm.weight"), &[1024], TensorType::F32).unwrap();
    }
    let len = writer.layout().unwrap().1;
    let mut header = Vec::new();
    drop(writer.start(&mut header).unwrap());
    fs::write(path, header).unwrap();
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// A recut of a large file, and what `/proc` tells about it.
#[cfg(target_os = "linux")]
struct Running {
    child: std::process::Child,
    folder: tempfile::TempDir,
}

#[cfg(target_os = "linux")]
impl Running {
    fn start(mib: u64) -> Self {
        // On a disk: what is in memory is written too fast.
        let beside = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        sparse_model(&folder.path().join("large.gguf"), mib);
        let child = std::process::Command::new(env!("CARGO_BIN_EXE_smol"))
            .args(["recut", "--experts-last", "large.gguf", "last.gguf"])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn number(&self, file: &str, field: &str) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim_matches([':', ' ', '\t']).split(' ').next()?.parse().ok()
    }

    fn wait_until_written(&self, bytes: u64) {
        let start = Instant::now();
        while self.number("io", "wchar").unwrap_or(u64::MAX) < bytes {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the new file has no name yet, which not every file system can do.
    fn writes_unnamed(&self) -> bool {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        targets.map(|target| target.to_string_lossy().into_owned()).any(|target| {
            target.starts_with(self.folder.path().to_str().unwrap())
                && target.ends_with("(deleted)")
        })
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Returns the exit code, standard error and the files that are left.
    fn end(self) -> (Option<i32>, String, Vec<String>) {
        let output = self.child.wait_with_output().unwrap();
        let mut names: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), names)
    }
}

#[test]
#[cfg(target_os = "linux")]
fn interrupted_work_leaves_nothing_behind() {
    for (signal, expected) in [("-INT", Some(130)), ("-TERM", Some(143)), ("-KILL", None)] {
        let running = Running::start(768);
        running.wait_until_written(64 << 20);
        let unnamed = running.writes_unnamed();
        running.signal(signal);
        let (code, stderr, names) = running.end();
        if unnamed || expected.is_some() {
            assert_eq!(names, ["large.gguf"], "{signal}");
        } else {
            assert!(!names.contains(&"last.gguf".to_owned()), "{names:?}");
        }
        assert_eq!(code, expected, "{stderr}");
        assert!(code.is_none() || stderr.contains("stopped; nothing was written"), "{stderr}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_file() {
    let mut running = Running::start(768);
    let mut peak = 0;
    while running.child.try_wait().unwrap().is_none() {
        peak = running.number("status", "VmHWM").unwrap_or(0).max(peak);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (code, stderr, names) = running.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(names, ["large.gguf", "last.gguf"]);
    assert!(peak > 1000 && peak < 100_000, "{peak} kB");
}

/// Whether room can be freed where temporary files are.
fn can_free(folder: &Path) -> bool {
    smol_engine::io::HolePunch::probe(folder).is_ok()
}

#[test]
fn punched_models_are_small_refused_and_come_back() {
    for shards in [1, 3] {
        let options = TinyOptions { shards, ..TinyOptions::default() };
        let mixture = Mixture::new(Arch::Glm4Moe, &options);
        let files: Vec<_> = mixture.names().iter().map(|name| mixture.path(name)).collect();
        let before: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        let last = mixture.experts_last();
        let model = mixture.model.to_str().unwrap();
        let punch = ["--punch", model, "--copy", "last.gguf", "--json"];
        if !can_free(mixture.folder.path()) {
            let (_, stderr) = output(&mut mixture.recut(&punch), 1);
            assert!(stderr.contains("no room can be freed inside"), "{stderr}");
            continue;
        }
        let room = || -> u64 { files.iter().map(|file| allocated(file)).sum() };
        let room_before = room();
        let (json, _) = output(&mut mixture.recut(&punch), 0);
        let report: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(report["action"], "punch");
        let freed = report["bytes"].as_u64().unwrap();
        assert!(freed > 6_000_000, "{freed}");
        if cfg!(unix) {
            let gone = room_before - room();
            assert!(gone.abs_diff(freed) < 100_000, "{gone} of {freed}");
        }

        for args in [&["run", "-p", "x", "-m"][..], &["inspect"], &["tokenize", "-p", "x", "-m"]] {
            let (_, stderr) = output(smol(mixture.folder.path()).args(args).arg(model), 1);
            assert!(stderr.contains("taken out") && stderr.contains("recut --fill"), "{stderr}");
        }
        let again = mixture.recut(&["--experts-last", model, "x.gguf"]).output().unwrap();
        assert_eq!(again.status.code(), Some(1));

        // Twice is as good as once.
        output(&mut mixture.recut(&punch), 0);
        let fill = ["--fill", model, "--copy", "last.gguf"];
        let (text, _) = output(&mut mixture.recut(&fill), 0);
        assert!(text.contains(" put back, of 6.29 MB of experts, in "), "{text}");
        let after: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        assert!(before == after);
        assert_eq!(logits(&mixture.model), logits(&last));
        let (_, stderr) = output(&mut mixture.recut(&fill), 1);
        assert!(stderr.contains("has all its experts"), "{stderr}");
    }
}

#[cfg(unix)]
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    file.metadata().unwrap().blocks() * 512
}

#[cfg(not(unix))]
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn other_weights_are_no_copy() {
    let mixture = Mixture::new(Arch::LlamaMoe, &TinyOptions::default());
    if !can_free(mixture.folder.path()) {
        return;
    }
    let options = TinyOptions { seed: 2, ..TinyOptions::default() };
    tiny::write(&mixture.path("other.gguf"), Arch::LlamaMoe, &options).unwrap();
    let before = fs::read(&mixture.model).unwrap();
    let (_, stderr) =
        output(&mut mixture.recut(&["--punch", "model.gguf", "--copy", "other.gguf"]), 1);
    assert!(stderr.contains("differs from byte") && stderr.contains("help: "), "{stderr}");
    assert!(fs::read(&mixture.model).unwrap() == before);
}

#[test]
#[cfg(target_os = "linux")]
fn models_in_use_are_not_punched() {
    let mixture = Mixture::new(Arch::LlamaMoe, &TinyOptions::default());
    let last = mixture.experts_last();
    let punch = ["--punch", "model.gguf", "--copy", last.to_str().unwrap()];
    let file = fs::OpenOptions::new().read(true).write(true).open(&mixture.model).unwrap();
    if !can_free(mixture.folder.path()) || smol_engine::io::is_used_elsewhere(&file).is_none() {
        return;
    }
    let (_, stderr) = output(&mut mixture.recut(&punch), 1);
    assert!(stderr.contains("is in use by a program"), "{stderr}");
    drop(file);
    output(&mut mixture.recut(&punch), 0);
}
