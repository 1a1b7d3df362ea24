//! Loads a model with a progress bar and Ctrl-C.

use super::layouts::layout_line;
use crate::failure::notice;
use crate::progress;
use smolmaxxing::{CancelToken, LoadMode, Model, ModelBuilder, PackCacheStatistics, Result};
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::path::Path;

/// Loads the model's weights as `set_up` says, and tells a person how they are packed; `cancel` stops it.
pub fn load_model(
    path: &Path,
    cancel: &CancelToken,
    set_up: impl FnOnce(ModelBuilder) -> ModelBuilder,
) -> Result<Model> {
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
    let cache = model.as_ref().ok().and_then(Model::pack_cache_statistics);
    cache.into_iter().flat_map(not_kept).for_each(notice);
    model
}

/// Why packed weights that were to be kept are not: the next load will take as long as this one.
fn not_kept(cache: &PackCacheStatistics) -> impl Iterator<Item = String> {
    [Some(cache), cache.experts.as_deref(), cache.streamed.as_deref()]
        .into_iter()
        .flatten()
        .filter_map(|cache| {
            let reason = cache.note.as_deref()?.strip_prefix("not kept: ")?;
            Some(format!("packed weights are not kept in {}: {reason}", cache.file))
        })
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
