//! A loaded model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smol_engine::expert::PagerStatistics;
use smol_engine::stream::StreamStatistics;
use smol_gguf::{Metadata, Value};

use crate::context_builder::ContextBuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::mapping::MappingGuard;
use crate::ffi::model::RawModel;
use crate::files::FileState;
use crate::guard::Guard;
use crate::layouts::{LayoutSummary, WeightLayout};
use crate::model_builder::ModelBuilder;
use crate::pack_cache::{CachedWeights, PackCacheStatistics};
use crate::paging::PagedModel;
use crate::streaming::StreamedModel;
use crate::vocab::Vocab;

/// A language model in memory: its weights and vocabulary.
///
/// Clones share it, in any number of threads; it is freed with the last clone, context and vocabulary.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// let model = llama_rs::Model::load("model.gguf")?;
/// println!("{}: {} layers", model.description(), model.n_layer());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

/// A loaded model and what belongs to it. Fields are dropped in this order.
pub(crate) struct Inner {
    /// Guards the files' mappings, if weights are read from them while the model runs.
    pub(crate) mapping: Option<Arc<MappingGuard>>,
    pub(crate) raw: RawModel,
    pub(crate) path: PathBuf,
    pub(crate) metadata: Metadata,
    pub(crate) n_tensors: usize,
    /// Tokens that contexts compute at once, unless another number is asked for.
    pub(crate) n_ubatch: u32,
    pub(crate) layouts: Vec<WeightLayout>,
    /// The pager of its experts; after `raw`, whose tensors point to it.
    pub(crate) paged: Option<PagedModel>,
    /// Its streamed weights; after `raw` for the same reason.
    pub(crate) streamed: Option<StreamedModel>,
    /// Packed weights that are mapped; after `raw`, whose tensors point to them.
    pub(crate) cached: Option<CachedWeights>,
    /// Watches memory, where the model has some to give back.
    pub(crate) guard: Option<Guard>,
    pub(crate) files: Vec<FileState>,
    pub(crate) fingerprint: u128,
    #[cfg(feature = "json-schema")]
    pub(crate) schema_vocabulary: std::sync::OnceLock<crate::grammar::json_schema::Vocabulary>,
}

