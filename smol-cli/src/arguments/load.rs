//! Loads a model with a progress bar and Ctrl-C.

use super::layouts::layout_line;
use crate::failure::notice;
use crate::progress;
use crate::units::bytes;
use smol_engine::machine::Memory;
use smolmaxxing::{CancelToken, Error, ErrorKind, LoadMode, Model, ModelBuilder, Result};
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::path::Path;

/// Memory below which not even a file's header is read: the process would end where an allocation
/// fails, without a word.
const MIN_MEMORY: u64 = 24 << 20;

/// Loads the model's weights as `set_up` says, and tells a person how they are packed; `cancel` stops it.
pub fn load_model(
    path: &Path,
    cancel: &CancelToken,
    set_up: impl FnOnce(ModelBuilder) -> ModelBuilder,
) -> Result<Model> {
    check_memory(path)?;
    let bar = progress::steps("loading", 100);
    let shown = bar.clone();
    let model = set_up(Model::builder(path))
        .on_progress(move |fraction| {
            shown.set_position((fraction * 100.0) as u64);
            ControlFlow::Continue(())
        })
        .cancel(cancel)
        .load();
    bar.finish_and_clear();
    if let Ok(model) = &model
        && io::stderr().is_terminal()
    {
        notice(layout_line(&model.layout_summary()));
    }
    model
}

/// Loads a model of which only the vocabulary is used.
pub fn load_vocabulary(path: &Path, cancel: &CancelToken) -> Result<Model> {
    check_memory(path)?;
    // Mapped weights cost nothing until they are touched.
    Model::builder(path).load_mode(LoadMode::Mmap).repack(false).cancel(cancel).load()
}

fn check_memory(path: &Path) -> Result<()> {
    let available = Memory::probe().usable();
    if available.is_none_or(|available| available >= MIN_MEMORY) {
        return Ok(());
    }
    let message = format!(
        "only {} of memory are left to this process, too little for any model; raise its limit",
        bytes(available.unwrap_or(0))
    );
    let kind = ErrorKind::OutOfMemory { needed: None, available };
    Err(Error::new(kind, message).with_path(path))
}

/// Bits that a weight takes on average.
pub fn bits_per_weight(model: &Model) -> f64 {
    model.size() as f64 * 8.0 / model.n_params().max(1) as f64
}
