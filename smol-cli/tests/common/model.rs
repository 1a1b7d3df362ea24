//! Tiny models with random weights.

use std::path::{Path, PathBuf};
use testkit::tiny::{self, Arch, TinyOptions};

/// Writes a model with SmolLM2's kind of vocabulary and a ChatML template into `folder`.
pub fn tiny_model(folder: &Path) -> PathBuf {
    let options = TinyOptions { byte_level: true, ..TinyOptions::default() };
    let path = folder.join("tiny.gguf");
    tiny::write(&path, Arch::Llama, &options).expect("the model is written");
    path
}
