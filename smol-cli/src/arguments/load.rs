//! Loads a model with a progress bar and Ctrl-C.

use crate::progress;
use smolmaxxing::{CancelToken, LoadMode, Model, Result};
use std::ops::ControlFlow;
use std::path::Path;

/// Loads the model's weights; `cancel` stops it.
pub fn load_model(path: &Path, cancel: &CancelToken) -> Result<Model> {
    let bar = progress::steps("loading", 100);
    let shown = bar.clone();
    let model = Model::builder(path)
        .on_progress(move |fraction| {
            shown.set_position((fraction * 100.0) as u64);
            ControlFlow::Continue(())
        })
        .cancel(cancel)
        .load();
    bar.finish_and_clear();
    model
}

/// Loads a model of which only the vocabulary is used.
pub fn load_vocabulary(path: &Path, cancel: &CancelToken) -> Result<Model> {
    // Mapped weights cost nothing until they are touched.
    Model::builder(path).load_mode(LoadMode::Mmap).repack(false).cancel(cancel).load()
}

/// Bits that a weight takes on average.
pub fn bits_per_weight(model: &Model) -> f64 {
    model.size() as f64 * 8.0 / model.n_params().max(1) as f64
}
