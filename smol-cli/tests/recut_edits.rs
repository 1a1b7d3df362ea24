//! Models rewritten in one pass: from pipes and servers, with other keys, tensors and types.

#![cfg(unix)]

mod common;
#[path = "common/process.rs"]
mod process;
mod server;

use common::{output, smol};
use server::{Answer, Server};
use smol_gguf::{Gguf, Rewriter, TensorType, Value, Writer};
use smolmaxxing::{FileType, Quantize};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testkit::tiny::{self, Arch, TinyOptions};

/// A folder with a tiny model in it.
struct Folder {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Folder {
    fn new(arch: Arch, weights: TensorType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = TinyOptions { weights, ..TinyOptions::default() };
        let path = folder.path().join("model.gguf");
        tiny::write(&path, arch, &options).unwrap();
        // As this library writes it, so that copies are the same byte for byte.
        let source = Gguf::from_bytes(fs::read(&path).unwrap()).unwrap();
        let bytes = Rewriter::new(&source).write(Vec::new()).unwrap();
        fs::write(&path, &bytes).unwrap();
        Self { folder, bytes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn recut(&self, args: &[&str], code: i32) -> (String, String) {
        let mut command = smol(self.folder.path());
        output(command.current_dir(self.folder.path()).arg("recut").args(args), code)
    }

    fn open(&self, name: &str) -> Gguf {
        Gguf::open(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Starts `smol recut` with a pipe into it.
    fn piped(&self, args: &[&str]) -> std::process::Child {
        Command::new(env!("CARGO_BIN_EXE_smol"))
            .arg("recut")
            .args(args)
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

#[test]
fn pipes_give_what_files_give() {
    let folder = Folder::new(Arch::LlamaMoe, TensorType::F16);
    folder.recut(&["--experts-last", "model.gguf", "file.gguf"], 0);
    let mut child = folder.piped(&["--experts-last", "-", "pipe.gguf"]);
    // Closed when it has taken all it wants.
    child.stdin.take().unwrap().write_all(&folder.bytes).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let same = fs::read(folder.path("pipe.gguf")).unwrap();
    assert!(same == fs::read(folder.path("file.gguf")).unwrap());
}

#[test]
fn pipes_that_end_early_or_are_something_else_leave_nothing() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    let half = &folder.bytes[..folder.bytes.len() / 2];
    for (input, words) in [
        (half, "truncated: the input ended at byte"),
        (&folder.bytes[..10], "truncated: the file ends inside"),
        (&b"PK\x03\x04 of another kind"[..], "standard input: not a GGUF file"),
        (&[], "standard input: the file is empty"),
    ] {
        let mut child = folder.piped(&["--merge", "-", "new.gguf"]);
        // It may have seen enough before.
        let _ = child.stdin.take().unwrap().write_all(input);
        let done = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
        assert_eq!(folder.names(), ["model.gguf"]);
    }
}

/// While nothing comes, too, be it an answer or bytes.
#[test]
#[cfg(target_os = "linux")]
fn waiting_for_a_server_is_broken_off() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    // One that takes connections and says nothing, one that says nothing after a while.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stalling = Server::start(folder.bytes.clone(), |_| Answer::Stall(1000));
    let silent = format!("http://{}/model.gguf", silent.local_addr().unwrap());
    for url in [silent, stalling.url()] {
        let child = folder.piped(&["--merge", &url, "new.gguf"]);
        process::let_wait(&child);
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let done = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(130), "{url}: {stderr}");
        assert!(stderr.contains("stopped; nothing was written"), "{stderr}");
        assert_eq!(folder.names(), ["model.gguf"]);
    }
}

/// While nothing comes, too.
#[test]
#[cfg(target_os = "linux")]
fn waiting_for_a_pipe_is_broken_off() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    for start in [0, 1000, folder.bytes.len() / 2] {
        let mut child = folder.piped(&["--merge", "-", "new.gguf"]);
        let mut input = child.stdin.take().unwrap();
        input.write_all(&folder.bytes[..start]).unwrap();
        process::let_wait(&child);
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let done = child.wait_with_output().unwrap();
        drop(input);
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(130), "{start}: {stderr}");
        assert!(stderr.contains("stopped; nothing was written"), "{stderr}");
        assert_eq!(folder.names(), ["model.gguf"]);
    }
}

#[test]
fn servers_give_what_files_give() {
    let folder = Folder::new(Arch::LlamaMoe, TensorType::F16);
    folder.recut(&["--experts-last", "model.gguf", "file.gguf"], 0);
    let expected = fs::read(folder.path("file.gguf")).unwrap();
    let third = folder.bytes.len() / 3;
    type Case = (&'static str, fn(usize, usize) -> Answer);
    let cases: [Case; 3] = [
        ("properly", |_, _| Answer::All),
        (
            "with breaks",
            |request, third| if request < 3 { Answer::Cut(third) } else { Answer::All },
        ),
        ("without ranges", |request, third| match request {
            0 => Answer::Cut(third),
            _ => Answer::IgnoreRange,
        }),
    ];
    for (case, answer) in cases {
        let server = Server::start(folder.bytes.clone(), move |request| answer(request, third));
        folder.recut(&["--experts-last", "--force", &server.url(), "new.gguf"], 0);
        assert!(fs::read(folder.path("new.gguf")).unwrap() == expected, "{case}");
        fs::remove_file(folder.path("new.gguf")).unwrap();
    }
}

#[test]
fn ranges_pass_by_what_is_left_out() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    for name in ["a", "large.weight", "b"] {
        let rows = if name.starts_with("large") { 4000 } else { 10 };
        writer.tensor(name, &[1000, rows], TensorType::F32).unwrap();
    }
    let mut data = writer.start(Vec::new()).unwrap();
    for tensor in writer.tensors() {
        data.write_tensor(tensor.name(), &vec![7; tensor.n_bytes() as usize]).unwrap();
    }
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    let server = Server::start(data.finish().unwrap(), |_| Answer::All);
    folder.recut(&["--drop", "large.*", &server.url(), "new.gguf"], 0);
    let new = folder.open("new.gguf");
    let names: Vec<_> = new.tensors().iter().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["a", "b"]);
    let last = &new.tensors()[1];
    assert!(new.data(last).unwrap().iter().all(|&byte| byte == 7));
    let requests = server.requests();
    assert!(matches!(requests[..], [None, Some(from)] if from > 16_000_000), "{requests:?}");
}

#[test]
fn servers_that_fail_leave_nothing() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    type Case = (&'static str, fn(usize) -> Answer);
    let cases: [Case; 2] =
        [("HTTP status 404", |_| Answer::Status(404)), ("/model.gguf: ", |_| Answer::Cut(0))];
    for (words, answer) in cases {
        let server = Server::start(folder.bytes.clone(), answer);
        let (_, stderr) = folder.recut(&["--merge", &server.url(), "new.gguf"], 1);
        assert!(stderr.contains(words), "{stderr}");
        assert_eq!(folder.names(), ["model.gguf"]);
    }
}

/// The same bytes as from llama.cpp's own quantizer, for all matrices that it converts to the type.
#[test]
fn matrices_become_what_the_quantizer_makes_of_them() {
    let folder = Folder::new(Arch::LlamaMoe, TensorType::F16);
    for (ty, mix) in [
        (TensorType::Q4_0, FileType::Q4_0),
        (TensorType::Q8_0, FileType::Q8_0),
        (TensorType::Q4_K, FileType::Q4KS),
        (TensorType::BF16, FileType::Bf16),
    ] {
        let reference = folder.path("reference.gguf");
        Quantize::new(mix)
            .pure(true)
            .threads(1)
            .run(folder.path("model.gguf"), &reference)
            .unwrap();
        let change = format!("*={ty}");
        let args = ["--requantize", &change, "--force", "--json", "model.gguf", "new.gguf"];
        let report: serde_json::Value = serde_json::from_str(&folder.recut(&args, 0).0).unwrap();
        let (reference, new) = (Gguf::open(&reference).unwrap(), folder.open("new.gguf"));
        let mut converted = 0;
        for expected in reference.tensors() {
            let tensor = new.tensor(expected.name()).unwrap();
            assert_eq!(tensor.ty(), expected.ty(), "{} {ty}", tensor.name());
            let data = new.data(tensor).unwrap();
            assert!(data == reference.data(expected).unwrap(), "{} {ty}", tensor.name());
            converted += u64::from(expected.ty() == ty);
        }
        assert!(converted > 10, "{ty}: {converted}");
        assert_eq!(report["requantized"]["tensors"], converted);
        assert_eq!(new.get("general.file_type"), reference.get("general.file_type"), "{ty}");
        // What is converted while it comes through a pipe is the same.
        let mut child = folder.piped(&["--requantize", &change, "-", "piped.gguf", "--force"]);
        child.stdin.take().unwrap().write_all(&folder.bytes).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
        assert!(
            fs::read(folder.path("piped.gguf")).unwrap()
                == fs::read(folder.path("new.gguf")).unwrap()
        );
    }
}

#[test]
fn the_file_type_is_that_of_most_bytes_unless_it_is_said() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    for (args, ty) in [
        (&["*=q4_0"][..], Some(Value::U32(2))),
        (&["*.attn_q.weight=q4_0"], Some(Value::U32(1))),
        (&["*=q4_0", "--set", "general.file_type=15"], Some(Value::U32(15))),
        (&["*=q4_0", "--unset", "general.file_type"], None),
    ] {
        let files = ["--force", "model.gguf", "new.gguf"];
        folder.recut(&[&["--requantize"], args, &files].concat(), 0);
        assert_eq!(folder.open("new.gguf").get("general.file_type"), ty.as_ref(), "{args:?}");
    }
}

