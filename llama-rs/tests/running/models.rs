//! The models that the tests share, and small helpers.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use llama_rs::{Context, Model, SeqId, Token};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

/// Writes a tiny model once for all tests and returns its path.
pub fn tiny_file(arch: Arch) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static WRITING: Mutex<()> = Mutex::new(());
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path();
    let path = folder.join(arch.name()).with_extension("gguf");
    let _one_at_a_time = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    if !path.exists() {
        tiny::write(&path, arch, &TinyOptions::default()).unwrap();
    }
    path
}

pub fn tiny(arch: Arch) -> Model {
    Model::load(tiny_file(arch)).unwrap()
}

/// A context of 512 tokens on one thread.
pub fn small_context(model: &Model) -> Context {
    model.context().n_ctx(512).threads(1, 1).build().unwrap()
}

/// Tokens of ordinary text, the same ones each time.
pub fn some_tokens(count: usize) -> Vec<Token> {
    (0..count).map(|n| Token(300 + (n * 37 % 331) as i32)).collect()
}

/// The logits after the tokens, in a fresh context.
pub fn logits_after(model: &Model, tokens: &[Token]) -> Vec<f32> {
    let mut context = small_context(model);
    last_logits(&mut context, SeqId::FIRST, tokens)
}

pub fn last_logits(context: &mut Context, seq: SeqId, tokens: &[Token]) -> Vec<f32> {
    context.prefill(seq, tokens).unwrap().last_logits().unwrap().to_vec()
}

/// Checks that two rows are the same up to the rounding that another order of additions makes.
#[track_caller]
pub fn assert_close(one: &[f32], other: &[f32]) {
    assert_within(one, other, 0.02);
}

/// Checks that two rows differ by at most this share of the largest value, as with coarser numbers somewhere.
#[track_caller]
pub fn assert_within(one: &[f32], other: &[f32], share: f32) {
    assert_eq!(one.len(), other.len());
    let scale = one.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
    let worst = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= scale * share, "rows differ by {worst} at a scale of {scale}");
    assert!(one.iter().all(|x| x.is_finite()));
}

pub fn copy_to(folder: &Path, file: &Path) -> PathBuf {
    let copy = folder.join("copy.gguf");
    std::fs::copy(file, &copy).unwrap();
    copy
}
