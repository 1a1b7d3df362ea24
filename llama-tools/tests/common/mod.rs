//! What the tests share: running a tool on a tiny model.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::tiny::{self, Arch, TinyOptions};

/// Layers of [`Fixture::model`].
pub const LAYERS: u64 = 3;

/// A folder with a tiny model of SmolLM2's kind, a text, and whatever a test puts there.
pub struct Fixture {
    pub folder: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options =
            TinyOptions { byte_level: true, layers: Some(LAYERS as u32), ..TinyOptions::default() };
        tiny::write(&folder.path().join("tiny.gguf"), Arch::Llama, &options).unwrap();
        let text = "It was the best of times, it was the worst of times. ".repeat(40);
        std::fs::write(folder.path().join("text.txt"), text).unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.path(name), text).unwrap();
        self
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn report(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    /// A tool that runs in the folder, without configuration of the user's own.
    pub fn command(&self, tool: &str, args: &[&str]) -> Command {
        let mut command = start(path_of(tool));
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_clear().env("HOME", self.folder.path());
        command
    }

    /// Runs a tool, which must exit with `code`, and returns standard output and error.
    pub fn run(&self, tool: &str, args: &[&str], code: i32) -> (String, String) {
        let output = self.command(tool, args).output().unwrap();
        check(&output, code)
    }

    /// Greedy text after a prompt; the tool prints the prompt too.
    pub fn complete(&self, more: &[&str]) -> String {
        self.run("llama-completion", &[COMPLETE, more].concat(), 0).0
    }
}

/// Eight tokens, greedily.
pub const COMPLETE: &[&str] = &[
    "-m",
    "tiny.gguf",
    "-p",
    "Once upon a time",
    "-n",
    "8",
    "--temp",
    "0",
    "-t",
    "1",
    "-no-cnv",
    "--no-warmup",
    "--ignore-eos",
];

pub fn check(output: &Output, code: i32) -> (String, String) {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "stdout: {stdout}\nstderr: {stderr}");
    (stdout, stderr)
}

/// As cargo starts a program of this target: through the runner that the environment names, an emulator for example.
fn start(program: &Path) -> Command {
    let target = llama_rs::build_info().target.to_uppercase().replace('-', "_");
    let runner = std::env::var(format!("CARGO_TARGET_{target}_RUNNER")).unwrap_or_default();
    let mut words = runner.split_whitespace();
    match words.next() {
        None => Command::new(program),
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(program);
            command
        }
    }
}

fn path_of(tool: &str) -> &'static Path {
    Path::new(match tool {
        "llama-bench" => env!("CARGO_BIN_EXE_llama-bench"),
        "llama-perplexity" => env!("CARGO_BIN_EXE_llama-perplexity"),
        "llama-quantize" => env!("CARGO_BIN_EXE_llama-quantize"),
        "llama-completion" => env!("CARGO_BIN_EXE_llama-completion"),
        other => panic!("no tool {other}"),
    })
}