#[test]
fn importance_changes_what_is_kept() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    let name = "blk.0.ffn_up.weight";
    let columns = folder.open("model.gguf").tensor(name).unwrap().shape()[0];
    let mut imatrix = Writer::new();
    imatrix.tensor(format!("{name}.in_sum2"), &[columns], TensorType::F32).unwrap();
    imatrix.tensor(format!("{name}.counts"), &[1], TensorType::F32).unwrap();
    let sums: Vec<u8> = (0..columns).flat_map(|i| (i as f32 * 0.25).to_le_bytes()).collect();
    imatrix
        .write_file(folder.path("imatrix.gguf"), |data| {
            data.write_tensor(&format!("{name}.in_sum2"), &sums)?;
            data.write_tensor(&format!("{name}.counts"), &2f32.to_le_bytes())
        })
        .unwrap();
    let change = ["--requantize", "blk.0.ffn_*.weight=q4_0", "model.gguf"];
    folder.recut(&[&change[..], &["plain.gguf"]].concat(), 0);
    folder.recut(&[&change[..], &["weighted.gguf", "--imatrix", "imatrix.gguf"]].concat(), 0);
    let (plain, weighted) = (folder.open("plain.gguf"), folder.open("weighted.gguf"));
    for tensor in plain.tensors() {
        let same = plain.data(tensor).unwrap()
            == weighted.data(weighted.tensor(tensor.name()).unwrap()).unwrap();
        assert_eq!(same, tensor.name() != name, "{}", tensor.name());
    }
    assert_eq!(weighted.get_str("quantize.imatrix.file"), Some("imatrix.gguf"));
    let wrong = [&change[..], &["x.gguf", "--imatrix", "model.gguf"]].concat();
    assert!(folder.recut(&wrong, 1).1.contains("no importance matrix"));
}

