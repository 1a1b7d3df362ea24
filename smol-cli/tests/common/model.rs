//! Tiny models with random weights.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use testkit::tiny::{self, Arch, TinyOptions};

/// Writes a model with SmolLM2's kind of vocabulary and a ChatML template into `folder`.
pub fn tiny_model(folder: &Path) -> PathBuf {
    let options = TinyOptions { byte_level: true, ..TinyOptions::default() };
    let path = folder.join("tiny.gguf");
    tiny::write(&path, Arch::Llama, &options).expect("the model is written");
    path
}

/// A folder with a tiny model in it. Each test file adds how it runs `smol` there.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub model: PathBuf,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = tiny_model(folder.path());
        Self { folder, model }
    }
}