impl Model {
    /// Starts to set up loading of a model file; any shard of a split model will do.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(path.as_ref())
    }

    /// Loads a model file with the default settings.
    ///
    /// # Errors
    /// As [`ModelBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).load()
    }

    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn raw(&self) -> &RawModel {
        &self.inner.raw
    }

    /// The vocabulary in the form that JSON schemas work on, once it has been needed.
    #[cfg(feature = "json-schema")]
    pub(crate) fn schema_vocabulary(
        &self,
    ) -> &std::sync::OnceLock<crate::grammar::json_schema::Vocabulary> {
        &self.inner.schema_vocabulary
    }

    /// Tensors of all files.
    pub(crate) fn n_tensors(&self) -> usize {
        self.inner.n_tensors
    }

    /// What watches memory for the model, if anything does.
    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.inner.guard.as_ref()
    }

    pub(crate) fn fingerprint(&self) -> u128 {
        self.inner.fingerprint
    }

    /// Refuses to compute with weights that are not in the file any more, or to trust what was computed with them.
    pub(crate) fn check_files_unchanged(&self) -> Result<()> {
        let cached = &self.inner.cached;
        cached.iter().try_for_each(|cached| cached.check_unchanged(&self.inner.files))?;
        let Some(mapping) = &self.inner.mapping else { return Ok(()) };
        self.inner.files.iter().try_for_each(FileState::check_not_shortened)?;
        if mapping.was_hit() {
            return Err(files_lost(&self.inner.path));
        }
        Ok(())
    }

    /// Returns what became of each matrix: packed, and how, or why not. A matrix that is used in two ways, as a head that
    /// is tied to the embeddings, comes twice.
    pub fn layouts(&self) -> &[WeightLayout] {
        &self.inner.layouts
    }

    /// Returns the sum over [`layouts`](Self::layouts).
    pub fn layout_summary(&self) -> LayoutSummary {
        LayoutSummary::new(self.layouts())
    }

    /// Returns what the expert pager has done since the model was loaded; `None` if all experts are in memory.
    pub fn pager_statistics(&self) -> Option<PagerStatistics> {
        self.inner.paged.as_ref().map(|paged| paged.pager().statistics())
    }

    /// Returns what the cache of packed weights did at load; `None` without a cache.
    pub fn pack_cache_statistics(&self) -> Option<&PackCacheStatistics> {
        self.inner.cached.as_ref().map(CachedWeights::statistics)
    }

    /// Returns what the weight stream has done since the model was loaded; `None` if all weights are in memory, or its
    /// experts are paged.
    pub fn stream_statistics(&self) -> Option<StreamStatistics> {
        self.inner.streamed.as_ref().map(|streamed| streamed.stream().statistics())
    }

    /// Returns the path that the model was loaded from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the vocabulary.
    pub fn vocab(&self) -> Vocab {
        Vocab::new(self.clone())
    }

    /// Starts to set up a context, which runs the model.
    pub fn context(&self) -> ContextBuilder {
        ContextBuilder::new(self.clone())
    }

    /// Returns the metadata of the file, with the overrides of the builder.
    pub fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    /// Returns the architecture, such as `llama`.
    pub fn architecture(&self) -> &str {
        self.metadata().architecture().unwrap_or("unknown")
    }

    /// Returns a line that describes the model, such as `llama 1B Q4_0`.
    pub fn description(&self) -> String {
        self.raw().desc()
    }

    /// Returns the bytes of all weights.
    pub fn size(&self) -> u64 {
        self.raw().size()
    }

    /// Returns the number of weights.
    pub fn n_params(&self) -> u64 {
        self.raw().n_params()
    }

    /// Returns the number of layers.
    pub fn n_layer(&self) -> usize {
        self.raw().n_layer() as usize
    }

    /// Returns the width of the model: the numbers that stand for a token between layers.
    pub fn n_embd(&self) -> usize {
        self.raw().n_embd() as usize
    }

    /// Returns the positions that the model was trained on.
    pub fn n_ctx_train(&self) -> usize {
        self.raw().n_ctx_train() as usize
    }

    /// Returns the tokens that the sliding windows of some layers reach back, or `None` if all layers see everything.
    pub fn sliding_window(&self) -> Option<usize> {
        Some(self.raw().n_swa() as usize).filter(|window| *window > 0)
    }

    /// Returns the tokens that contexts compute at once, unless [`ContextBuilder::n_ubatch`] says another number.
    pub fn default_n_ubatch(&self) -> usize {
        self.inner.n_ubatch as usize
    }

    /// Returns the chat template of the file.
    pub fn chat_template(&self) -> Option<&str> {
        self.metadata().get_str("tokenizer.chat_template")
    }

    /// Returns a chat template of the file by its name, such as `tool_use`.
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        self.metadata().get_str(&format!("tokenizer.chat_template.{name}"))
    }

    /// Tells whether all layers keep a state a sequence instead of something a token. Such memory cannot go back.
    pub fn is_recurrent(&self) -> bool {
        self.raw().is_recurrent()
    }

    /// Tells whether some layers are recurrent and some use attention. Such memory cannot go back either.
    pub fn is_hybrid(&self) -> bool {
        self.raw().is_hybrid()
    }

    /// Tells whether the model has an encoder.
    pub fn has_encoder(&self) -> bool {
        self.raw().has_encoder()
    }

    /// Tells whether the model has a decoder; without one it only makes embeddings.
    pub fn has_decoder(&self) -> bool {
        self.raw().has_decoder()
    }

    /// Whether tokens attend to later ones, so that a text must be computed in one piece.
    pub(crate) fn attends_both_ways(&self) -> bool {
        let causal = self.metadata().arch_get("attention.causal").and_then(Value::as_bool);
        causal == Some(false)
    }
}

/// The error for mapped files that lost bytes and may have them back by now.
pub(crate) fn files_lost(path: &Path) -> Error {
    let message = "the file was shortened while the model was loaded; load it again";
    Error::new(ErrorKind::FileChanged, message).with_path(path)
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.inner.path)
            .field("description", &self.description())
            .finish_non_exhaustive()
    }
}