#[test]
fn keys_and_tensors_change() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    let mut extra = Writer::new();
    extra.tensor("extra.weight", &[32, 2], TensorType::F32).unwrap();
    extra
        .write_file(folder.path("extra.gguf"), |data| data.write_tensor("extra.weight", &[1; 256]))
        .unwrap();
    fs::write(folder.path("template.txt"), "{{ messages }}").unwrap();
    let args = [
        "--set",
        "general.name=new",
        "--set",
        "llama.context_length=77",
        "--set",
        "tokenizer.chat_template=@template.txt",
        "--unset",
        "tokenizer.ggml.scores",
        "--drop",
        "blk.1.*",
        "--add-tensors",
        "extra.gguf",
        "model.gguf",
        "new.gguf",
    ];
    let (text, stderr) = folder.recut(&args, 0);
    assert!(text.starts_with("new.gguf: "), "{text}");
    assert_eq!(stderr, "");
    let (old, new) = (folder.open("model.gguf"), folder.open("new.gguf"));
    assert_eq!(new.get_str("general.name"), Some("new"));
    assert_eq!(new.get("llama.context_length"), Some(&Value::U32(77)));
    assert_eq!(new.get_str("tokenizer.chat_template"), Some("{{ messages }}"));
    assert!(!new.contains("tokenizer.ggml.scores"));
    let left = old.tensors().iter().filter(|tensor| !tensor.name().starts_with("blk.1."));
    let names: Vec<_> = left.map(|tensor| tensor.name()).chain(["extra.weight"]).collect();
    assert!(names.len() < old.tensors().len());
    assert_eq!(new.tensors().iter().map(|tensor| tensor.name()).collect::<Vec<_>>(), names);
    assert_eq!(*new.data(new.tensors().last().unwrap()).unwrap(), [1; 256]);
    // What can't be run afterwards is told.
    let (_, stderr) = folder.recut(&["--unset", "*.block_count", "model.gguf", "bad.gguf"], 0);
    assert!(
        stderr.contains("the new model can't be run") && stderr.contains("block_count"),
        "{stderr}"
    );
}

