//! This library's part: greedy tokens and all logits of tiny models, as text.

use anyhow::{Context as _, Result};
use smolmaxxing::{Batch, Model, SeqId, Token};
use std::ffi::CStr;
use testkit::tiny::{self, Arch, TinyOptions};

/// The version that the ggml inside this library says it is.
pub fn version() -> String {
    // SAFETY: ggml.h: returns a string literal.
    let text = unsafe { CStr::from_ptr(smolmaxxing::sys::ggml_version()) };
    text.to_string_lossy().into_owned()
}

/// Runs a dense model, one with experts and one with a recurrent state.
pub fn run() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut text = format!("ggml {}\n", version());
    for arch in [Arch::Llama, Arch::LlamaMoe, Arch::Qwen35] {
        let file = folder.path().join(arch.name()).with_extension("gguf");
        tiny::write(&file, arch, &TinyOptions::default())?;
        text.push_str(&format!("{}: {}\n", arch.name(), greedy(&Model::load(&file)?)?));
    }
    Ok(text)
}

fn greedy(model: &Model) -> Result<String> {
    let mut context = model.context().n_ctx(64).threads(2, 2).build()?;
    let tokens = model.vocab().tokenize("The capital of France is", true)?;
    let mut batch = Batch::sequence(&tokens, 0, SeqId(0));
    let mut text = String::new();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for position in (tokens.len() as i32..).take(8) {
        let outputs = context.decode(&batch)?;
        let logits = outputs.last_logits().context("no logits")?;
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = token;
            }
            hash = (hash ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
        text.push_str(&format!("{best} "));
        batch = Batch::sequence(&[Token(best as i32)], position, SeqId(0));
    }
    Ok(format!("{text}{hash:016x}"))
}
