//! Models whose weights are streamed: they compute what resident ones do, and fail in an orderly way.

mod exact;
mod faults;

use std::path::{Path, PathBuf};

use llama_rs::gguf::TensorType;
use llama_rs::{Batch, Model, ModelBuilder, SeqId, StreamSize, Token, WeightStream};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

fn write(folder: &TempDir, arch: Arch, options: &TinyOptions) -> PathBuf {
    let path = folder.path().join("model.gguf");
    tiny::write(&path, arch, options).unwrap();
    path
}

fn of_type(weights: TensorType) -> TinyOptions {
    let pure = matches!(weights, TensorType::Q2_K | TensorType::TQ2_0 | TensorType::Q1_0);
    TinyOptions { weights, pure, ..TinyOptions::default() }
}

/// All that can be streamed is, in a zone of so many bytes.
fn zone(bytes: u64) -> WeightStream {
    let mut stream = WeightStream::default();
    stream.zone = StreamSize::Bytes(bytes);
    stream
}

/// The least zone, which holds the largest matrix.
fn least(path: &Path, builder: impl Fn(&Path) -> ModelBuilder) -> WeightStream {
    let error = builder(path).weight_stream(zone(1)).load().unwrap_err();
    match *error.kind() {
        llama_rs::ErrorKind::OutOfMemory { needed: Some(needed), available: Some(1) } => {
            zone(needed)
        }
        _ => panic!("{error:?}"),
    }
}

/// Where kernels read plain weights in both, as upstream's own packed form is not made for streamed weights.
fn plain(path: &Path) -> ModelBuilder {
    Model::builder(path).repack(false)
}

/// All logits of a prompt's last token and of some tokens after it.
fn logits(model: &Model, threads: u32, prompt: usize, generated: usize) -> Vec<f32> {
    let cores = llama_rs::machine::Cpu::probe().logical.len() as u32;
    let threads = threads.min(cores);
    // Streamed models compute more at once by default, and where a prompt is cut decides last bits.
    let context = model.context().n_ctx(1024).n_ubatch(512);
    let mut context = context.threads(threads, threads).build().unwrap();
    let mut tokens: Vec<_> = (0..prompt as i32).map(|n| Token(n * 37 % 600)).collect();
    let mut all = Vec::new();
    let mut position = 0;
    for _ in 0..=generated {
        let batch = Batch::sequence(&tokens, position, SeqId(0));
        position += tokens.len() as i32;
        let row = context.decode(&batch).unwrap().last_logits().unwrap().to_vec();
        let sum: f32 = row.iter().map(|logit| logit.abs()).sum();
        tokens = vec![Token((sum * 1000.0) as i32 % 600)];
        all.extend(row);
    }
    all
}
