//! What the tests of all engines that read weights from the file have in common.

use std::path::Path;
use std::time::Duration;

use llama_rs::gguf::TensorType;
use llama_rs::{Batch, CancelToken, ErrorKind, Model, ModelBuilder, SeqId, Token};
use testkit::tiny::TinyOptions;

/// Options of a model whose weights are of a type, the embeddings too where that is told apart.
pub fn of_type(weights: TensorType) -> TinyOptions {
    let pure = matches!(weights, TensorType::Q2_K | TensorType::TQ2_0 | TensorType::Q1_0);
    TinyOptions { weights, pure, ..TinyOptions::default() }
}

/// Where kernels read plain weights in both: upstream's own packed form is made of streamed weights only with a cache, and of
/// paged ones never.
pub fn plain(path: &Path) -> ModelBuilder {
    Model::builder(path).repack(false)
}

/// All logits of a prompt's last token and of some tokens after it.
pub fn logits(model: &Model, threads: u32, prompt: usize, generated: usize) -> Vec<f32> {
    let cores = llama_rs::machine::Cpu::probe().logical.len() as u32;
    let threads = threads.min(cores);
    // Such models compute more at once by default, and where a prompt is cut decides last bits.
    let context = model.context().n_ctx(1024).n_ubatch(512);
    let mut context = context.threads(threads, threads).build().unwrap();
    let mut tokens: Vec<_> = (0..prompt as i32).map(|n| Token(n * 37 % 600)).collect();
    let mut all = Vec::new();
    let mut position = 0;
    for _ in 0..=generated {
        let batch = Batch::sequence(&tokens, position, SeqId(0));
        position += tokens.len() as i32;
        let row = context.decode(&batch).unwrap().last_logits().unwrap().to_vec();
        // Not the best one: a greedy text of random weights repeats itself, and the same experts with it.
        let sum: f32 = row.iter().map(|logit| logit.abs()).sum();
        tokens = vec![Token((sum * 1000.0) as i32 % 600)];
        all.extend(row);
    }
    all
}

/// Decodes one token after the other until that fails, with a file that is cut or replaced after the first one.
pub fn decode_while_the_file_changes(model: &Model, path: &Path, truncate: bool) {
    let mut context = model.context().n_ctx(256).threads(2, 2).build().unwrap();
    let mut step =
        |n: i32| context.decode(&Batch::sequence(&[Token(n * 7 % 500)], n, SeqId(0))).map(drop);
    step(0).unwrap();
    if truncate {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(100_000).unwrap();
    } else {
        let other = path.with_file_name("other");
        std::fs::copy(path, &other).unwrap();
        std::fs::rename(&other, path).unwrap();
    }
    // The identity is checked about once a second.
    std::thread::sleep(Duration::from_millis(1100));
    let error = (1..200).try_for_each(step).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::FileChanged, "{error}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.to_string().contains(name), "{error}");
}

/// Stops the decode of a long prompt; the model must give the expected logits afterwards.
pub fn cancel_a_decode(model: &Model, expected: &[f32]) {
    let cancel = CancelToken::new();
    let mut context = model.context().n_ctx(1024).cancel(&cancel).build().unwrap();
    let tokens: Vec<_> = (0..600).map(|n| Token(n * 37 % 600)).collect();
    cancel.cancel();
    let error = context.decode(&Batch::sequence(&tokens, 0, SeqId(0))).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Cancelled);
    drop(context);
    assert!(logits(model, 1, 20, 5) == expected);
}