#[test]
fn splits_come_back_byte_for_byte() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    let (text, _) = folder.recut(&["--split", "1MB", "model.gguf", "part.gguf"], 0);
    let mut parts = folder.names();
    parts.retain(|name| name.starts_with("part-"));
    assert!(parts.len() > 2 && parts[0].starts_with("part-00001-of-0000"), "{parts:?}");
    assert!(text.contains(&format!("in {} files", parts.len())), "{text}");
    let (_, stderr) = folder.recut(&["--split", "1MB", "model.gguf", "part.gguf"], 1);
    assert!(stderr.contains("--force replaces it"), "{stderr}");
    folder.recut(&["--merge", &parts[1], "whole.gguf"], 0);
    assert!(fs::read(folder.path("whole.gguf")).unwrap() == folder.bytes);
    output(
        smol(folder.folder.path())
            .current_dir(folder.folder.path())
            .args(["inspect", "--check", &parts[0]]),
        0,
    );
    // A single one of them doesn't come through a pipe.
    let mut child = folder.piped(&["--merge", "-", "new.gguf"]);
    let _ = child.stdin.take().unwrap().write_all(&fs::read(folder.path(&parts[0])).unwrap());
    let done = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert!(stderr.contains("doesn't come through one pipe"), "{stderr}");
}

#[test]
fn wrong_edits_are_refused_with_advice() {
    let folder = Folder::new(Arch::Llama, TensorType::F16);
    for (args, code, words) in [
        (&["--drop", "nothing.*"][..], 1, "--drop nothing.*: no tensor has such a name"),
        (&["--unset", "nothing"], 1, "no metadata key has such a name"),
        (&["--set", "novalue"], 2, "KEY=VALUE"),
        (&["--set", "llama.context_length=many"], 1, "`many` is no u32"),
        (&["--requantize", "*=q9_9"], 2, "there is no type `q9_9`"),
        (&["--requantize", "*"], 2, "PATTERN=TYPE"),
        (&["--requantize", "output_norm*=q8_0"], 1, "no matrix has such a name"),
        (&["--requantize", "*=iq2_xxs"], 2, "without an importance matrix"),
        (&["--requantize", "*=i32"], 2, "can't become i32"),
        (&["--imatrix", "model.gguf"], 2, "--requantize"),
        (&["--add-tensors", "model.gguf"], 1, "leave out the old one with --drop"),
        (&["--add-tensors", "no.gguf"], 1, "there is no file no.gguf"),
        (&["--split", "900"], 2, "has no unit"),
    ] {
        let (stdout, stderr) = folder.recut(&[args, &["model.gguf", "new.gguf"]].concat(), code);
        assert_eq!(stdout, "");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        assert_eq!(folder.names(), ["model.gguf"], "{args:?}");
    }
}
