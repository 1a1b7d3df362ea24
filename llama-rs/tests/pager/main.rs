//! Mixtures whose experts are paged: they compute what resident ones do, and fail in an orderly way.

#[path = "../common/engines.rs"]
mod engines;
mod exact;
mod faults;

use std::path::PathBuf;

use engines::{cancel_a_decode, decode_while_the_file_changes, logits, of_type, plain};
use llama_rs::gguf::TensorType;
use llama_rs::{Batch, ExpertPager, Model, PoolBudget, SeqId, Token};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

/// The architectures with routed experts.
fn mixtures() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|arch| arch.has_experts())
}

fn write(folder: &TempDir, arch: Arch, weights: TensorType) -> PathBuf {
    let path = folder.path().join("mixture.gguf");
    let options = TinyOptions { experts: 16, ..of_type(weights) };
    tiny::write(&path, arch, &options).unwrap();
    path
}

fn slots(slots: u32) -> ExpertPager {
    let mut pager = ExpertPager::default();
    pager.budget = PoolBudget::Slots(slots);
    pager
}
