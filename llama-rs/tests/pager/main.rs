//! Mixtures whose experts are paged: they compute what resident ones do, and fail in an orderly way.

mod exact;
mod faults;

use std::path::{Path, PathBuf};

use llama_rs::gguf::TensorType;
use llama_rs::{Batch, ExpertPager, Model, ModelBuilder, PoolBudget, SeqId, Token};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

/// The architectures with routed experts.
fn mixtures() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|arch| arch.has_experts())
}

fn write(folder: &TempDir, arch: Arch, weights: TensorType) -> PathBuf {
    let path = folder.path().join("mixture.gguf");
    let pure = matches!(weights, TensorType::Q2_K | TensorType::TQ2_0 | TensorType::Q1_0);
    let options = TinyOptions { weights, pure, experts: 16, ..TinyOptions::default() };
    tiny::write(&path, arch, &options).unwrap();
    path
}

fn slots(slots: u32) -> ExpertPager {
    let mut pager = ExpertPager::default();
    pager.budget = PoolBudget::Slots(slots);
    pager
}

/// Where kernels read plain weights in both, as upstream's own packed form is not made for paged experts.
fn plain(path: &Path) -> ModelBuilder {
    Model::builder(path).repack(false)
}

/// All logits of a prompt's last token and of some tokens after it.
fn logits(model: &Model, threads: u32, prompt: usize, generated: usize) -> Vec<f32> {
    let cores = llama_rs::machine::Cpu::probe().logical.len() as u32;
    let threads = threads.min(cores);
    // Paged models compute more at once by default, and where a prompt is cut decides last bits.
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
