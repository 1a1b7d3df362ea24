//! Vocabulary heads without the rows of tokens that no text needs.

mod common;

use common::{output, smol};
use serde_json::Value;
use smol_gguf::Gguf;
use std::fs;
use std::path::{Path, PathBuf};
use testkit::tiny::{self, Arch, TinyOptions};

/// A folder with a tiny model and a few texts.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(arch: Arch) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        tiny::write(&path.join("model.gguf"), arch, &TinyOptions::default()).unwrap();
        fs::create_dir_all(path.join("texts/more")).unwrap();
        let line = "The house by the river has two open windows, and nobody lives there.\n";
        fs::write(path.join("texts/a.txt"), line.repeat(40)).unwrap();
        fs::write(path.join("texts/more/b.txt"), "The river is wide.\n".repeat(40)).unwrap();
        fs::write(path.join("texts/c.bin"), [0xff, 0xfe, 0x00]).unwrap();
        fs::write(path.join("other.txt"), "Zebras quarrel about xylophones.\n".repeat(60)).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn smol(&self, args: &[&str], code: i32) -> (String, String) {
        output(smol(self.0.path()).current_dir(self.0.path()).args(args), code)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.smol(args, 0).0).unwrap()
    }
}

fn rows(path: &Path) -> u64 {
    Gguf::open(path).unwrap().tensor("output.weight").unwrap().n_rows()
}

#[test]
fn selected_tokens_become_the_head() {
    for (arch, tied) in [(Arch::Llama, true), (Arch::Qwen3, false)] {
        let folder = Folder::new(arch);
        let select = ["vocab", "select", "-m", "model.gguf", "--corpus", "texts", "--keep", "640"];
        let report = folder
            .json(&[&select[..], &["--held-out", "other.txt", "-o", "ids.txt", "--json"]].concat());
        assert_eq!(report["kept"], 640);
        assert!(report["required"].as_u64().unwrap() >= 256, "{report}");
        let texts = report["texts"].as_array().unwrap();
        assert_eq!(texts[0]["outside_tokens"], 0, "{report}");
        assert_eq!(texts[1]["held_out"], true);
        assert!(texts[1]["tokens"].as_u64().unwrap() > 60);

        let recut = ["recut", "model.gguf"];
        let json = folder
            .json(&[&recut[..], &["pruned.gguf", "--head-ids", "ids.txt", "--json"]].concat());
        assert_eq!(json["head"]["rows"], 640);
        assert_eq!(json["head"]["rows_before"], 1024);
        assert_eq!(
            json["head"]["was_tied"],
            Gguf::open(folder.path("model.gguf")).unwrap().tensor("output.weight").is_none()
        );
        assert_eq!(rows(&folder.path("pruned.gguf")), 640, "{tied}");
        // In one step, with the same result.
        let args = ["again.gguf", "--head-from", "texts", "--keep", "640"];
        let (text, _) = folder.smol(&[&recut[..], &args].concat(), 0);
        assert!(text.contains("head: 640 of 1,024 rows"), "{text}");
        let same = fs::read(folder.path("pruned.gguf")).unwrap();
        assert!(same == fs::read(folder.path("again.gguf")).unwrap());

        let ids = fs::read_to_string(folder.path("ids.txt")).unwrap();
        let kept: Vec<&str> = ids.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(kept.len(), 640);
        assert_eq!(folder.smol(&select, 0).0, ids);
        let run = folder.json(&[
            "run",
            "-m",
            "pruned.gguf",
            "-p",
            "The house",
            "-n",
            "12",
            "-t",
            "1",
            "--temp",
            "0",
            "--json",
        ]);
        assert!(!run["text"].as_str().unwrap().is_empty(), "{run}");
        folder.smol(&["inspect", "pruned.gguf", "--check"], 0);
        let perplexity = folder.json(&[
            "perplexity",
            "-m",
            "pruned.gguf",
            "-f",
            "other.txt",
            "-c",
            "32",
            "--chunks",
            "4",
            "-t",
            "1",
            "--json",
        ]);
        let (scored, outside) = (&perplexity["scored_tokens"], &perplexity["outside_tokens"]);
        assert_eq!(scored.as_u64().unwrap() + outside.as_u64().unwrap(), 4 * 15, "{perplexity}");
    }
}

#[test]
fn wrong_selections_are_refused() {
    let folder = Folder::new(Arch::Qwen3);
    fs::write(folder.path("bad.txt"), "1\nx\n").unwrap();
    fs::write(folder.path("far.txt"), "1\n5000\n").unwrap();
    fs::create_dir(folder.path("empty")).unwrap();
    fs::write(folder.path("empty.txt"), "").unwrap();
    fs::copy(folder.path("model.gguf"), folder.path("copy.gguf")).unwrap();
    let select = ["vocab", "select", "-m", "model.gguf", "--keep", "700", "--corpus"];
    let recut = ["recut", "model.gguf", "out.gguf"];
    for (args, code, message) in [
        ([&select[..], &["no"]].concat(), 1, "cannot read no"),
        ([&select[..], &["empty"]].concat(), 1, "there are no files in empty"),
        ([&select[..], &["texts/c.bin"]].concat(), 1, "is not UTF-8 text"),
        ([&select[..], &["texts", "--keep", "3"]].concat(), 2, "cannot be used multiple times"),
        ([&select[..], &["empty.txt"]].concat(), 1, "there is no text in empty.txt"),
        ([&select[..], &["texts", "-o", "model.gguf"]].concat(), 2, "is the input itself"),
        (
            [&select[..], &["texts", "-o", "copy.gguf"]].concat(),
            2,
            "is a model, which would be lost",
        ),
        ([&select[..], &["other.txt", "-o", "./other.txt"]].concat(), 2, "is the input itself"),
        (
            vec!["vocab", "select", "-m", "model.gguf", "--keep", "-1", "--corpus", "texts"],
            2,
            "invalid value '-1' for '--keep <N>'",
        ),
        (
            vec!["vocab", "select", "-m", "model.gguf", "--keep", "3", "--corpus", "texts"],
            2,
            "3 tokens cannot be kept",
        ),
        (
            vec!["vocab", "select", "-m", "model.gguf", "--keep", "1025", "--corpus", "texts"],
            2,
            "1025 tokens cannot be kept",
        ),
        ([&recut[..], &["--head-ids", "bad.txt"]].concat(), 1, "line 2 is no token id: x"),
        ([&recut[..], &["--head-ids", "far.txt"]].concat(), 1, "not those of this model"),
        ([&recut[..], &["--head-from", "texts"]].concat(), 2, "--keep <N>"),
        (
            [&recut[..], &["--head-from", "texts", "--keep", "1025"]].concat(),
            2,
            "--keep 1025: the head has 1024 rows",
        ),
    ] {
        let (_, error) = folder.smol(&args, code);
        assert!(error.contains(message), "{args:?}: {error}");
        assert!(!folder.path("out.gguf").exists());
    }
}
